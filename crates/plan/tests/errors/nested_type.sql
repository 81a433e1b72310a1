CREATE TABLE t (s ROW<x INT, y MAPP<STRING, INT>>) WITH ('connector' = 'memory');
