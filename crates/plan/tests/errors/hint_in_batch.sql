CREATE TABLE orders (ts TIMESTAMP(3), item INT, price DOUBLE, WATERMARK FOR ts AS ts) WITH ('connector' = 'memory');
CREATE TABLE offers (ts TIMESTAMP(3), item INT, price DOUBLE, WATERMARK FOR ts AS ts) WITH ('connector' = 'memory');
CREATE VIEW a AS SELECT * FROM TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR);
CREATE VIEW b AS SELECT * FROM TUMBLE(TABLE offers, DESCRIPTOR(ts), INTERVAL '1' HOUR);
SELECT /*+ BROADCAST(y) */ x.item FROM orders AS x FULL JOIN offers AS y ON x.price < y.price;
