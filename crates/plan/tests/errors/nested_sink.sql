CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
CREATE TABLE s (a ARRAY<STRING>) WITH ('connector' = 'memory');
INSERT INTO s SELECT make_array(origin) FROM flights;
