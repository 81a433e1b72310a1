CREATE TABLE stream (
  ts TIMESTAMP(3), origin STRING, delay DOUBLE, other TIMESTAMP(3),
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH ('connector' = 'memory', 'bounded' = 'false');
SELECT origin FROM stream OFFSET 5;
