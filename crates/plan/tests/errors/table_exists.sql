CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
CREATE TABLE flights (
  origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
