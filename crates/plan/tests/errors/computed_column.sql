CREATE TABLE t (
  a INT,
  b AS a + 1
) WITH ('connector' = 'memory');
