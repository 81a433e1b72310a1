CREATE TABLE t WITH ('connector' = 'memory');
SELECT * FROM t;
