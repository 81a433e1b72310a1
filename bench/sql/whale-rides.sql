-- Ride hailing (W11): every ten seconds each request gets the nearest driver within two kilometres. Where drivers are goes by
-- driver to one worker, which keeps the last place of each; requests go to every worker, once to each process; the best of the
-- drivers that the workers know is taken.
CREATE TABLE drivers (
  ts TIMESTAMP(3), driver INT, x DOUBLE, y DOUBLE,
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator', 'rows' = '{many}', 'interval' = '400us', 'seed' = '1',
  'fields.driver.max' = '5999999', 'fields.x.max' = '50000', 'fields.y.max' = '50000'
);
CREATE TABLE requests (
  ts TIMESTAMP(3), request BIGINT, x DOUBLE, y DOUBLE,
  WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (
  'connector' = 'generator', 'rows' = '{few}', 'interval' = '80ms', 'seed' = '2',
  'fields.request.kind' = 'sequence', 'fields.x.max' = '50000', 'fields.y.max' = '50000'
);
CREATE TABLE result (window_start TIMESTAMP(3), key BIGINT, value BIGINT)
  WITH ('connector' = 'blackhole');

CREATE VIEW located AS
SELECT window_start, window_end, driver, x, y FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, driver ORDER BY ts DESC, x, y) AS n
  FROM TUMBLE(TABLE drivers, DESCRIPTOR(ts), INTERVAL '10' SECOND)
) AS seen WHERE n = 1;
CREATE VIEW asked AS
SELECT * FROM TUMBLE(TABLE requests, DESCRIPTOR(ts), INTERVAL '10' SECOND);
CREATE VIEW near AS
SELECT /*+ BROADCAST(r) */ r.window_start, r.window_end, r.request, d.driver,
  (d.x - r.x) * (d.x - r.x) + (d.y - r.y) * (d.y - r.y) AS apart
FROM located AS d
JOIN asked AS r ON d.window_start = r.window_start AND d.window_end = r.window_end
  AND (d.x - r.x) * (d.x - r.x) + (d.y - r.y) * (d.y - r.y) < 2000 * 2000;

INSERT INTO result
SELECT window_start, request, CAST(driver AS BIGINT) FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, request ORDER BY apart, driver) AS best
  FROM near
) AS ranked WHERE best = 1;
