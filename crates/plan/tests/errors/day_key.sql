CREATE TABLE days (d DATE, n INT, x DOUBLE) WITH ('connector' = 'memory');
SELECT a.n FROM days AS a JOIN days AS b ON a.x = b.x AND a.n = b.d;
