CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');
BEGIN STATEMENT SET;
SELECT item FROM bids;
