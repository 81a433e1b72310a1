CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
CREATE VIEW v AS SELECT ts FROM flights;
INSERT INTO v SELECT ts FROM flights;
