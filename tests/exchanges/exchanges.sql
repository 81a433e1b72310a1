-- Groups of windows, a join of windows, sessions, and a join with a table that ends, in one job. The rows are the
-- same by every exchange, on any number of processes and over every transport. The hints are for the exchange
-- 'broadcast'; by the others the comments are left out.
SET millstream.slots = 4;
SET millstream.slot_bytes = '4 KiB';
SET millstream.epoch_bytes = '8 KiB';
CREATE TABLE a (n BIGINT, k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '4000', 'seed' = '1', 'interval' = '25ms', 'disorder' = '900ms',
  'fields.n.kind' = 'sequence', 'fields.k.max' = '19', 'fields.k.null_rate' = '0.02',
  'fields.v.min' = '-100', 'fields.v.max' = '100');
CREATE TABLE b (n BIGINT, k BIGINT, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH (
  'connector' = 'generator', 'rows' = '400', 'seed' = '2', 'interval' = '250ms', 'disorder' = '900ms',
  'fields.n.kind' = 'sequence', 'fields.k.max' = '19', 'fields.k.null_rate' = '0.02',
  'fields.v.min' = '-100', 'fields.v.max' = '100');
CREATE TABLE c (k BIGINT, kind BIGINT) WITH (
  'connector' = 'generator', 'rows' = '15', 'fields.k.kind' = 'sequence', 'fields.kind.max' = '4');
CREATE VIEW x AS SELECT * FROM TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND);
CREATE VIEW y AS SELECT * FROM TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '10' SECOND);

SELECT 'window' AS what, CAST(window_start AS BIGINT) AS at, k, count(*) AS p, sum(v) AS q
  FROM x GROUP BY window_start, window_end, k
UNION ALL
SELECT /*+ BROADCAST(y) */ 'join', CAST(x.window_start AS BIGINT), x.k, x.n, y.n
  FROM x JOIN y ON x.k = y.k AND x.window_start = y.window_start AND x.window_end = y.window_end
UNION ALL
SELECT 'session', CAST(window_start AS BIGINT), k, count(*), sum(v)
  FROM SESSION(TABLE a PARTITION BY k, DESCRIPTOR(ts), INTERVAL '2' SECOND) GROUP BY window_start, window_end, k
UNION ALL
SELECT /*+ BROADCAST(c) */ 'table', CAST(a.ts AS BIGINT), a.k, c.kind, a.n FROM a JOIN c ON a.k = c.k;
