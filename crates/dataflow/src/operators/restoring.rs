//! The saved rows of operators, as one worker takes them up again.
//!
//! Every worker is shown all saved rows of an operator, whoever saved them, and keeps those that
//! its exchange would lead to it now. So the number of workers and the exchange may be others than
//! before. Where rows stay on the worker that reads them, nothing says where the next row of a key
//! will be: then each worker takes what it has saved itself, and their number must be the same.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;

use crate::checkpoint::{OperatorSnapshot, Restored, SavedRows};
use crate::error::DataflowError;
use crate::exchange::{Partition, uppar};
use crate::job::{
    Distribution, Exchange, JobGraph, Keyed, MultiPartitioner, Operator, OperatorKind, RowOwner,
    SavedPart, SavedParts, SavedState,
};
use crate::optimize::placement::{Placements, keys_of};
use crate::rows::wire::compact;

/// The worker that has the rows which all have.
const FIRST: u32 = 0;

/// The saved state of a job, for one worker.
pub(crate) struct Restoring<'a> {
    operators: &'a [Operator],
    placements: Placements,
    worker: u32,
    workers: u32,
    /// The workers that lead keys.
    stateful: u32,
    /// The workers of the job when it was saved.
    saved_workers: u32,
    /// By operator what each worker has saved, by worker.
    snapshots: BTreeMap<u32, BTreeMap<u32, &'a OperatorSnapshot>>,
}

/// The rows of a part that a worker takes.
enum Taker {
    /// All of them.
    All,
    /// None.
    Nothing,
    /// Those that are led to it.
    Led { partition: Partition, width: usize },
    /// Those that it is among the receivers of.
    Listed { multi_partitioner: Arc<dyn MultiPartitioner>, width: usize },
    /// Those of some savers: any division is right.
    BySaver,
    /// Those that it has saved itself.
    Own,
}

impl<'a> Restoring<'a> {
    /// The state of `restored` that belongs to worker `worker` of `workers`.
    pub(crate) fn new(
        restored: &'a Restored,
        job: &'a JobGraph,
        worker: u32,
        workers: u32,
    ) -> Self {
        let mut snapshots: BTreeMap<u32, BTreeMap<u32, &OperatorSnapshot>> = BTreeMap::new();
        for saved in &restored.workers {
            for snapshot in &saved.operators {
                snapshots.entry(snapshot.operator).or_default().insert(saved.worker, snapshot);
            }
        }
        Self {
            operators: &job.operators,
            placements: Placements::of(&job.operators),
            worker,
            workers,
            stateful: job.settings.stateful(workers),
            saved_workers: restored.workers.len() as u32,
            snapshots,
        }
    }

    /// The watermark up to which the results of an operator were emitted here; `i64::MIN` if it was
    /// not saved. Where workers hear of each other's progress it is the same on all of them.
    pub(crate) fn watermark(&self, operator: u32) -> i64 {
        let Some(of_workers) = self.snapshots.get(&operator) else { return i64::MIN };
        let all = || of_workers.values().map(|snapshot| snapshot.watermark);
        let own = of_workers.get(&self.worker).map(|snapshot| snapshot.watermark);
        match self.operators.get(operator as usize).map(|of| of.spec().exchange()) {
            Some(Some(Exchange::Forward)) if !self.is_even(of_workers) => own.unwrap_or(i64::MIN),
            _ => all().max().unwrap_or(i64::MIN),
        }
    }

    /// Whether all instances of an operator were saved at the same watermark.
    fn is_even(&self, of_workers: &BTreeMap<u32, &OperatorSnapshot>) -> bool {
        let mut all = of_workers.values().map(|snapshot| snapshot.watermark);
        let first = all.next();
        of_workers.len() as u32 == self.saved_workers && all.all(|other| Some(other) == first)
    }

