SELECT a + b FROM (VALUES (1)) AS t (a);
