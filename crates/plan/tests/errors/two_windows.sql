CREATE TABLE t (
  ts TIMESTAMP(3), WATERMARK FOR ts AS ts
) WITH ('connector' = 'memory', 'bounded' = 'false');
CREATE VIEW v AS SELECT ts, window_start AS hour FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR);
SELECT hour, window_start, count(*) FROM TUMBLE(TABLE v, DESCRIPTOR(ts), INTERVAL '1' MINUTE)
GROUP BY hour, window_start;
