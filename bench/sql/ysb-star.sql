-- YSB*: events are split into clicks and views, a table says which campaign an advertisement belongs
-- to, both are counted by campaign every 10 seconds, and the counts are joined: their ratio is the
-- result. The table of events is read once for each part of the split.
CREATE TABLE events (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'ysb',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE ads WITH ('connector' = 'generator', 'kind' = 'ysb', 'table' = 'ad');
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value DOUBLE)
  WITH ('connector' = 'blackhole');

CREATE VIEW viewed AS SELECT event_time, ad_id FROM events WHERE event_type = 'view';
CREATE VIEW clicked AS SELECT event_time, ad_id FROM events WHERE event_type = 'click';

INSERT INTO result
SELECT v.window_start, v.campaign_id, CAST(c.clicks AS DOUBLE) / CAST(v.views AS DOUBLE)
FROM (
  SELECT window_start, window_end, ads.campaign_id, count(*) AS views
  FROM TUMBLE(TABLE viewed, DESCRIPTOR(event_time), INTERVAL '10' SECOND) AS seen
  JOIN ads ON seen.ad_id = ads.ad_id
  GROUP BY window_start, window_end, ads.campaign_id
) AS v
JOIN (
  SELECT window_start, window_end, ads.campaign_id, count(*) AS clicks
  FROM TUMBLE(TABLE clicked, DESCRIPTOR(event_time), INTERVAL '10' SECOND) AS seen
  JOIN ads ON seen.ad_id = ads.ad_id
  GROUP BY window_start, window_end, ads.campaign_id
) AS c
ON v.window_start = c.window_start AND v.window_end = c.window_end
AND v.campaign_id = c.campaign_id;
