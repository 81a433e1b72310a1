CREATE TABLE t (
  price INT,
  origin STRING METADATA FROM 'file' VIRTUAL
) WITH ('connector' = 'memory');