    /// Gives the saved rows of an operator that belong to this worker: by the worker that saved
    /// them, those that were in memory in their order, and then those of a disk by their part, the
    /// last part first.
    ///
    /// # Errors
    /// [`DataflowError::Recovery`] when the rows are not what the operator has saved, or it cannot
    /// be told whose they are on this number of workers; errors of `take`.
    pub(crate) fn each(
        &self,
        operator: u32,
        mut take: impl FnMut(SavedRows) -> Result<(), DataflowError>,
    ) -> Result<(), DataflowError> {
        let Some(of_workers) = self.snapshots.get(&operator) else { return Ok(()) };
        let Some(of) = self.operators.get(operator as usize) else {
            let message = format!("the saved state is of an operator {operator}: there is none");
            return Err(DataflowError::Recovery(message));
        };
        let SavedState::Parts(SavedParts { version, parts }) = of.spec().saved_state() else {
            return Err(self.refused(of, "which keeps none now"));
        };
        let even = self.is_even(of_workers);
        let takers = parts.iter().map(|part| self.taker(operator as usize, &part.owner, even));
        let takers: Vec<Taker> = takers.collect();
        for (&saver, snapshot) in of_workers {
            if snapshot.version != version {
                let why = format!("in form {}, not {version}", snapshot.version);
                return Err(self.refused(of, &why));
            }
            let expected = |part: u32| {
                let at = part as usize;
                let both = parts.get(at).zip(takers.get(at));
                both.ok_or_else(|| self.refused(of, &format!("with a part {at} that it has not")))
            };
            let mut one = |SavedRows { part, rows }: SavedRows| {
                let (expected, taker) = expected(part)?;
                self.check(of, part as usize, expected, &rows)?;
                match self.taken(of, taker, saver, &rows)? {
                    // A few rows must not hold what all workers have saved.
                    Some(own) => take(SavedRows { part, rows: compact(own) }),
                    None => Ok(()),
                }
            };
            snapshot.parts.iter().cloned().try_for_each(&mut one)?;
            // State is loaded before the rows that have waited for it, which are the parts in
            // front.
            let mut stored: Vec<_> = snapshot.stored.iter().collect();
            stored.sort_by_key(|stored| Reverse(stored.part));
            for stored in stored {
                let (_, taker) = expected(stored.part)?;
                if self.is_anothers(taker, saver) {
                    continue;
                }
                stored.read()?.try_for_each(&mut one)?;
            }
        }
        Ok(())
    }

    /// Whether no row that a worker has saved can be for this one: they need not be read.
    fn is_anothers(&self, taker: &Taker, saver: u32) -> bool {
        match taker {
            Taker::Nothing => true,
            Taker::BySaver => saver % self.workers != self.worker,
            Taker::Own => self.workers == self.saved_workers && saver != self.worker,
            Taker::All | Taker::Led { .. } | Taker::Listed { .. } => false,
        }
    }

    fn refused(&self, operator: &Operator, why: &str) -> DataflowError {
        let message = format!("the state of operator '{}' was saved {why}", operator.name);
        DataflowError::Recovery(message)
    }

    /// Checks that saved rows have the columns of their part.
    fn check(
        &self,
        operator: &Operator,
        part: usize,
        expected: &SavedPart,
        rows: &RecordBatch,
    ) -> Result<(), DataflowError> {
        let types = |schema: &arrow::datatypes::Schema| {
            let types = schema.fields().iter().map(|field| field.data_type().clone());
            types.collect::<Vec<_>>()
        };
        let (got, expected) = (types(rows.schema_ref()), types(&expected.schema));
        if got == expected {
            return Ok(());
        }
        let why = format!("with columns {got:?} in part {part}, and it has {expected:?}");
        Err(self.refused(operator, &why))
    }

    /// The rows of a part that this worker takes.
    fn taker(&self, number: usize, owner: &RowOwner, even: bool) -> Taker {
        let first = || if self.worker == FIRST { Taker::All } else { Taker::Nothing };
        let operator = &self.operators[number];
        match owner {
            RowOwner::Every => Taker::All,
            RowOwner::First => first(),
            RowOwner::Keys(pairs) => {
                let column = |key: &usize| pairs.iter().find(|(of, _)| of == key).map(|at| at.1);
                let columns: Option<Vec<usize>> =
                    operator.spec().keys(0).iter().map(column).collect();
                match columns {
                    Some(columns) => self.led(operator, &columns, even),
                    None => Taker::Own,
                }
            }
            RowOwner::Input(input) => match &operator.kind {
                OperatorKind::Keyed(keyed) => self.as_input(operator, keyed, *input, even),
                _ => Taker::Own,
            },
        }
    }

