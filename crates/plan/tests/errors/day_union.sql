CREATE TABLE days (d DATE, n INT, x DOUBLE) WITH ('connector' = 'memory');
SELECT n FROM days UNION ALL SELECT d FROM days;
