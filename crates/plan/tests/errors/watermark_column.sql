CREATE TABLE t (
  ts TIMESTAMP(3),
  WATERMARK FOR tss AS tss - INTERVAL '5' SECOND
) WITH ('connector' = 'memory');
