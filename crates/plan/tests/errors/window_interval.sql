CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT window_start, count(*)
FROM TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' MONTH)
GROUP BY window_start;
