CREATE TABLE flights (ts TIMESTAMP(3), origin STRING, delay DOUBLE) WITH ('connector' = 'memory');
CREATE TABLE s (origin STRING, n INT, d DOUBLE) WITH ('connector' = 'memory');
INSERT INTO s
SELECT origin, count(*), min(coalesce(delay, 0.0))
FROM flights GROUP BY origin;
