-- Query 5 of TPC-H over Parquet files: revenue by nation, of orders whose customer and supplier are both of it.
-- Joins run on all workers: rows are partitioned by their keys, or the smaller side goes to every process.
--
--   millstream bench tpch --scale 0.01 --write data       makes the files
--   millstream explain examples/tpch-q5.sql --nodes 4     shows how each join runs
--   millstream run examples/tpch-q5.sql --nodes 4 --workers 1

SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM 'data/tpch-0.01/customer.parquet', 'data/tpch-0.01/orders.parquet',
     'data/tpch-0.01/lineitem.parquet', 'data/tpch-0.01/supplier.parquet',
     'data/tpch-0.01/nation.parquet', 'data/tpch-0.01/region.parquet'
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
  AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
  AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01'
  AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
GROUP BY n_name
ORDER BY revenue DESC;
