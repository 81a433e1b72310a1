//! Layer 4: from SQL to jobs.
//!
//! ```text
//! script ─▶ tokens ─▶ statements ─▶ catalog, settings
//!                        │ query
//!                        ▼
//!        TUMBLE rewritten ─▶ DataFusion: names, types, optimized plan
//!                                          │
//!          woven whole ◀───────────────────┴──────▶ woven parts + rest
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
//! It knows connectors only as [`Connector`](dataflow::connector::Connector) and runs nothing,
//! except constants.
#![forbid(unsafe_code)]

mod aggregates;
mod as_of;
mod batch;
mod between;
mod bounds;
mod broadcast;
mod catalog;
mod checked;
mod clauses;
mod computed;
mod conform;
mod ddl;
mod define;
mod depth;
mod diagnostics;
mod dialect;
mod emit;
mod equality;
mod errors;
mod every;
mod explain;
mod flink;
mod grouping;
mod growth;
mod hints;
mod insert;
mod interval;
mod join;
mod lateness;
mod lead;
mod lookup;
mod lower;
mod max_by;
mod names;
mod onward;
mod over;
mod percentile;
mod planner;
mod proctime;
mod query;
mod rank;
mod relation;
mod rewrite;
mod rows;
mod session;
mod sets;
mod settings;
mod several;
mod shared;
mod shelf;
mod side;
mod statements;
mod step;
mod sum;
mod syntax;
mod tumble;
mod twice;
mod type_syntax;
mod types;
mod unfold;
mod union;
mod view;
mod vocabulary;
mod watermark;
mod weave;

pub use diagnostics::{Diagnostic, Place};
pub use explain::{Analyzed, EndNeed, Explain, ExplainFormat, Need, Ran, RanOperator, RanWorker};
pub use planner::{Planned, Planner, Stage, Workers};
pub use settings::{SettingSpec, settings};
pub use vocabulary::{Relation, Vocabulary};
