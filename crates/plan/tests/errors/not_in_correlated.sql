CREATE TABLE t (a INT, b INT) WITH ('connector' = 'memory');
SELECT a FROM t WHERE a NOT IN (SELECT u.a FROM t u WHERE u.b = t.b);
