-- YSB*: views and clicks of the advertisements of each of 100 campaigns are counted apart, every 10
-- seconds, and the counts are joined: their ratio is given out. The table is read once for each.
CREATE TABLE events (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'ysb',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value DOUBLE)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT v.window_start, v.campaign, CAST(c.clicks AS DOUBLE) / CAST(v.views AS DOUBLE)
FROM (
  SELECT window_start, window_end, ad_id / 10 AS campaign, count(*) AS views
  FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '10' SECOND)
  WHERE event_type = 'view'
  GROUP BY window_start, window_end, ad_id / 10
) AS v
JOIN (
  SELECT window_start, window_end, ad_id / 10 AS campaign, count(*) AS clicks
  FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '10' SECOND)
  WHERE event_type = 'click'
  GROUP BY window_start, window_end, ad_id / 10
) AS c
ON v.window_start = c.window_start AND v.window_end = c.window_end AND v.campaign = c.campaign;
