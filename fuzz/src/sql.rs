//! A script, planned against tables that are made of nothing: no file is opened, nothing is run.

use std::sync::Arc;

use connectors::{Blackhole, Generator};
use dataflow::connector::{Connector, Options};
use plan::{Planner, Workers};

/// How many jobs the script makes, or how many errors it has.
///
/// # Errors
/// When it cannot be planned.
///
/// # Panics
/// When an error says nothing, or points beside the script.
pub fn plan(text: &str) -> Result<usize, usize> {
    let nowhere: Arc<dyn Connector> = Arc::new(Blackhole::default());
    let connectors: Vec<Arc<dyn Connector>> = vec![Arc::new(Generator), nowhere.clone()];
    let mut planner = Planner::new(connectors, Workers { nodes: 2, per_node: 1 });
    planner.set_default_sink(nowhere, Options::new());
    let errors = match planner.plan(text) {
        Ok(stages) => return Ok(stages.len()),
        Err(errors) => errors,
    };
    assert!(!errors.is_empty(), "it is refused without a reason");
    let lines = text.split('\n').count();
    for error in &errors {
        assert!(!error.message.trim().is_empty(), "an error says nothing: {error:?}");
        assert!((1..=lines).contains(&error.line), "line {} of {lines}: {error:?}", error.line);
        assert!(error.column >= 1, "{error:?}");
        assert!(error.render("fuzz.sql", text, false).contains(&error.message), "{error:?}");
    }
    Err(errors.len())
}
