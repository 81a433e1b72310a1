-- YSB in Slash's form: how often each 8-byte key was seen, every 10 minutes: a filter, a projection
-- and a count.
CREATE TABLE events (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'ysb',
  'keys' = '{keys}',
  'distribution' = '{distribution}',
  'exponent' = '{exponent}',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value BIGINT)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT window_start, key, count(*)
FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '10' MINUTE)
WHERE event_type = 'view'
GROUP BY window_start, window_end, key;
