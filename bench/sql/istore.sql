-- The joins of the star schema that I-Store's paper measures: the lines of orders with one, two and
-- three dimensions. Where tables are pulled or multicast, each is named. Query m1 has the lines of
-- orders as its build: a large table that several processes need.

-- Query j1
SELECT {pull:customer} c_region, sum(lo_revenue) AS revenue, count(*) AS lines
FROM lineorder, customer
WHERE lo_custkey = c_custkey
GROUP BY c_region
ORDER BY c_region;

-- Query j2
SELECT {pull:customer,part} c_region, p_mfgr, sum(lo_revenue) AS revenue, count(*) AS lines
FROM lineorder, customer, part
WHERE lo_custkey = c_custkey AND lo_partkey = p_partkey
GROUP BY c_region, p_mfgr
ORDER BY c_region, p_mfgr;

-- Query j3
SELECT {pull:customer,part,supplier} c_region, p_mfgr, s_region, sum(lo_revenue) AS revenue,
  count(*) AS lines
FROM lineorder, customer, part, supplier
WHERE lo_custkey = c_custkey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey
GROUP BY c_region, p_mfgr, s_region
ORDER BY c_region, p_mfgr, s_region;

-- Query m1
SELECT {pull:lineorder} d_year, sum(lo_revenue) AS revenue, count(*) AS lines
FROM lineorder, date
WHERE lo_orderdate = d_datekey
GROUP BY d_year
ORDER BY d_year;
