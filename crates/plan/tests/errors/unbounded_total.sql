CREATE TABLE stream (ts TIMESTAMP(3), n INT) WITH ('connector' = 'memory', 'bounded' = 'false');
SELECT sum(n) FROM stream;
