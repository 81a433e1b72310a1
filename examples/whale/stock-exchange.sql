-- Stock exchange (W11): orders without a price or a quantity break the rules and are left out; the others are split into
-- buyers and sellers, which meet where a buyer of a symbol pays what a seller asks. Given out is the volume of each symbol,
-- every second. Sellers go to every worker; 6,649 symbols, as in the paper.
--
--   millstream run examples/whale/stock-exchange.sql --nodes 2 --workers 2

CREATE TABLE orders (
  ts      TIMESTAMP(3),
  symbol  INT,
  kind    STRING,
  price   INT,
  volume  INT,
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator', 'rows' = '200000', 'interval' = '50us', 'seed' = '1',
  'fields.symbol.kind' = 'zipf', 'fields.symbol.max' = '6648',
  'fields.kind.kind' = 'choice', 'fields.kind.values' = 'buy,sell',
  'fields.price.min' = '0', 'fields.price.max' = '1000',
  'fields.volume.min' = '0', 'fields.volume.max' = '100'
);

CREATE VIEW valid AS SELECT * FROM orders WHERE price > 0 AND volume > 0 AND symbol > 20;

CREATE VIEW buyers AS
SELECT * FROM TUMBLE(TABLE valid, DESCRIPTOR(ts), INTERVAL '1' SECOND) WHERE kind = 'buy';

CREATE VIEW sellers AS
SELECT * FROM TUMBLE(TABLE valid, DESCRIPTOR(ts), INTERVAL '1' SECOND) WHERE kind = 'sell';

SELECT /*+ BROADCAST(s) */ b.window_start, b.symbol, count(*) AS deals, sum(least(b.volume, s.volume)) AS volume
FROM buyers AS b
JOIN sellers AS s ON b.window_start = s.window_start AND b.window_end = s.window_end
  AND b.symbol = s.symbol AND b.price >= s.price
GROUP BY b.window_start, b.window_end, b.symbol;
