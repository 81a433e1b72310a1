CREATE TABLE t WITH ('connector' = 'memory', 'path' = 'nowhere.csv');
SELECT * FROM t;
