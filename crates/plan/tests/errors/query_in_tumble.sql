CREATE TABLE flights (ts TIMESTAMP(3), origin STRING) WITH ('connector' = 'memory');
SELECT * FROM TUMBLE(TABLE (SELECT * FROM flights), DESCRIPTOR(ts), INTERVAL '1' HOUR);
