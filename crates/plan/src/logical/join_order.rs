//! The order of inner joins, by cost.
//!
//! DataFusion joins tables in the order in which a query names them. Where all input ends, that
//! order decides how many rows are built, probed and moved, and so it is chosen here:
//!
//! - [`graph`]: the relations and conditions of a *block* of inner joins, taken out of an optimized
//!   plan, and the plan of another order of them.
//! - [`estimate`]: about how many rows a plan emits, and how many different values its columns
//!   have; [`selectivity`]: of a predicate.
//! - [`semi`]: semi and anti joins above a block, which filter one relation of it.
//! - [`search`]: the cheapest order. It knows nothing of plans.
//!
//! All of it is a function of the plan and of the statistics of tables, without clocks and without
//! chance, because every node plans by itself and all must plan the same. Numbers are only added,
//! multiplied, divided and compared, which every processor does alike. An estimate that is wrong
//! makes a slow plan, never wrong rows.

pub(crate) mod estimate;
pub(crate) mod graph;
pub(crate) mod search;
pub(crate) mod selectivity;
pub(crate) mod semi;
