CREATE TABLE flights (ts TIMESTAMP(3), origin STRING) WITH ('connector' = 'memory');
CREATE TABLE s (origin STRING, n BIGINT NOT NULL) WITH ('connector' = 'memory');
INSERT INTO s (origin) SELECT origin FROM flights;
