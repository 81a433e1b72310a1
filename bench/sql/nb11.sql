-- NB11: bids with the person that bids, in a session of both: what one person does without a pause
-- of more than 10 seconds. There are four bids for each person that comes.
CREATE TABLE bids (WATERMARK FOR date_time AS date_time) WITH (
  'connector' = 'generator',
  'kind' = 'nexmark',
  'table' = 'bid',
  'proportions' = '4:0:1',
  'rows' = '{four_of_five}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE persons (WATERMARK FOR date_time AS date_time) WITH (
  'connector' = 'generator',
  'kind' = 'nexmark',
  'table' = 'person',
  'proportions' = '4:0:1',
  'rows' = '{one_of_five}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result WITH ('connector' = 'blackhole');

CREATE VIEW seen AS
SELECT date_time, bidder AS who, auction, price, CAST(NULL AS STRING) AS name FROM bids
UNION ALL
SELECT date_time, id, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), name FROM persons;
CREATE VIEW visits AS
SELECT * FROM SESSION(TABLE seen PARTITION BY who, DESCRIPTOR(date_time), INTERVAL '10' SECOND);

INSERT INTO result
SELECT b.window_start, p.name, b.auction, b.who AS key, b.price AS value
FROM (SELECT * FROM visits WHERE price IS NOT NULL) AS b
JOIN (SELECT * FROM visits WHERE name IS NOT NULL) AS p
ON b.window_start = p.window_start AND b.window_end = p.window_end AND b.who = p.who;
