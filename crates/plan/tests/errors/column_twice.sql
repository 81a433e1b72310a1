CREATE TABLE t (
  a INT,
  a BIGINT
) WITH ('connector' = 'memory');
