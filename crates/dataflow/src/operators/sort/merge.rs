//! Merges sorted streams of rows.
//!
//! A [`Merge`] asks for the next rows of a stream when it has no more of it, so it works for
//! streams in memory, on a disk, and from other workers. It holds one batch of each stream, and the
//! batches of the rows of the next output.

use std::cmp::Ordering;
use std::rc::Rc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;

use super::order::{Keyed, Order};
use crate::error::DataflowError;

/// The result of a step of a merge.
pub(super) enum Merged {
    /// The next rows.
    Rows(RecordBatch),
    /// The next rows of this stream must be [pushed](Merge::push) first.
    Needs(usize),
    /// All streams have ended.
    End,
}

/// Merges sorted streams.
pub(super) struct Merge {
    order: Rc<Order>,
    rows_max: usize,
    /// The next rows of each stream.
    heads: Vec<Option<Head>>,
    /// The streams that have rows: a heap with the one of the least row in front.
    heap: Vec<usize>,
    /// Streams of which the next rows are needed.
    needed: Vec<usize>,
    /// The batches of the rows of the next output, and the batch and place of each row.
    from: Vec<Rc<Keyed>>,
    picked: Vec<(usize, usize)>,
}

/// The next rows of a stream.
struct Head {
    rows: Rc<Keyed>,
    next: usize,
    /// Its index among the batches of the next output, if that has some of its rows.
    among: Option<usize>,
}

impl Merge {
    /// A merge of `streams` streams; it emits batches of at most `rows_max` rows.
    pub(super) fn new(order: Rc<Order>, streams: usize, rows_max: usize) -> Self {
        Self {
            order,
            rows_max: rows_max.max(1),
            heads: (0..streams).map(|_| None).collect(),
            heap: vec![],
            needed: (0..streams).rev().collect(),
            from: vec![],
            picked: vec![],
        }
    }

    /// Takes the next rows of a stream that it needs; `None` if there are no more.
    ///
    /// # Errors
    /// When rows cannot be compared.
    pub(super) fn push(
        &mut self,
        stream: usize,
        rows: Option<RecordBatch>,
    ) -> Result<(), DataflowError> {
        if rows.as_ref().is_some_and(|rows| rows.num_rows() == 0) {
            return Ok(());
        }
        self.needed.retain(|&needed| needed != stream);
        if let Some(batch) = rows {
            let rows = Rc::new(self.order.keyed(batch)?);
            self.heads[stream] = Some(Head { rows, next: 0, among: None });
            self.heap.push(stream);
            self.sift_up()?;
        }
        Ok(())
    }

    /// The next rows, or the stream that is needed first.
    ///
    /// # Errors
    /// When rows cannot be compared or copied.
    pub(super) fn next(&mut self) -> Result<Merged, DataflowError> {
        loop {
            if let Some(&stream) = self.needed.last() {
                return Ok(Merged::Needs(stream));
            }
            let Some(&stream) = self.heap.first() else {
                return Ok(self.output()?.map_or(Merged::End, Merged::Rows));
            };
            if self.heap.len() == 1 && self.picked.is_empty() {
                return Ok(Merged::Rows(self.rest_of(stream)));
            }
            self.pick(stream)?;
            if self.picked.len() >= self.rows_max
                && let Some(rows) = self.output()?
            {
                return Ok(Merged::Rows(rows));
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let heads = self.heads.iter().flatten().filter(|head| head.among.is_none());
        let batches = heads.map(|head| &head.rows).chain(&self.from);
        batches.map(|rows| rows.bytes()).sum()
    }

    /// Adds the next row of the first stream to the output.
    fn pick(&mut self, stream: usize) -> Result<(), DataflowError> {
        let Some(head) = &mut self.heads[stream] else { return Ok(()) };
        let among = match head.among {
            Some(among) => among,
            None => {
                self.from.push(Rc::clone(&head.rows));
                *head.among.insert(self.from.len() - 1)
            }
        };
        self.picked.push((among, head.next));
        head.next += 1;
        if head.next == head.rows.len() {
            self.exhausted(stream);
        }
        self.sift_down()
    }

    /// The rows of the batch of the only stream that is left, without a copy.
    fn rest_of(&mut self, stream: usize) -> RecordBatch {
        let Some(head) = &mut self.heads[stream] else {
            return RecordBatch::new_empty(self.order.schema());
        };
        let rows = (head.rows.len() - head.next).min(self.rows_max);
        let rest = head.rows.batch().slice(head.next, rows);
        head.next += rows;
        if head.next == head.rows.len() {
            self.exhausted(stream);
        }
        rest
    }

    /// The batch of the first stream has no more rows.
    fn exhausted(&mut self, stream: usize) {
        self.heads[stream] = None;
        self.heap.swap_remove(0);
        self.needed.push(stream);
    }

    /// The picked rows as a batch.
    fn output(&mut self) -> Result<Option<RecordBatch>, DataflowError> {
        if self.picked.is_empty() {
            return Ok(None);
        }
        let batches: Vec<&RecordBatch> = self.from.iter().map(|rows| rows.batch()).collect();
        let rows = interleave_record_batch(&batches, &self.picked)?;
        self.picked.clear();
        self.from.clear();
        self.heads.iter_mut().flatten().for_each(|head| head.among = None);
        Ok(Some(rows))
    }

    /// Whether the next row of a stream comes before that of another one; among equal rows, the
    /// row of the stream with the lower number comes first.
    fn is_before(&self, stream: usize, other: usize) -> Result<bool, DataflowError> {
        let (Some(a), Some(b)) = (&self.heads[stream], &self.heads[other]) else {
            return Ok(self.heads[stream].is_some());
        };
        let compared = a.rows.compare(a.next, (&b.rows, b.next), &self.order)?;
        Ok(compared.then(stream.cmp(&other)) == Ordering::Less)
    }

    /// Moves the last stream of the heap to its place.
    fn sift_up(&mut self) -> Result<(), DataflowError> {
        let mut at = self.heap.len() - 1;
        while at > 0 && self.is_before(self.heap[at], self.heap[(at - 1) / 2])? {
            self.heap.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        Ok(())
    }

    /// Moves the first stream of the heap to its place.
    fn sift_down(&mut self) -> Result<(), DataflowError> {
        let mut at = 0;
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[least])? {
                    least = child;
                }
            }
            if least == at {
                return Ok(());
            }
            self.heap.swap(at, least);
            at = least;
        }
    }
}
