CREATE TABLE t (a INT) DISTRIBUTED BY (a) INTO 8 BUCKETS WITH ('connector' = 'memory');
