//! A query that is stopped while the table of a lookup join is read, on two workers.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataflow::error::ConnectorError;
use dataflow::job::{Edge, JoinKind, Lookup, Operator, OperatorKind, Scan, SinkSpec};
use dataflow::source::{Next, Position, SplitReader};
use dataflow::worker::Signals;

use crate::flows::Flows;
use crate::local_plan::{Collected, WORKERS, batch, run_job, schema, source_of};

/// A reader that never ends. It asks for the end of the query with the
/// batch of this number.
#[derive(Clone)]
struct Endless {
    stops_at: usize,
    batches: Arc<AtomicUsize>,
    signals: Arc<Signals>,
}

impl SplitReader for Endless {
    fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
        let number = 1 + self.batches.fetch_add(1, Ordering::Relaxed);
        assert!(number <= self.stops_at, "it is read after the query was stopped");
        if number == self.stops_at {
            self.signals.stop();
        }
        let keys = vec![number as i64; 10];
        Ok(Next::Batch(batch(&["k", "v"], vec![keys.clone(), keys])))
    }

    fn position(&self) -> Position {
        Position::none("t")
    }
}

#[test]
fn a_table_is_not_read_after_a_stop_and_rows_that_wait_for_it_are_dropped() {
    for (stops_at, kind) in [(1, JoinKind::Inner), (7, JoinKind::Left), (40, JoinKind::LeftAnti)] {
        let signals = Arc::<Signals>::default();
        let batches = Arc::new(AtomicUsize::new(0));
        let reader = Endless { stops_at, batches: batches.clone(), signals: signals.clone() };
        let schema_of_table = schema(&["k", "v"]);
        let table = Flows { schema: schema_of_table, bounded: true, splits: WORKERS, reader };
        let both = schema(&["k", "k", "v"]);
        let lookup = Lookup {
            table: Scan::new("d", Arc::new(table)),
            step: None,
            is_pulled: false,
            refresh_ns: None,
            bytes_max: 1 << 30,
            keys: [vec![0], vec![0]],
            kind,
            on: None,
            schema: if kind == JoinKind::LeftAnti { schema(&["k"]) } else { both.clone() },
            both,
        };
        let collected = Collected::default();
        let schema = lookup.schema.clone();
        let sink = SinkSpec { sink: Arc::new(collected.clone()), schema };
        let edge = |from| vec![vec![Edge { from, step: None, timed: false, lateness: 0 }]];
        let keys = OperatorKind::Source(Scan::new("t", source_of((0..5_000).collect())));
        let operators = vec![
            Operator::new("t", vec![], keys),
            Operator::new("l", edge(0), OperatorKind::Lookup(Box::new(lookup))),
            Operator::new("s", edge(1), OperatorKind::Sink(sink)),
        ];
        run_job(operators, &signals).unwrap();
        assert_eq!(batches.load(Ordering::Relaxed), stops_at, "{kind:?}");
        assert!(collected.0.lock().unwrap().is_empty(), "{kind:?}");
    }
}
