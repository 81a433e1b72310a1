//! What a query means: its text rewritten to what DataFusion understands, and DataFusion's plan,
//! resolved, typed and optimized.

pub(crate) mod as_of;
pub(crate) mod engine;
pub(crate) mod errors;
pub(crate) mod rewrite;
pub(crate) mod twice;
pub(crate) mod windows;
