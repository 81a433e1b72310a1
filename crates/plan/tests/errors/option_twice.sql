CREATE TABLE t (a INT) WITH ('connector' = 'memory', 'path' = 'x',
  'path' = 'y');
