//! Layer 4: from SQL to jobs.
//!
//! ```text
//! script ─▶ tokens ─▶ statements ─▶ catalog, settings
//!                        │ query
//!                        ▼
//!        TUMBLE rewritten ─▶ DataFusion: names, types, optimized plan
//!                                          │
//!        lowered whole ◀───────────────────┴──────▶ lowered parts + rest
//!                  │                                      │
//!        operators into the sink         operators into a batch stage into the sink
//! ```
//!
//! DataFusion parses queries, types and optimizes them, and evaluates expressions; what rows meet,
//! when and where is decided here. A [`Planner`] makes [`Stage`]s of scripts; every node plans the
//! same script and gets the same jobs.
//!
//! What it keeps:
//! - an error points at the token that the user wrote ([`Diagnostic`]), and all independent errors
//!   come together;
//! - over input that never ends, everything streams or is refused; over bounded input, what does
//!   not stream runs in DataFusion when all input has been read;
//! - what a query needs in memory is a sum of named limits ([`Explain::memory`]).
//!
//! Each folder calls those above it in this list only:
//!
//! | folder | what it knows |
//! |---|---|
//! | `text` | tokens, statements, types, settings, diagnostics |
//! | `expr` | functions and aggregates of our own, and how DataFusion's are held |
//! | `catalog` | tables, views, and what a scan adds to a source |
//! | `logical` | rewrites of queries, windows in FROM, DataFusion's plan |
//! | `explain` | what EXPLAIN says, before and after a run |
//! | `lower` | from a plan to operators, one kind of node a file |
//! | `planner` | scripts, fragments of streams, the names that are known |
//!
//! It knows connectors only as [`Connector`](dataflow::connector::Connector) and runs nothing,
//! except constants.
#![forbid(unsafe_code)]

mod catalog;
mod explain;
mod expr;
mod logical;
mod lower;
mod planner;
mod text;
mod workers;

pub use explain::{Analyzed, EndNeed, Explain, Need, Ran, counters_from_json, counters_to_json};
pub use expr::batch::{BatchFunction, FunctionVolatility};
pub use expr::batch_aggregate::{BatchAggregate, BatchGroups};
pub use expr::given::{CalledFunction, FunctionUsage};
pub use planner::vocabulary::{NamedRelation, Vocabulary};
pub use planner::{Planned, Planner, Stage};
pub use text::diagnostics::{Diagnostic, Place};
pub use text::settings::{Scope, SettingSpec, settings};
pub use text::statements::ExplainFormat;
pub use workers::Workers;
