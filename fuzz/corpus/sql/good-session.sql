CREATE TABLE t (k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
WITH ('connector' = 'generator');
CREATE TABLE r (k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE d (k BIGINT, name STRING) WITH ('connector' = 'generator', 'rows' = '10');
CREATE TABLE none (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
SELECT window_start, window_end, k, count(*) FROM SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE) GROUP BY window_start, window_end, k;
