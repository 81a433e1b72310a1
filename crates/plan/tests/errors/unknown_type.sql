CREATE TABLE t (a STRNG) WITH ('connector' = 'memory');
