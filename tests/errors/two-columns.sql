CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');

SELECT itm, count(*) AS bids, max(prise) AS highest
FROM bids
WHERE biddr <> 'nobody'
GROUP BY itm;
