-- The query of flights.sql, written to a file. The file appears under its name when the query has ended.
--
--   mkdir -p target/demo
--   millstream run examples/flights-csv.sql --nodes 4 --workers 1 --fabric shm

CREATE TABLE flights (
  sched_dep  TIMESTAMP(3),
  origin     VARCHAR,
  dep_time   INT,
  dep_delay  INT,
  WATERMARK FOR sched_dep AS sched_dep - INTERVAL '1' MINUTE
) WITH (
  'connector' = 'file',
  'path'      = 'examples/data/flights.parquet'
);

CREATE TABLE hourly (
  window_start  TIMESTAMP(3),
  origin        VARCHAR,
  departures    BIGINT,
  cancelled     BIGINT,
  mean_delay    DOUBLE,
  max_delay     INT
) WITH (
  'connector' = 'file',
  'path'      = 'target/demo/flights.csv',
  'format'    = 'csv'
);

INSERT INTO hourly
SELECT
  window_start,
  origin,
  count(dep_time),
  count(*) - count(dep_time),
  round(avg(dep_delay), 1),
  max(dep_delay)
FROM TUMBLE(TABLE flights, DESCRIPTOR(sched_dep), INTERVAL '1' HOUR)
GROUP BY origin, window_start, window_end;
