//! Steps of a scan: what becomes of a table's rows between its connector and the first operator.
//!
//! ```text
//! connector ─▶ SplitReader ─▶ step ─▶ step ─▶ …     a ScanReader: one split, as a reader again
//! ```
//!
//! A connector reads rows of the data and knows nothing of what a table has beside them: computed
//! columns, the time of day, the watermark, side outputs of late and of bad rows. Each of these is
//! a [`ScanStep`]. Steps neither open nor end a split, and a position of their split is one of the
//! connector's reader, with what the steps remember of the rows before it.

use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use crate::connector::position::refused;
use crate::connector::predicate::ColumnPredicate;
use crate::connector::source::{
    Next, Position, ReaderContext, SkippedCounts, SkippedRows, Source, Split, SplitReader,
};
use crate::error::ConnectorError;

/// A step of a scan, as data.
pub trait ScanStep: Send + Sync {
    /// The columns that it gives.
    fn schema(&self) -> SchemaRef;

    /// The column that the step is given which column `output` of its result is, row by row.
    fn passes_on(&self, output: usize) -> Option<usize>;

    /// Whether it gives a row for each row that it is given.
    fn keeps_rows(&self) -> bool {
        true
    }

    /// Whether its output for a row depends on that row alone, and not on earlier rows.
    fn is_stateless(&self) -> bool {
        false
    }

    /// Begins to work on a split, which is opened with `context` afterwards: a step may replace
    /// where bad rows go.
    fn open(&self, split: &Split, context: &mut ReaderContext) -> Box<dyn SplitStep>;

    /// For EXPLAIN: what it does.
    fn describe(&self) -> String;
}

/// A step at work on one split.
pub trait SplitStep: Send {
    /// Applies the step to the next rows of the split; a batch without rows is not passed on.
    ///
    /// # Errors
    /// When an expression fails on a row.
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError>;

    /// The number by which its results for the next rows depend on earlier ones: it is saved with
    /// the position of the split. `None` if they do not.
    fn remembered(&self) -> Option<u64> {
        None
    }

    /// Goes on behind rows of which the step remembered this.
    fn remember(&mut self, _: u64) {}

    /// The rows that the step has kept back, when the split has no rows now or has ended.
    ///
    /// # Errors
    /// As [`SplitStep::apply`].
    fn flush(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        Ok(None)
    }
}

/// Reads a split through the steps of its scan.
struct ScanReader {
    reader: Box<dyn SplitReader>,
    /// In the order in which rows go through them.
    steps: Vec<Box<dyn SplitStep>>,
    /// Whether the split has ended; the last rows of the steps may still have to be given.
    ended: bool,
}

/// Opens a split as [`Source::open`], with steps behind it.
///
/// # Errors
/// As [`Source::open`].
pub(crate) fn open(
    source: &dyn Source,
    steps: &[Arc<dyn ScanStep>],
    split: &Split,
    from: Option<&Position>,
    context: &ReaderContext,
) -> Result<Box<dyn SplitReader>, ConnectorError> {
    if steps.is_empty() {
        return source.open(split, from, context);
    }
    let mut context = context.clone();
    // The last sees first where bad rows go.
    let opened = steps.iter().rev().map(|step| step.open(split, &mut context));
    let mut steps: Vec<_> = opened.collect();
    steps.reverse();
    if let Some(from) = from {
        let mut saved = from.steps().iter();
        for step in steps.iter_mut().filter(|step| step.remembered().is_some()) {
            let unknown = || refused(&split.name, "it does not say what the rows had met".into());
            step.remember(*saved.next().ok_or_else(unknown)?);
        }
    }
    let reader = source.open(split, from, &context)?;
    Ok(Box::new(ScanReader { reader, steps, ended: false }))
}

impl ScanReader {
    /// Applies the steps to the rows of one read, if there were some.
    fn through(
        &mut self,
        mut rows: Option<RecordBatch>,
    ) -> Result<Option<RecordBatch>, ConnectorError> {
        for step in &mut self.steps {
            rows = match rows {
                Some(batch) => Some(step.apply(batch)?),
                None => step.flush()?,
            };
            rows = rows.filter(|batch| batch.num_rows() > 0);
        }
        Ok(rows)
    }
}

impl SplitReader for ScanReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if self.ended {
            return Ok(Next::End);
        }
        let next = self.reader.next(rows_max)?;
        self.ended = matches!(next, Next::End);
        let (rows, without) = match next {
            // Rows may come at once, though no step has let one through now.
            Next::Batch(batch) => (Some(batch), Next::Wait { until_ns: 0 }),
            nothing => (None, nothing),
        };
        Ok(self.through(rows)?.map_or(without, Next::Batch))
    }

    fn position(&self) -> Position {
        let remembered = self.steps.iter().filter_map(|step| step.remembered());
        self.reader.position().with_steps(remembered.collect())
    }

    fn owes(&self) -> bool {
        self.reader.owes()
    }

    fn has_unread(&self) -> bool {
        self.reader.has_unread()
    }
}

