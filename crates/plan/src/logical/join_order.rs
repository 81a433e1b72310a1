//! The order of inner joins, by cost.
//!
//! DataFusion joins tables in the order in which a query names them. Where all input ends, the
//! order decides how many rows are built, probed and moved, so it is chosen here:
//!
//! - [`graph`]: the relations and conditions of a *block* of inner joins, taken out of an optimized
//!   plan, and the plan of another order of them.
//! - [`estimate`]: estimates of the rows that a plan emits, and of the distinct values of its
//!   columns; [`selectivity`]: of the share of rows for which a predicate holds.
//! - [`semi`]: semi and anti joins above a block that filter one relation of it.
//! - [`search`]: the cheapest order. It knows nothing of plans.
//!
//! The order is a function of the plan and of the statistics of tables, without clocks and
//! randomness: every node plans by itself, and all nodes must make the same plan. Numbers are only
//! added, multiplied, divided and compared, with the same results on every processor. A wrong
//! estimate makes a slow plan, never wrong rows.

mod column_tables;
pub(crate) mod estimate;
pub(crate) mod graph;
pub(crate) mod search;
pub(crate) mod selectivity;
pub(crate) mod semi;
