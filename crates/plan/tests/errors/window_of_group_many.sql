CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT window_start, count(*) AS flights
FROM HOP(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '365' DAY)
GROUP BY window_start, window_end;