/// Reads a split without the rows that no operator needs.
pub(crate) struct FilteredReader {
    reader: Box<dyn SplitReader>,
    needed: ColumnPredicate,
    skipped: Arc<SkippedCounts>,
}

impl FilteredReader {
    /// `needed` is over the columns behind all steps.
    pub(crate) fn new(
        reader: Box<dyn SplitReader>,
        needed: ColumnPredicate,
        context: &ReaderContext,
    ) -> Self {
        Self { reader, needed, skipped: Arc::clone(&context.skipped) }
    }

    /// The rows of a batch that are needed.
    fn needed(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let rows = batch.num_rows();
        let needed = self.needed.matches(&|column| Arc::clone(batch.column(column)), rows)?;
        let dropped = (rows - needed.count_set_bits()) as u64;
        if dropped == 0 {
            return Ok(batch);
        }
        self.skipped.add(&SkippedRows { unmatched: dropped, ..SkippedRows::default() });
        filter_record_batch(&batch, &BooleanArray::new(needed, None))
    }
}

impl SplitReader for FilteredReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let batch = match self.reader.next(rows_max)? {
            Next::Batch(batch) => batch,
            nothing => return Ok(nothing),
        };
        let batch = self.needed(batch).map_err(|error| ConnectorError::Io {
            place: "join filter".into(),
            message: error.to_string(),
            hint: None,
        })?;
        // Rows may come at once, though no row of this batch is needed.
        Ok(if batch.num_rows() > 0 { Next::Batch(batch) } else { Next::Wait { until_ns: 0 } })
    }

    fn position(&self) -> Position {
        self.reader.position()
    }

    fn owes(&self) -> bool {
        self.reader.owes()
    }

    fn has_unread(&self) -> bool {
        self.reader.has_unread()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use fabric::clock::MonotonicClock;

    use super::*;
    use crate::connector::bad::{BadRow, BadRows};

    fn rows(values: &[i64]) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, false)]);
        let values = Int64Array::from(values.to_vec());
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(values)]).unwrap()
    }

    fn bad(reason: &str) -> BadRow {
        let (table, place, text) = ("t".into(), String::new(), String::new());
        BadRow { table, place, reason: reason.into(), text }
    }

    /// Two batches with a pause and a bad row between them, and a bad row behind them.
    struct Numbers;

    impl Source for Numbers {
        fn schema(&self) -> SchemaRef {
            rows(&[]).schema()
        }

        fn bounded(&self) -> bool {
            true
        }

        fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
            Ok(vec![Split { name: "all".into(), ..Split::default() }])
        }

        fn open(
            &self,
            split: &Split,
            from: Option<&Position>,
            context: &ReaderContext,
        ) -> Result<Box<dyn SplitReader>, ConnectorError> {
            let [call] = from.map_or(Ok([0]), |from| from.numbers("calls", 1, &split.name))?;
            Ok(Box::new(NumbersReader { call, bad: Arc::clone(&context.bad) }))
        }
    }

    struct NumbersReader {
        call: u64,
        bad: Arc<BadRows>,
    }

    impl SplitReader for NumbersReader {
        fn next(&mut self, _: usize) -> Result<Next, ConnectorError> {
            self.call += 1;
            Ok(match self.call {
                1 => Next::Batch(rows(&[1, 2, 3])),
                2 => {
                    self.bad.add(bad("first"));
                    Next::Wait { until_ns: 7 }
                }
                3 => Next::Batch(rows(&[5])),
                _ => {
                    self.bad.add(bad("last"));
                    Next::End
                }
            })
        }

        fn position(&self) -> Position {
            Position::new("calls", 1, "all", &[self.call])
        }
    }

    /// Gives the sums of the numbers up to each.
    struct Sum;

    struct SumUpTo(u64);

    impl ScanStep for Sum {
        fn schema(&self) -> SchemaRef {
            rows(&[]).schema()
        }

        fn passes_on(&self, _: usize) -> Option<usize> {
            None
        }

        fn open(&self, _: &Split, _: &mut ReaderContext) -> Box<dyn SplitStep> {
            Box::new(SumUpTo(0))
        }

        fn describe(&self) -> String {
            "sum".into()
        }
    }

    impl SplitStep for SumUpTo {
        fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
            let sums = numbers(&batch).into_iter().map(|n| {
                self.0 += n as u64;
                self.0 as i64
            });
            Ok(rows(&sums.collect::<Vec<_>>()))
        }

        fn remembered(&self) -> Option<u64> {
            Some(self.0)
        }

        fn remember(&mut self, number: u64) {
            self.0 = number;
        }
    }

    /// Adds one to each number.
    struct Next1;

    /// Keeps even numbers; when there are no rows, gives the lengths of the reasons of bad ones.
    struct Even(Arc<BadRows>);

    impl ScanStep for Next1 {
        fn schema(&self) -> SchemaRef {
            rows(&[]).schema()
        }

        fn passes_on(&self, _: usize) -> Option<usize> {
            None
        }

        fn open(&self, _: &Split, _: &mut ReaderContext) -> Box<dyn SplitStep> {
            Box::new(Self)
        }

        fn describe(&self) -> String {
            "add one".into()
        }
    }

    impl SplitStep for Next1 {
        fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
            Ok(rows(&numbers(&batch).iter().map(|n| n + 1).collect::<Vec<_>>()))
        }
    }

    impl ScanStep for Even {
        fn schema(&self) -> SchemaRef {
            rows(&[]).schema()
        }

        fn passes_on(&self, output: usize) -> Option<usize> {
            Some(output)
        }

        fn open(&self, _: &Split, context: &mut ReaderContext) -> Box<dyn SplitStep> {
            context.bad = Arc::new(BadRows::collecting());
            Box::new(Self(Arc::clone(&context.bad)))
        }

        fn describe(&self) -> String {
            "even".into()
        }
    }

    impl SplitStep for Even {
        fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
            let even = numbers(&batch).iter().map(|n| Some(n % 2 == 0)).collect::<BooleanArray>();
            Ok(filter_record_batch(&batch, &even).unwrap())
        }

        fn flush(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
            let lengths = self.0.take().into_iter().map(|row| row.reason.len() as i64);
            Ok(Some(rows(&lengths.collect::<Vec<_>>())))
        }
    }

    fn numbers(batch: &RecordBatch) -> Vec<i64> {
        batch.column(0).as_primitive::<Int64Type>().values().to_vec()
    }

    fn context() -> ReaderContext {
        ReaderContext::new(Arc::new(MonotonicClock::default()), Arc::default())
    }

    /// All answers of a reader to its end: rows, or the time until which it waits.
    fn read(reader: &mut dyn SplitReader) -> Vec<Result<Vec<i64>, u64>> {
        let mut given = vec![];
        loop {
            given.push(match reader.next(10).unwrap() {
                Next::Batch(batch) => Ok(numbers(&batch)),
                Next::Wait { until_ns } => Err(until_ns),
                Next::Pending => panic!("there are always rows"),
                Next::End => return given,
            });
        }
    }

    #[test]
    fn rows_go_through_the_steps_in_order_and_bad_ones_to_the_step_that_asks() {
        let (split, context) = (Split { name: "all".into(), ..Split::default() }, context());
        let steps: [Arc<dyn ScanStep>; 2] = [Arc::new(Even(Arc::default())), Arc::new(Next1)];
        let mut reader = open(&Numbers, &steps, &split, None, &context).unwrap();
        // Even numbers plus one; 5 is not even, so that the reader asks again at once; the reasons
        // have five and four letters.
        assert_eq!(read(reader.as_mut()), [Ok(vec![3]), Ok(vec![6]), Err(0), Ok(vec![5])]);
        assert_eq!(context.bad.count(), 0);

        let mut reader = open(&Numbers, &[], &split, None, &context).unwrap();
        assert_eq!(read(reader.as_mut()), [Ok(vec![1, 2, 3]), Err(7), Ok(vec![5])]);
        assert_eq!(context.bad.count(), 2, "without steps they go where the runtime said");
    }

    #[test]
    fn a_step_goes_on_with_what_it_remembered() {
        let (split, context) = (Split { name: "all".into(), ..Split::default() }, context());
        let steps: [Arc<dyn ScanStep>; 2] = [Arc::new(Next1), Arc::new(Sum)];
        let mut reader = open(&Numbers, &steps, &split, None, &context).unwrap();
        assert!(
            matches!(reader.next(10).unwrap(), Next::Batch(batch) if numbers(&batch) == [2, 5, 9])
        );
        let position = Position::from_bytes(&reader.position().to_bytes()).unwrap();
        let mut rest = open(&Numbers, &steps, &split, Some(&position), &context).unwrap();
        assert_eq!(read(rest.as_mut()), [Err(7), Ok(vec![15])]);
        // The position of a scan without such a step.
        let of_another = Position::new("calls", 1, "all", &[1]);
        let refused = open(&Numbers, &steps, &split, Some(&of_another), &context);
        let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("what the rows had met"), "{message}");
    }

    #[test]
    fn a_position_is_one_of_the_connector() {
        let (split, context) = (Split { name: "all".into(), ..Split::default() }, context());
        let steps: [Arc<dyn ScanStep>; 1] = [Arc::new(Next1)];
        let mut reader = open(&Numbers, &steps, &split, None, &context).unwrap();
        reader.next(10).unwrap();
        assert_eq!(reader.position(), Position::new("calls", 1, "all", &[1]));
        let mut rest = open(&Numbers, &steps, &split, Some(&reader.position()), &context).unwrap();
        assert_eq!(read(rest.as_mut()), [Err(7), Ok(vec![6])]);
    }
}
