CREATE TABLE bids (item INT) WITH ('connector' = 'file', 'path' = 'slt/data/bid.csv');
SELECT item FROM bids;
