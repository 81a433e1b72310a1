//! The meaning of a query: rewrites of its text and tree for DataFusion, and DataFusion's plan of
//! it, resolved, typed and optimized.

pub(crate) mod as_of;
pub(crate) mod engine;
pub(crate) mod errors;
mod given;
pub(crate) mod join_order;
pub(crate) mod locate;
pub(crate) mod naming;
pub(crate) mod rewrite;
pub(crate) mod twice;
pub(crate) mod windows;
