-- The three analytical queries of the paper's Listing 1.1, as it has them.

-- Query q1
select ol_o_id, ol_w_id, ol_d_id, sum(ol_amount) as revenue, o_entry_d
from order_line, orders, new_order, customer
where c_id = o_c_id and c_w_id = o_w_id and c_d_id = o_d_id
and no_w_id = o_w_id and no_d_id = o_d_id and no_o_id = o_id
and ol_w_id = o_w_id and ol_d_id = o_d_id and ol_o_id = o_id
and c_state like 'A%' and o_entry_d > timestamp('2013-07-01-00.00.00.000000')
group by ol_o_id, ol_w_id, ol_d_id, o_entry_d
having sum(ol_amount) > 80000.00
order by revenue desc, o_entry_d;

-- Query q2
select 100.00 * sum(case when i_data like 'a%' then ol_amount else 0 end) /
(1+sum(ol_amount)) as promo_revenue
from order_line, item
where ol_i_id = i_id
and ol_delivery_d >= timestamp('2013-06-01 00:00:00.000')
and ol_delivery_d < timestamp('2013-08-01 00:00:00.000');

-- Query q3
select ol_number, sum(ol_quantity) as sum_qty, sum(cast(ol_amount as decimal(10,2))) as
sum_amount, sum(ol_quantity) / count(*) as avg_qty, sum(ol_amount) / count(*) as
avg_amount, count(*) as count_order
from order_line
where ol_delivery_d > timestamp('2013-07-01 00:00:00.000')
group by ol_number order by sum(ol_quantity) desc;
