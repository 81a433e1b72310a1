-- NB7: the highest bid of each auction, every minute.
CREATE TABLE bids (WATERMARK FOR date_time AS date_time) WITH (
  'connector' = 'generator',
  'kind' = 'nexmark',
  'proportions' = '1:0:0',
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
SELECT window_start, auction, max(price)
FROM TUMBLE(TABLE bids, DESCRIPTOR(date_time), INTERVAL '60' SECOND)
GROUP BY window_start, window_end, auction;
