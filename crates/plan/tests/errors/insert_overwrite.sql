CREATE TABLE t (a INT) WITH ('connector' = 'memory');
INSERT OVERWRITE t SELECT 1;
