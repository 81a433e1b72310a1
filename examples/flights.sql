-- Departures of New York's three airports in 2013, per airport and hour of scheduled departure.
--
--   millstream run examples/flights.sql
--   millstream run examples/flights.sql --nodes 4 --workers 1 --fabric shm

CREATE TABLE flights (
  sched_dep  TIMESTAMP(3),  -- scheduled departure, local time: the event time
  origin     VARCHAR,       -- EWR, JFK or LGA
  dep_time   INT,           -- actual departure as HHMM; NULL when the flight was cancelled
  dep_delay  INT,           -- minutes, negative when early; NULL when the flight was cancelled
  WATERMARK FOR sched_dep AS sched_dep - INTERVAL '1' MINUTE
) WITH (
  'connector' = 'file',
  'path'      = 'examples/data/flights.parquet'
);

SELECT
  window_start,
  origin,
  count(dep_time)            AS departures,
  count(*) - count(dep_time) AS cancelled,
  round(avg(dep_delay), 1)   AS mean_delay,
  max(dep_delay)             AS max_delay
FROM TUMBLE(TABLE flights, DESCRIPTOR(sched_dep), INTERVAL '1' HOUR)
GROUP BY origin, window_start, window_end;
