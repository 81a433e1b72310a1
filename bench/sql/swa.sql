-- SWA: the mean bid of each auction over 10 seconds, every 2 seconds.
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
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value DOUBLE)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT window_start, auction, avg(price)
FROM HOP(TABLE bids, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
GROUP BY window_start, window_end, auction;
