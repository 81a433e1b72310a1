-- YSB: how often the advertisements of each of 100 campaigns were seen, every 10 seconds.
-- A table says which campaign an advertisement belongs to: the static join of the benchmark.
CREATE TABLE events (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'ysb',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE ads WITH ('connector' = 'generator', 'kind' = 'ysb', 'table' = 'ad');
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value BIGINT)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT window_start, ads.campaign_id, count(*)
FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '10' SECOND) AS seen
JOIN ads ON seen.ad_id = ads.ad_id
WHERE event_type = 'view'
GROUP BY window_start, window_end, ads.campaign_id;
