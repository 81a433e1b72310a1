-- NB8: auctions with the person that sells, of those who came in the same 12 hours. Whole rows go
-- through the join. Four auctions are opened for each person that comes.
CREATE TABLE auctions (WATERMARK FOR date_time AS date_time) WITH (
  'connector' = 'generator',
  'kind' = 'nexmark',
  'table' = 'auction',
  'proportions' = '0:4:1',
  'rows' = '{four_of_five}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE persons (WATERMARK FOR date_time AS date_time) WITH (
  'connector' = 'generator',
  'kind' = 'nexmark',
  'table' = 'person',
  'proportions' = '0:4:1',
  'rows' = '{one_of_five}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT a.window_start,
       p.name, p.email_address, p.credit_card, p.city, p.state, p.extra AS about,
       a.item_name, a.description, a.initial_bid, a.reserve, a.expires, a.category, a.extra,
       p.id AS key, a.id AS value
FROM (SELECT * FROM TUMBLE(TABLE auctions, DESCRIPTOR(date_time), INTERVAL '12' HOUR)) AS a
JOIN (SELECT * FROM TUMBLE(TABLE persons, DESCRIPTOR(date_time), INTERVAL '12' HOUR)) AS p
ON a.seller = p.id AND a.window_start = p.window_start AND a.window_end = p.window_end;