    /// Those of a key whose values are in these columns.
    fn led(&self, operator: &Operator, columns: &[usize], even: bool) -> Taker {
        let Self { worker, workers, stateful, .. } = *self;
        let partition = match operator.spec().led_by() {
            _ if workers == 1 && self.saved_workers == 1 => return Taker::All,
            Some(Exchange::Forward) => return self.in_place(operator, columns, even),
            _ if workers == 1 => return Taker::All,
            Some(Exchange::UpPar) => uppar(columns, worker, workers),
            Some(Exchange::Merge) if operator.spec().merges() => {
                Partition::in_blocks(columns, worker, workers, stateful)
            }
            _ => Partition::by_key(columns, worker, workers, stateful),
        };
        Taker::Led { partition, width: usize::MAX }
    }

    /// The same where rows are together already, because an operator before has led them.
    fn in_place(&self, operator: &Operator, columns: &[usize], even: bool) -> Taker {
        let Self { worker, workers, stateful, .. } = *self;
        if workers == 1 {
            // There was one worker, or those that there were had the same clock.
            return if even { Taker::All } else { Taker::Own };
        }
        let keys = keys_of(&operator.inputs, operator.spec());
        let Some(fit) = self.placements.fits(&operator.inputs, &keys).filter(|_| even) else {
            return Taker::Own;
        };
        let Some((leading, by)) = fit.leading() else { return Taker::Own };
        let columns: Option<Vec<usize>> =
            leading.iter().map(|&key| columns.get(key).copied()).collect();
        let Some(columns) = columns else { return Taker::Own };
        let partition = match by {
            Exchange::Merge => Partition::in_blocks(&columns, worker, workers, stateful),
            Exchange::UpPar => uppar(&columns, worker, workers),
            Exchange::Shuffle | Exchange::Forward => {
                Partition::by_key(&columns, worker, workers, stateful)
            }
        };
        Taker::Led { partition, width: usize::MAX }
    }

    /// Those that the exchange of an input leads here.
    fn as_input(&self, operator: &Operator, keyed: &Keyed, input: usize, even: bool) -> Taker {
        let Self { worker, workers, stateful, .. } = *self;
        let Some(of) = keyed.inputs.get(input) else { return Taker::Nothing };
        let width = of.schema.fields().len();
        if let Some(multi_partitioner) = keyed.operator.multi_partitioner(input) {
            return Taker::Listed { multi_partitioner, width };
        }
        let several = |number| keyed.operator.multi_partitioner(number).is_some();
        if keyed.exchange == Exchange::Forward && !(0..keyed.inputs.len()).any(several) {
            return self.led(operator, &of.keys, even);
        }
        match (of.distribution, keyed.operator.partitioner(input)) {
            (Distribution::Broadcast, _) => Taker::All,
            _ if workers == 1 => Taker::All,
            (Distribution::RoundRobin | Distribution::Partner, _) => Taker::BySaver,
            (Distribution::Local, _) => self.local(operator, keyed, input),
            (Distribution::Hash, Some(partitioner)) => {
                let partition = Partition::by_function(partitioner, worker, workers, stateful);
                Taker::Led { partition, width }
            }
            (Distribution::Hash, None) => self.led(operator, &of.keys, even),
        }
    }

    /// Those of an input whose rows stay where they are.
    fn local(&self, operator: &Operator, keyed: &Keyed, input: usize) -> Taker {
        let Self { worker, workers, stateful, .. } = *self;
        let stays = self.placements.stay(&operator.inputs, operator.spec());
        if stays.get(input) == Some(&true) {
            // As the operator's own exchange would lead them.
            let keys = &keyed.inputs[input].keys;
            let partition = match keyed.exchange {
                Exchange::UpPar => uppar(keys, worker, workers),
                _ => Partition::by_key(keys, worker, workers, stateful),
            };
            return Taker::Led { partition, width: usize::MAX };
        }
        // Beside rows that are everywhere it does not matter where a row is.
        let broadcast =
            keyed.inputs.iter().any(|other| other.distribution == Distribution::Broadcast);
        if broadcast { Taker::BySaver } else { Taker::Own }
    }

