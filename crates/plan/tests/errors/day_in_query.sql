CREATE TABLE days (d DATE, n INT, x DOUBLE) WITH ('connector' = 'memory');
SELECT n FROM days WHERE n IN (SELECT d FROM days);
