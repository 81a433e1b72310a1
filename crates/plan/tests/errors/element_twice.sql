CREATE TABLE t (a INT, s ROW<x INT>) WITH ('connector' = 'memory');
SELECT s.x, s['x'] FROM t;
