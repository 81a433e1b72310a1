CREATE TABLE t (k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
WITH ('connector' = 'generator');
CREATE TABLE r (k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE d (k BIGINT, name STRING) WITH ('connector' = 'generator', 'rows' = '10');
CREATE TABLE none (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
SELECT k FROM t GROUP BY CUBE(k, s, v, w, ts, k + 1, k + 2, k + 3, k + 4, k + 5);