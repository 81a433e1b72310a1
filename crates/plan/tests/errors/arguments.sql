CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT round(origin, 1, 2) FROM flights;
