SELECT 'open FROM bids;
