CREATE TABLE t (k BIGINT PRIMARY KEY, n BIGINT) WITH ('connector' = 'memory');
SELECT k FROM t;
