//! Functions that the program gives.

use std::sync::Arc;

use crate::expr::batch::BatchFunction;
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
        let refused = |message: String| Diagnostic::at(Place::default(), message);
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(is_word) || name.starts_with("__") {
            let error = refused(format!("'{name}' cannot be the name of a function"));
            return Err(error.hint("small letters, digits and '_' can"));
        }
        if self.engine.add_function(function) {
            return Ok(());
        }
        Err(refused(format!("there is a function '{name}' already")).hint("choose another name"))
    }
}
