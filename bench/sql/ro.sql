-- RO: how often each key came, over everything.
CREATE TABLE events WITH (
  'connector' = 'generator',
  'kind' = 'ro',
  'keys' = '{keys}',
  'distribution' = '{distribution}',
  'exponent' = '{exponent}',
  'rows' = '{rows}',
  'interval' = '{interval}',
  'preload' = 'true'
);
CREATE TABLE result (key BIGINT, value BIGINT) WITH ('connector' = 'blackhole');

INSERT INTO result SELECT key, count(*) FROM events GROUP BY key;
