-- YSB: how often the advertisements of each of 100 campaigns were seen, every 10 seconds.
-- Ten advertisements belong to a campaign: the static join of the benchmark is a division.
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
SELECT window_start, ad_id / 10, count(*)
FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '10' SECOND)
WHERE event_type = 'view'
GROUP BY window_start, window_end, ad_id / 10;
