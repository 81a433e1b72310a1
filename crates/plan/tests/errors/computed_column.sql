CREATE TABLE t (
  price INT,
  twice AS pryce * 2,
  origin STRING METADATA FROM 'file'
) WITH ('connector' = 'memory');
