CREATE TABLE stream (
  ts TIMESTAMP(3), origin STRING, delay DOUBLE, other TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH ('connector' = 'memory', 'bounded' = 'false');
SELECT window_start, count(*)
FROM TUMBLE(TABLE stream, DESCRIPTOR(other), INTERVAL '1' HOUR)
GROUP BY window_start;
