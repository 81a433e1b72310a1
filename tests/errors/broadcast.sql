CREATE TABLE requests (ts TIMESTAMP(3), place BIGINT, WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
CREATE TABLE drivers (ts TIMESTAMP(3), place BIGINT, WATERMARK FOR ts AS ts) WITH ('connector' = 'generator');
SELECT /*+ BROADCAST(r) */ r.ts FROM drivers d JOIN requests r ON abs(r.place - d.place) < 9;
SELECT /*+ BROADCAST(r) */ r.ts FROM taxis t JOIN requests r ON abs(r.place - t.place) < 9;
