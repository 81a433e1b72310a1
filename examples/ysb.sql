-- The Yahoo streaming benchmark: how often the advertisements of each campaign were seen, every ten seconds.
-- Ten million rows from a generator, which are the same rows each time.
--
--   millstream run examples/ysb.sql

CREATE TABLE ads (
  event_time   TIMESTAMP(3),
  event_type   VARCHAR,
  campaign_id  BIGINT,
  WATERMARK FOR event_time AS event_time - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator',
  'kind'      = 'ysb',
  'rows'      = '10000000',
  'interval'  = '10us',
  'seed'      = '1'
);

SELECT
  window_start,
  campaign_id,
  count(*) AS views
FROM TUMBLE(TABLE ads, DESCRIPTOR(event_time), INTERVAL '10' SECOND)
WHERE event_type = 'view'
GROUP BY campaign_id, window_start, window_end;
