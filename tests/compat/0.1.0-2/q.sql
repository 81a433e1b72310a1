SET 'millstream.checkpoint' = '300 ms';
CREATE TABLE made (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '600', 'rate' = '300', 'interval' = '100ms', 'flows' = '1',
  'fields.n.kind' = 'sequence');
CREATE TABLE keys (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '30000', 'rate' = '15000', 'interval' = '1ms', 'flows' = '1',
  'fields.n.kind' = 'sequence');
CREATE VIEW bids AS SELECT ts, n % 4 AS auction, n AS price FROM made;
CREATE VIEW pauses AS SELECT * FROM bids WHERE price % 100 < 80;
CREATE TABLE merged (ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT, a DOUBLE, d BIGINT) WITH (
  'connector' = 'file', 'path' = 'merged/', 'format' = 'csv');
CREATE TABLE shuffled (ws TIMESTAMP(3), auction BIGINT, hi BIGINT, lo BIGINT) WITH (
  'connector' = 'file', 'path' = 'shuffled/', 'format' = 'csv');
CREATE TABLE sessions (ws TIMESTAMP(3), auction BIGINT, n BIGINT) WITH (
  'connector' = 'file', 'path' = 'sessions/', 'format' = 'csv');
CREATE TABLE joined (auction BIGINT, l BIGINT, r BIGINT) WITH (
  'connector' = 'file', 'path' = 'joined/', 'format' = 'csv');
CREATE TABLE framed (auction BIGINT, price BIGINT, s BIGINT) WITH (
  'connector' = 'file', 'path' = 'framed/', 'format' = 'csv');
CREATE TABLE many (ws TIMESTAMP(3), k BIGINT, n BIGINT, s BIGINT) WITH (
  'connector' = 'file', 'path' = 'many/', 'format' = 'csv');
CREATE TABLE top (ws TIMESTAMP(3), auction BIGINT, price BIGINT, nth BIGINT) WITH (
  'connector' = 'file', 'path' = 'top.csv');
BEGIN STATEMENT SET;
INSERT INTO merged SELECT /*+ EXCHANGE('merge') */ window_start, auction, count(*), sum(price),
    avg(price), count(DISTINCT price % 3)
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO shuffled SELECT /*+ EXCHANGE('shuffle') */ window_start, auction, max(price), min(price)
  FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO sessions SELECT window_start, auction, count(*)
  FROM SESSION(TABLE pauses PARTITION BY auction, DESCRIPTOR(ts), INTERVAL '1' SECOND)
  GROUP BY window_start, window_end, auction;
INSERT INTO joined SELECT l.auction, l.price, r.price FROM bids AS l
  JOIN pauses AS r ON l.auction = r.auction
   AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '2' SECOND;
INSERT INTO framed SELECT auction, price, sum(price) OVER (
    PARTITION BY auction ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) FROM bids;
INSERT INTO many SELECT window_start, n % 25000, count(*), sum(n * 1000003)
  FROM TUMBLE(TABLE keys, DESCRIPTOR(ts), INTERVAL '1' DAY)
  GROUP BY window_start, window_end, n % 25000;
INSERT INTO top SELECT window_start, auction, price, CAST(nth AS BIGINT) FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, auction
                                 ORDER BY price DESC) AS nth
    FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) WHERE nth <= 3;
END;
