CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');

SELECT item FORM bids;
SELECT item FROM bids;
INSERT INTO kept SELECT item FROM bids;
SET millstream.exchange = 'mrege';
