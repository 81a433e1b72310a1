CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT * FROM TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '10' MICROSECOND);
