-- SWA: how many events of each advertisement there were in 10 seconds, every 2 seconds. Its rows are
-- those of YSB.
CREATE TABLE events (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'ysb',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value BIGINT)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT window_start, ad_id, count(*)
FROM HOP(TABLE events, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
GROUP BY window_start, window_end, ad_id;
