CREATE TABLE bids (ts TIMESTAMP(3), item INTT)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');

SELECT item FROM bids;
SELECT count(*) FROM bids;
SELECT count(*) FROM asks;
