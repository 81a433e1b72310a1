//! Functions that the program gives.

use std::sync::Arc;

use crate::expr::batch::BatchFunction;
use crate::expr::batch_aggregate::BatchAggregate;
use crate::planner::Planner;
use crate::text::diagnostics::{Diagnostic, Place};

impl Planner {
    /// Adds a function to those of SQL. One of the same name that was added before is replaced;
    /// plans that were made go on with that one.
    ///
    /// # Errors
    /// When the name is that of another function, or cannot be one.
    pub fn add_function(&mut self, function: Arc<dyn BatchFunction>) -> Result<(), Diagnostic> {
        let name = function.name().to_owned();
        check_name(&name)?;
        added(&name, self.engine.add_function(function))
    }

    /// Adds an aggregate; the rest is as for [`add_function`](Self::add_function).
    ///
    /// # Errors
    /// When the name is that of another function, or cannot be one, or it has no arguments or no
    /// state.
    pub fn add_aggregate(&mut self, aggregate: Arc<dyn BatchAggregate>) -> Result<(), Diagnostic> {
        let name = aggregate.name().to_owned();
        check_name(&name)?;
        for (what, types) in [("arguments", aggregate.arguments()), ("state", aggregate.state())] {
            if types.is_empty() {
                return Err(refused(format!("aggregate '{name}' has no {what}")));
            }
        }
        added(&name, self.engine.add_aggregate(aggregate))
    }
}

fn refused(message: String) -> Diagnostic {
    Diagnostic::at(Place::default(), message)
}

fn check_name(name: &str) -> Result<(), Diagnostic> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_word) || name.starts_with("__") {
        let error = refused(format!("'{name}' cannot be the name of a function"));
        return Err(error.hint("small letters, digits and '_' can"));
    }
    Ok(())
}

fn added(name: &str, is_added: bool) -> Result<(), Diagnostic> {
    if is_added {
        return Ok(());
    }
    Err(refused(format!("there is a function '{name}' already")).hint("choose another name"))
}