    /// The rows of a batch that this worker takes, if there are any.
    fn taken(
        &self,
        operator: &Operator,
        taker: &Taker,
        saver: u32,
        rows: &RecordBatch,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let columns = |width: usize| {
            let columns: Vec<usize> = (0..width.min(rows.num_columns())).collect();
            rows.project(&columns)
        };
        let is_own = match taker {
            _ if rows.num_rows() == 0 => false,
            Taker::All => true,
            Taker::Nothing => false,
            Taker::BySaver => saver % self.workers == self.worker,
            Taker::Own if self.workers == self.saved_workers => saver == self.worker,
            Taker::Own => {
                let why = format!(
                    "on {} workers, and its rows stay where they are read: it cannot be loaded on \
                     {}. Run the job on {0} workers, or anew",
                    self.saved_workers, self.workers
                );
                return Err(self.refused(operator, &why));
            }
            Taker::Led { partition, width } => {
                let mut owners = vec![];
                partition.owners(&columns(*width)?, None, &mut owners)?;
                return some_of(rows, |row| owners[row] == self.worker);
            }
            Taker::Listed { multi_partitioner, width } => {
                let mut sets = vec![];
                multi_partitioner.partition(&columns(*width)?, self.workers, &mut sets)?;
                let is_here = |row: usize| {
                    sets.get(row).is_some_and(|set| set.iter().any(|to| to == self.worker))
                };
                return some_of(rows, is_here);
            }
        };
        Ok(is_own.then(|| rows.clone()))
    }
}

/// Those rows of a keyed operator on worker `worker` of `workers` which no other worker saves too:
/// what was sent to several is saved by the first of them.
///
/// # Errors
/// When it cannot be told to whom a row was sent.
pub(crate) fn saved_here(
    keyed: &Keyed,
    (worker, workers): (u32, u32),
    owner: &RowOwner,
    rows: RecordBatch,
) -> Result<Option<RecordBatch>, DataflowError> {
    let &RowOwner::Input(input) = owner else { return Ok(Some(rows)) };
    let Some(of) = keyed.inputs.get(input) else { return Ok(Some(rows)) };
    if let Some(to) = keyed.operator.multi_partitioner(input) {
        let (columns, mut sets) = ((0..of.schema.fields().len()).collect::<Vec<_>>(), vec![]);
        to.partition(&rows.project(&columns)?, workers, &mut sets)?;
        let first = |row: usize| sets.get(row).and_then(|set| set.iter().next());
        return some_of(&rows, |row| first(row) == Some(worker));
    }
    Ok(Some(rows).filter(|_| !is_saved_by_first(keyed, worker, owner)))
}

/// Whether a worker saves no rows of an owner at all, for each worker has all of them and the first
/// one saves them.
pub(crate) fn is_saved_by_first(keyed: &Keyed, worker: u32, owner: &RowOwner) -> bool {
    let &RowOwner::Input(input) = owner else { return false };
    let Some(of) = keyed.inputs.get(input) else { return false };
    let several = |number| keyed.operator.multi_partitioner(number).is_some();
    let travels = keyed.exchange != Exchange::Forward || (0..keyed.inputs.len()).any(several);
    let is_everywhere = travels && of.distribution == Distribution::Broadcast;
    is_everywhere && !several(input) && worker != FIRST
}

/// Some rows of a batch, if there are any.
fn some_of(
    rows: &RecordBatch,
    which: impl Fn(usize) -> bool,
) -> Result<Option<RecordBatch>, DataflowError> {
    let some: Vec<u32> =
        (0..rows.num_rows()).filter(|&row| which(row)).map(|row| row as u32).collect();
    Ok(match some.len() {
        0 => None,
        all if all == rows.num_rows() => Some(rows.clone()),
        _ => Some(take_record_batch(rows, &UInt32Array::from(some))?),
    })
}
