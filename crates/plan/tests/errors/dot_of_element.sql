CREATE TABLE t (l ARRAY<ROW<q INT>>) WITH ('connector' = 'memory');
SELECT l[1].q FROM t;
