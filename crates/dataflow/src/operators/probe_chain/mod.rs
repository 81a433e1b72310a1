//! Several joins in one pass: rows of the first one look up all builds as numbers, and what comes
//! behind the last one is emitted there.
//!
//! ```text
//! batch ─▶ stage 2 ─▶ (row, row of build 2) ─▶ stage 0 ─▶ (row, rows of both) ─▶ columns
//!          in the order of [`order`]; only columns of keys are copied on the way
//! ```
//!
//! The head, which is the first join of the plan, asks for a [`ChainPass`] for each batch. It gets
//! none while a build is not complete or is on disk, and where the job saves rounds, whose
//! markers go from operator to operator: then rows go that way too.
//!
//! A pass lets others run after [`TURN_LOOKUPS`] lookups without a row behind all stages: a stage
//! may give any number of rows, and one behind it drop them all.

mod order;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use self::order::ProbeOrder;
use crate::error::DataflowError;
use crate::job::{ChainColumn, ProbeChain};
use crate::operators::keyed::TURN_BATCHES;
use crate::operators::probe_stage::{EmittedRows, ProbeBuild, ProbeOutput, ProbeStage};
use crate::pairing::{Pairing, ProbeSide, Terms};
use crate::rows::selection::Selection;
use crate::runtime::metrics::Metrics;

/// The batches that are looked up in stages behind the first one, before others run, while no row
/// comes out behind the last one. As many batches of a single join are emitted between two turns.
pub(crate) const TURN_LOOKUPS: usize = TURN_BATCHES;

/// The chain of a head on one worker.
pub(crate) struct ChainRun {
    chain: Arc<ProbeChain>,
    rows_max: usize,
    /// The order and its places, once the builds are complete.
    ordered: RefCell<Option<Ordered>>,
    /// The schema of rows between stages, of which nothing but numbers is asked.
    schema: SchemaRef,
}

/// An order, and where the columns are then.
struct Ordered {
    order: ProbeOrder,
    places: Rc<Places>,
}

/// The columns of rows on their way through the stages in one order. The rows of the head come
/// first, and each stage adds those of its build.
struct Places {
    /// The stages in their order.
    order: Vec<usize>,
    /// By place in the order, the columns that are looked up.
    keys: Vec<Vec<usize>>,
    /// The columns that are emitted.
    emitted: Vec<usize>,
}

impl Places {
    fn new(chain: &ProbeChain, order: &[usize]) -> Self {
        let mut firsts = vec![0; chain.stages.len()];
        let (mut width, mut keys) = (chain.width, vec![]);
        for &stage in order {
            let of = |key: &ChainColumn| place(&firsts, *key);
            keys.push(chain.stages[stage].keys.iter().map(of).collect());
            firsts[stage] = width;
            width += chain.stages[stage].width;
        }
        let emitted = chain.columns.iter().map(|column| place(&firsts, *column)).collect();
        Self { order: order.to_vec(), keys, emitted }
    }
}

/// The place of a column, where the first column of each build is known.
fn place(firsts: &[usize], ChainColumn { build, column }: ChainColumn) -> usize {
    build.map_or(0, |build| firsts[build]) + column
}

impl ChainRun {
    /// Of a chain, if the operator of this number is its head and rows pass without markers.
    pub(crate) fn new(
        chain: Option<&Arc<ProbeChain>>,
        tag: u32,
        has_rounds: bool,
        rows_max: usize,
    ) -> Option<Self> {
        let chain = chain.filter(|of| of.joins.first() == Some(&(tag as usize)))?.clone();
        let (ordered, schema) = (RefCell::default(), Arc::new(Schema::empty()));
        (!has_rounds).then_some(Self { chain, rows_max, ordered, schema })
    }

