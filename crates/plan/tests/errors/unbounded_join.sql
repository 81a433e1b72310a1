CREATE TABLE stream (
  ts TIMESTAMP(3), origin STRING, delay DOUBLE, other TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH ('connector' = 'memory', 'bounded' = 'false');
CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT s.origin FROM stream AS s JOIN stream AS f ON s.origin = f.origin;
