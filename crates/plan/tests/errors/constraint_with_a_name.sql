CREATE TABLE t (k BIGINT, CONSTRAINT u UNIQUE (k)) WITH ('connector' = 'memory');
SELECT k FROM t;
