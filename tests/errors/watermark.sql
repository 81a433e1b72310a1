CREATE TABLE bids (ts TIMESTAMP(3), item INT, WATERMARK FOR item AS item - INTERVAL '5' SECOND)
WITH ('connector' = 'blackhole');
