CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');

SELECT uper(bidder), bids.pryce, lenght(bidder)
FROM bids;
