CREATE TABLE t (a INT) WITH (
  'connector' = 'memory',
  'pth' = 'x'
);
SELECT a FROM t;
