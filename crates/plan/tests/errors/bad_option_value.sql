CREATE TABLE t (a INT) WITH ('connector' = 'memory',
  'bounded' = 'maybe');
SELECT a FROM t;
