CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SET millstream.exchange = forward;
SELECT origin, count(*) FROM flights GROUP BY origin;
