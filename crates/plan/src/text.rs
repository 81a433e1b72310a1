//! A script as text: its tokens with their places, the statements that are ours, types, settings
//! and bounds; and [`diagnostics`], which point into it.

pub(crate) mod bounds;
pub(crate) mod clauses;
pub(crate) mod ddl;
pub(crate) mod depth;
pub(crate) mod diagnostics;
pub(crate) mod dialect;
pub(crate) mod emit;
pub(crate) mod file_names;
pub(crate) mod hints;
pub(crate) mod interval;
pub(crate) mod java_pattern;
pub(crate) mod names;
pub(crate) mod outline;
pub(crate) mod refusal;
pub(crate) mod settings;
pub(crate) mod statements;
pub(crate) mod syntax;
pub(crate) mod type_syntax;
pub(crate) mod types;
pub(crate) mod units;
pub(crate) mod wording;
