CREATE TABLE t (k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
WITH ('connector' = 'generator');
CREATE TABLE r (k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE d (k BIGINT, name STRING) WITH ('connector' = 'generator', 'rows' = '10');
CREATE TABLE none (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
SELECT t.k, r.v FROM t JOIN r ON t.k = r.k AND t.ts BETWEEN r.ts - INTERVAL '5' SECOND AND r.ts + INTERVAL '1' MINUTE;
