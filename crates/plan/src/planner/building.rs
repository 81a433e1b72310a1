//! The queries of a stage while it is planned.

use dataflow::job::Operator;
use dataflow::sink::ExclusiveTarget;

use crate::explain::Explained;
use crate::expr::given::GivenFunction;
use crate::lower::{Lowered, append};
use crate::planner::Planned;
use crate::text::diagnostics::{Diagnostic, Place};

/// The queries of a stage that is being planned.
#[derive(Default)]
pub(crate) struct Building {
    pub(super) operators: Vec<Operator>,
    pub(super) explained: Vec<Explained>,
    pub(super) statements: Vec<Planned>,
    pub(super) ends: Vec<usize>,
    pub(super) unbounded: bool,
    pub(super) batch: bool,
    pub(super) functions: Vec<GivenFunction>,
    /// The tables that its statements replace, and the line of each.
    pub(super) replaced: Vec<(String, usize)>,
}

impl Building {
    /// Keeps what a statement replaces as a whole.
    ///
    /// # Errors
    /// When another statement replaces it too. `place` is that of the table.
    pub(super) fn replaces(&mut self, lowered: &Lowered, place: Place) -> Result<(), Diagnostic> {
        let sinks = lowered.operators.iter().filter_map(|operator| operator.spec().sink());
        // The parts of one statement have one sink.
        let replaced = sinks.filter_map(|sink| sink.replaces()).next_back();
        let Some(ExclusiveTarget { place: replaced, option }) = replaced else { return Ok(()) };
        if let Some((_, line)) = self.replaced.iter().find(|(known, _)| *known == replaced) {
            let message = "two INSERTs of a statement set write to the same place";
            let lost = format!("the rows of the one in line {line} would be lost");
            let same = |option| format!("its table has the '{option}' of the one in line {line}");
            let error = Diagnostic::at(place, message).detail(option.map_or(lost, same));
            return Err(error.hint("INSERT the rows of both by one query, with UNION ALL"));
        }
        self.replaced.push((replaced, place.line));
        Ok(())
    }

    pub(crate) fn add(&mut self, planned: Planned, lowered: Lowered) {
        let Lowered { operators, name, bounded, batch, orders, functions } = lowered;
        GivenFunction::add_new(&mut self.functions, functions);
        let first = self.operators.len();
        append(&mut self.operators, operators);
        self.statements.push(planned);
        self.ends.push(self.operators.len());
        self.unbounded |= !bounded;
        self.batch |= batch.is_some();
        let operators = first..self.operators.len();
        self.explained.push(Explained { name, operators, batch, orders });
    }
}
