-- Stock exchange (W11): orders without a price or a quantity are dropped; the others are split into buyers and sellers, which
-- are joined where a buyer of a symbol pays what a seller asks. Sellers go to every worker.
CREATE TABLE orders (
  ts TIMESTAMP(3), symbol INT, kind STRING, price INT, volume INT,
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator', 'rows' = '{many}', 'interval' = '50us', 'seed' = '1',
  'fields.symbol.kind' = 'zipf', 'fields.symbol.max' = '6648',
  'fields.kind.kind' = 'choice', 'fields.kind.values' = 'buy,sell',
  'fields.price.min' = '0', 'fields.price.max' = '1000',
  'fields.volume.min' = '0', 'fields.volume.max' = '100'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value BIGINT)
  WITH ('connector' = 'blackhole');

CREATE VIEW valid AS SELECT * FROM orders WHERE price > 0 AND volume > 0 AND symbol > 20;
CREATE VIEW buyers AS
SELECT * FROM TUMBLE(TABLE valid, DESCRIPTOR(ts), INTERVAL '1' SECOND) WHERE kind = 'buy';
CREATE VIEW sellers AS
SELECT * FROM TUMBLE(TABLE valid, DESCRIPTOR(ts), INTERVAL '1' SECOND) WHERE kind = 'sell';

INSERT INTO result
SELECT /*+ BROADCAST(s) */ b.window_start, CAST(b.symbol AS BIGINT), CAST(sum(least(b.volume, s.volume)) AS BIGINT)
FROM buyers AS b
JOIN sellers AS s ON b.window_start = s.window_start AND b.window_end = s.window_end
  AND b.symbol = s.symbol AND b.price >= s.price
GROUP BY b.window_start, b.window_end, b.symbol;
