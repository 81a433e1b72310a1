CREATE TABLE bids (ts TIMESTAMP(3), item INT)
WITH ('connector' = 'file', 'pth' = 'slt/data/bids.csv', 'formt' = 'csv');
