CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT * FROM HOP(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '1' HOUR);
