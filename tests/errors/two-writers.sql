CREATE TABLE bids (ts TIMESTAMP(3), item INT, bidder STRING, price DOUBLE)
WITH ('connector' = 'file', 'path' = 'slt/data/bids.csv');
CREATE TABLE a (item INT) WITH ('connector' = 'file', 'path' = 'never-written.csv');
CREATE TABLE b (item INT) WITH ('connector' = 'file', 'path' = './src/../never-written.csv');
BEGIN STATEMENT SET;
INSERT INTO a SELECT item FROM bids;
INSERT INTO b SELECT item FROM bids ORDER BY item;
END;
BEGIN STATEMENT SET;
INSERT INTO a SELECT item FROM bids;
INSERT INTO a SELECT 1;
END;
