CREATE TABLE bids (item INT) WITH ('connector' = 'flie', 'path' = 'bids.csv');