    /// The pass of a batch through all stages, if all builds are complete and in memory.
    pub(crate) fn pass<'a>(
        &'a self,
        head: &'a dyn ProbeStage,
        rows: &Selection,
    ) -> Result<Option<ChainPass<'a>>, DataflowError> {
        let mut stages = vec![head];
        while stages.len() < self.chain.stages.len() {
            let next = stages.last().and_then(|of| of.next());
            let Some(next) = next else { return Ok(None) };
            stages.push(next);
        }
        let builds: Option<Vec<ProbeBuild>> = stages.iter().map(|stage| stage.build()).collect();
        let Some(builds) = builds else { return Ok(None) };
        let places = self.places(&builds);
        let lookup = |(keys, &stage): (&Vec<usize>, &usize)| {
            let probe = ProbeSide { side: 0, keys };
            let kind = self.chain.stages[stage].kind;
            Pairing::new(probe, [], builds[stage].hashed.clone(), kind)
        };
        let lookups = places.keys.iter().zip(&places.order).map(lookup).collect();
        let passes = builds.iter().map(|build| build.passes).collect();
        let mut pass = ChainPass { run: self, stages, passes, places, lookups, at: Some(0) };
        pass.look_up(0, rows.clone())?;
        Ok(Some(pass))
    }

    /// The places of the columns in the present order.
    fn places(&self, builds: &[ProbeBuild]) -> Rc<Places> {
        let mut ordered = self.ordered.borrow_mut();
        let ordered = ordered.get_or_insert_with(|| {
            let stage = |(at, build): (usize, &ProbeBuild)| {
                (build.hashed.lookup_cost(), self.chain.needs(at))
            };
            let order = ProbeOrder::new(builds.iter().enumerate().map(stage));
            let places = Rc::new(Places::new(&self.chain, order.order()));
            Ordered { order, places }
        });
        ordered.places.clone()
    }

    fn count(&self, stage: usize, came: usize, passed: usize) {
        if let Some(ordered) = &mut *self.ordered.borrow_mut() {
            ordered.order.count(stage, came, passed);
        }
    }

    /// A batch is through; the next one may find another order.
    fn end_batch(&self, head: &dyn ProbeStage) {
        let Some(ordered) = &mut *self.ordered.borrow_mut() else { return };
        if !ordered.order.end_batch() {
            return;
        }
        ordered.places = Rc::new(Places::new(&self.chain, ordered.order.order()));
        if let Some(counters) = head.counters() {
            Metrics::add(&counters.order_changes, 1);
        }
    }
}

/// A batch on its way through the stages of a chain.
pub(crate) struct ChainPass<'a> {
    run: &'a ChainRun,
    /// By stage, in the order of the plan.
    stages: Vec<&'a dyn ProbeStage>,
    passes: Vec<EmittedRows>,
    places: Rc<Places>,
    /// By place in the order.
    lookups: Vec<Pairing>,
    /// The place in the order whose next rows are taken; nothing when the batch is through.
    at: Option<usize>,
}

impl<'a> ChainPass<'a> {
    /// The last stage of the plan, which emits the rows.
    pub(crate) fn last(&self) -> &'a dyn ProbeStage {
        self.stages[self.stages.len() - 1]
    }

    /// The next rows behind all stages, or a turn after [`TURN_LOOKUPS`] lookups without any.
    ///
    /// # Errors
    /// When a column of keys cannot be copied.
    pub(crate) fn next(&mut self) -> Result<ProbeOutput, DataflowError> {
        let run = self.run;
        let mut lookups = 0;
        while let Some(at) = self.at {
            let stage = self.places.order[at];
            let terms = Terms {
                kind: run.chain.stages[stage].kind,
                marks: false,
                on: None,
                schema: &run.schema,
                both: &run.schema,
            };
            let Some((rows, _)) = self.lookups[at].next_probed(terms, run.rows_max)? else {
                self.at = at.checked_sub(1);
                continue;
            };
            self.passed(stage, rows.len());
            if at + 1 == self.lookups.len() {
                let schema = run.chain.schema.clone();
                return Ok(ProbeOutput::Rows(rows.project(&self.places.emitted, schema)));
            }
            // The results of the lookup wait in its stage until the next call.
            self.at = Some(at + 1);
            self.look_up(at + 1, rows)?;
            lookups += 1;
            if lookups == TURN_LOOKUPS {
                return Ok(ProbeOutput::Yield);
            }
        }
        if !self.lookups.is_empty() {
            run.end_batch(self.stages[0]);
            self.lookups.clear();
        }
        Ok(ProbeOutput::End)
    }

    /// Gives rows to the stage of a place in the order.
    fn look_up(&mut self, at: usize, rows: Selection) -> Result<(), DataflowError> {
        let stage = self.places.order[at];
        self.stages[stage].count_probed(rows.len());
        if let Some(counters) = self.stages[stage].counters() {
            let came = rows.len() as u64;
            Metrics::add(&counters.chain_rows, came);
            // Rows that come to the head are counted there.
            Metrics::add(&counters.rows_in, if stage > 0 { came } else { 0 });
        }
        self.run.count(stage, rows.len(), 0);
        if let Some(rows) = self.passes[stage].of_rows(rows, &self.places.keys[at])? {
            self.lookups[at].push(rows);
        }
        Ok(())
    }

    fn passed(&self, stage: usize, rows: usize) {
        self.run.count(stage, 0, rows);
        // Rows that the last stage of the plan emits are counted where they are pushed.
        let counters = self.stages[stage].counters().filter(|_| stage + 1 < self.stages.len());
        if let Some(counters) = counters {
            Metrics::add(&counters.rows_out, rows as u64);
        }
    }
}
