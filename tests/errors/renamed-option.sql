CREATE TABLE rides (id BIGINT) WITH (
  'connector' = 'socket', 'address' = '127.0.0.1:9000', 'patience' = '5s'
);
CREATE TABLE zones (id BIGINT) WITH (
  'connector' = 'stdin', 'patience' = '5s'
);
SELECT * FROM rides;
