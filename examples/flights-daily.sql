-- Each carrier's day: flights, cancellations and the share of departures more than 15 minutes late.
-- A view, a second key, named arguments of TUMBLE, HAVING, and a CSV file as the sink.
--
--   mkdir -p target/demo
--   millstream run examples/flights-daily.sql

CREATE TABLE flights (
  sched_dep  TIMESTAMP(3),
  carrier    VARCHAR,
  dep_delay  INT,
  distance   INT,
  WATERMARK FOR sched_dep AS sched_dep - INTERVAL '1' MINUTE
) WITH (
  'connector' = 'file',
  'path'      = 'examples/data/flights.parquet'
);

CREATE TABLE daily (
  day         TIMESTAMP(3),
  carrier     VARCHAR,
  flights     BIGINT,
  cancelled   BIGINT,
  late_share  DOUBLE,
  miles       BIGINT
) WITH (
  'connector' = 'file',
  'path'      = 'target/demo/flights-daily.csv',
  'format'    = 'csv'
);

CREATE VIEW punctuality AS
SELECT
  sched_dep,
  carrier,
  dep_delay,
  distance,
  CASE WHEN dep_delay > 15 THEN 1.0 WHEN dep_delay IS NOT NULL THEN 0.0 END AS late
FROM flights;

INSERT INTO daily
SELECT
  window_start,
  carrier,
  count(*),
  count(*) - count(dep_delay),
  avg(late),
  sum(distance)
FROM TUMBLE(DATA => TABLE punctuality, TIMECOL => DESCRIPTOR(sched_dep), SIZE => INTERVAL '1' DAY)
GROUP BY carrier, window_start, window_end
HAVING count(*) >= 10;
