//! Functions and aggregates that the program adds to those of the engine.

use std::sync::Arc;

use crate::expr::batch::{self, BatchFunction};
use crate::expr::batch_aggregate::{self, BatchAggregate};
use crate::logical::engine::Engine;

impl Engine {
    /// Adds a function of the program, or replaces the one of its name that it gave before. `false`
    /// if another function has the name.
    pub(crate) fn add_function(&mut self, function: Arc<dyn BatchFunction>) -> bool {
        let name = function.name().to_owned();
        let is_given = self.given.contains(&name);
        if !is_given && self.function_names().any(|known| known == name) {
            return false;
        }
        self.forget_given(&name);
        self.given.push(name);
        self.functions.push(batch::called(function));
        true
    }

    /// Adds an aggregate of the program, as [`add_function`](Self::add_function) does a function.
    pub(crate) fn add_aggregate(&mut self, aggregate: Arc<dyn BatchAggregate>) -> bool {
        let name = aggregate.name().to_owned();
        if !self.given.contains(&name) && self.function_names().any(|known| known == name) {
            return false;
        }
        self.forget_given(&name);
        self.given.push(name);
        self.aggregates.push(Arc::new(batch_aggregate::called(aggregate)));
        true
    }

    fn forget_given(&mut self, name: &str) {
        if self.given.iter().any(|given| given == name) {
            self.given.retain(|given| given != name);
            self.functions.retain(|udf| udf.name() != name);
            self.aggregates.retain(|udf| udf.name() != name);
        }
    }
}
