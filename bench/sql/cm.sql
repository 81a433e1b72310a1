-- CM: the mean share of a processor that the tasks of each job ask for, every 2 seconds.
CREATE TABLE tasks (WATERMARK FOR event_time AS event_time) WITH (
  'connector' = 'generator',
  'kind' = 'cluster-monitoring',
  'keys' = '{keys}',
  'distribution' = '{distribution}',
  'exponent' = '{exponent}',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value DOUBLE)
  WITH ('connector' = 'blackhole');

INSERT INTO result
SELECT window_start, job_id, avg(cpu)
FROM TUMBLE(TABLE tasks, DESCRIPTOR(event_time), INTERVAL '2' SECOND)
GROUP BY window_start, window_end, job_id;
