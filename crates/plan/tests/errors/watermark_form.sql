CREATE TABLE t (
  ts TIMESTAMP(3),
  WATERMARK FOR ts AS now()
) WITH ('connector' = 'memory');
