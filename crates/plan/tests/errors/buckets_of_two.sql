CREATE TABLE t (a INT, b INT) DISTRIBUTED BY HASH(a, b) INTO 8 BUCKETS WITH ('connector' = 'memory');
