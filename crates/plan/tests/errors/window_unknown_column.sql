CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT window_start, count(*)
FROM TUMBLE(TABLE flights, DESCRIPTOR(tss), INTERVAL '1' HOUR)
GROUP BY window_start;
