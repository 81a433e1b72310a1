CREATE TABLE t (k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
WITH ('connector' = 'generator');
CREATE TABLE r (k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE d (k BIGINT, name STRING) WITH ('connector' = 'generator', 'rows' = '10');
CREATE TABLE none (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
SELECT l.k, r.v FROM (SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)) AS l LEFT JOIN (SELECT * FROM TUMBLE(TABLE r, DESCRIPTOR(ts), INTERVAL '1' HOUR)) AS r ON l.window_start = r.window_start AND l.window_end = r.window_end AND l.k = r.k;
