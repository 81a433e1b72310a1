CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
CREATE TABLE hourly (window_start TIMESTAMP(3), origin STRING, n BIGINT) WITH ('connector' = 'memory');
INSERT INTO hourly (window_start, orign) SELECT ts, origin FROM flights;
