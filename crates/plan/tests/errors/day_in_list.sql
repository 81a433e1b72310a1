CREATE TABLE days (d DATE, n INT, x DOUBLE) WITH ('connector' = 'memory');
SELECT n FROM days WHERE n > 0 AND d IN (1, 2);
