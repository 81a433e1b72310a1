CREATE TABLE t (a INTT) WITH ('connector' = 'memory');
SET a = 1;
SELECT a FROM t;
SELECT b FROM u;
