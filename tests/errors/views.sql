CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');
CREATE VIEW bids AS SELECT 1 AS one;
CREATE VIEW two (a, b) AS SELECT 1;
DROP VIEW bids;
