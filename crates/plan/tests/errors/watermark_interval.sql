CREATE TABLE t (
  ts TIMESTAMP(0),
  WATERMARK FOR ts AS ts - INTERVAL '1.5' SECOND
) WITH ('connector' = 'memory');
