CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
CREATE TABLE hourly (window_start TIMESTAMP(3), origin STRING, n BIGINT) WITH ('connector' = 'memory');
BEGIN STATEMENT SET;
INSERT INTO hourly SELECT ts, origin, 1 FROM flights;
