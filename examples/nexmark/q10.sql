-- NEXMark, query 10. Log to files: each bid with its day and minute.
-- The published table is partitioned by day and minute, which there is not: one file is written.

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
  'connector' = 'generator', 'kind' = 'nexmark', 'table' = 'bid', 'interval' = '10s',
  'keys' = '900', 'exponent' = '0.5', 'rows' = '13800'
);

CREATE TABLE nexmark_q10 (
  auction  BIGINT,
  bidder  BIGINT,
  price  BIGINT,
  `dateTime`  TIMESTAMP(3),
  extra  VARCHAR,
  dt STRING,
  hm STRING
) WITH (
  'connector' = 'file', 'path' = 'nexmark_q10.csv'
);

INSERT INTO nexmark_q10
SELECT auction, bidder, price, `dateTime`, extra,
    DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), DATE_FORMAT(`dateTime`, 'HH:mm')
FROM bid;
