//! The builds that a scan waits for on one worker, since they say which of its rows are needed.
//!
//! A scan waits only for builds of joins behind it, and the scans that fill such a build are not
//! behind the join: so no two wait for each other. Each build is announced, with or without a
//! filter, whether its input had rows or not and also when the query is stopped.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::connector::join_filter::JoinFilter;
use crate::connector::predicate::JoinFilters;
use crate::error::DataflowError;
use crate::job::{Operator, ProbedBuild};
use crate::runtime::scheduler::{Event, Timers};

/// The builds of one scan.
pub(crate) struct AwaitedBuilds {
    filters: Arc<JoinFilters>,
    /// Builds that are not complete.
    left: Cell<usize>,
    moved: Event,
    waits_since: Cell<Option<u64>>,
}

impl AwaitedBuilds {
    fn new(builds: usize) -> Self {
        let (filters, moved) = (Arc::default(), Event::default());
        Self { filters, left: Cell::new(builds), moved, waits_since: Cell::new(None) }
    }

    /// The filters of the builds that are complete.
    pub(crate) fn filters(&self) -> Arc<JoinFilters> {
        self.filters.clone()
    }

    /// Waits until all builds are complete.
    pub(crate) async fn wait(&self, timers: &Timers) {
        let whole = || (self.left.get() == 0).then_some(());
        if whole().is_none() {
            self.waits_since.set(Some(timers.now_ns()));
        }
        self.moved.wait_for(whole).await;
    }

    fn announce(&self, column: usize, filter: Option<Arc<JoinFilter>>) {
        if let Some(filter) = filter {
            self.filters.add(column, filter);
        }
        self.left.set(self.left.get().saturating_sub(1));
        self.moved.notify();
    }
}

/// Where a join announces a key of its build: a scan, and the column that is looked up.
struct Listener {
    key: usize,
    column: usize,
    scan: Rc<AwaitedBuilds>,
}

/// The scans that wait for the build of a join.
#[derive(Default)]
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    /// Announces that the build is complete. `filter` gives the filter of a key, by its number, if
    /// there is one.
    pub(crate) fn announce(
        &self,
        mut filter: impl FnMut(usize) -> Result<Option<Arc<JoinFilter>>, DataflowError>,
    ) -> Result<(), DataflowError> {
        for Listener { key, column, scan } in &self.0 {
            scan.announce(*column, filter(*key)?);
        }
        Ok(())
    }

    /// The time since which a scan waits.
    pub(crate) fn waits_since(&self) -> Option<u64> {
        self.0.iter().filter_map(|listener| listener.scan.waits_since.get()).min()
    }
}

/// The builds that the scans of a job wait for, and by join the scans that wait for its build.
pub(crate) struct BuildsOfScans {
    pub(crate) scans: Vec<Option<Rc<AwaitedBuilds>>>,
    listeners: Vec<Cell<Listeners>>,
}

impl BuildsOfScans {
    pub(crate) fn new(operators: &[Operator]) -> Self {
        let mut listeners: Vec<Listeners> =
            operators.iter().map(|_| Listeners::default()).collect();
        let mut scan = |operator: &Operator| {
            let builds = &operator.builds;
            let scan = (!builds.is_empty()).then(|| Rc::new(AwaitedBuilds::new(builds.len())))?;
            for &ProbedBuild { join, key, column } in builds {
                listeners[join].0.push(Listener { key, column, scan: scan.clone() });
            }
            Some(scan)
        };
        let scans = operators.iter().map(&mut scan).collect();
        Self { scans, listeners: listeners.into_iter().map(Cell::new).collect() }
    }

    /// The scans that wait for the build of a join.
    pub(crate) fn listeners(&self, join: u32) -> Listeners {
        self.listeners[join as usize].take()
    }
}
