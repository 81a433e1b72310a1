CREATE TABLE orders (ts TIMESTAMP(3), item INT, price DOUBLE, WATERMARK FOR ts AS ts) WITH ('connector' = 'memory');
CREATE TABLE offers (ts TIMESTAMP(3), item INT, price DOUBLE, WATERMARK FOR ts AS ts) WITH ('connector' = 'memory');
CREATE VIEW a AS SELECT * FROM TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR);
CREATE VIEW b AS SELECT * FROM TUMBLE(TABLE offers, DESCRIPTOR(ts), INTERVAL '1' HOUR);
SELECT /*+ FORWARD */ item, count(*) FROM orders GROUP BY item;
SELECT
  /*+ EXCHANGE('forward') */ a.item
FROM a JOIN b USING (window_start, window_end, item);
