CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');

SELECT item + bidder FROM bids;
SELECT price, count(*) FROM bids;
SELECT abs(bidder, 2) FROM bids;
CREATE TABLE seconds (ts TIMESTAMP(0)) WITH ('connector' = 'blackhole');
INSERT INTO seconds SELECT ts + INTERVAL '90' SECOND FROM bids;
SELECT ts + INTERVAL '5' MINUTS FROM bids;
SELECT lag(item, item) OVER (ORDER BY ts) FROM bids;
