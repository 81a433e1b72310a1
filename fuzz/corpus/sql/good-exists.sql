CREATE TABLE t (k BIGINT, s STRING, v BIGINT, w DOUBLE, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
WITH ('connector' = 'generator');
CREATE TABLE r (k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE d (k BIGINT, name STRING) WITH ('connector' = 'generator', 'rows' = '10');
CREATE TABLE none (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
SELECT k FROM t WHERE EXISTS (SELECT 1 FROM d WHERE d.k = t.k) AND s LIKE 'a%' AND CASE WHEN v > 0 THEN w ELSE 0 END > 1;
