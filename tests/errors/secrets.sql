CREATE TABLE a (n INT) WITH ('connector' = 'http', 'url' = 'http://localhost/?key=${NO_SUCH_VARIABLE_HERE}');
CREATE TABLE b (n INT) WITH ('connector' = 'file', 'path' = '${file:/no/such/file}');
CREATE TABLE c (n INT) WITH ('connector' = 'file', 'path' = 'x${y');
