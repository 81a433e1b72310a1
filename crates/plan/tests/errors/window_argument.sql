CREATE TABLE flights (
  ts TIMESTAMP(3), origin STRING, dest STRING, delay DOUBLE, distance INT
) WITH ('connector' = 'memory');
SELECT * FROM TUMBLE(DATA => TABLE flights, TIMECOL => DESCRIPTOR(ts), SIZ => INTERVAL '1' DAY);
