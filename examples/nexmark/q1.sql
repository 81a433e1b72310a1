-- NEXMark, query 1. Currency conversion: what is each bid in euros?
-- The product is a DOUBLE here, so that it is cast into the type of the table.

CREATE TABLE bid (
  auction BIGINT,
  bidder BIGINT,
  price BIGINT,
  channel VARCHAR,
  url VARCHAR,
  `dateTime` TIMESTAMP(3),
  extra VARCHAR,
  WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH (
  'connector' = 'generator', 'kind' = 'nexmark', 'table' = 'bid', 'interval' = '5ms',
  'keys' = '900', 'exponent' = '0.5', 'rows' = '13800'
);

CREATE TABLE nexmark_q1 (
  auction  BIGINT,
  bidder  BIGINT,
  price  DECIMAL(23, 3),
  `dateTime`  TIMESTAMP(3),
  extra  VARCHAR
) WITH (
  'connector' = 'blackhole'
);

INSERT INTO nexmark_q1
SELECT
    auction,
    bidder,
    CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
    `dateTime`,
    extra
FROM bid;
