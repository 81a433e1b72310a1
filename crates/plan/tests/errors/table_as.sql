CREATE TABLE t WITH ('connector' = 'memory') AS SELEC 1;
