//! The shuffle exchange (S13, Q): every row goes to the leader of its key and is folded there.
//!
//! Rows for one leader are collected until they fill the batching threshold (Q5) or the watermark
//! passes the end of a window. A link is first in first out, so that a watermark arrives after the
//! rows that it speaks of.

use std::cell::{Cell, RefCell};

use arrow::array::UInt32Array;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use channel::{Class, Header};
use state::Partitioner;
use state::epoch::Progress;

use super::answers::Answers;
use super::{Grouping, said};
use crate::error::DataflowError;
use crate::frame::{KEYED, Kind, RESUME, flags_of, said_in};
use crate::job::Aggregation;
use crate::net::Message;
use crate::scheduler::Event;
use crate::wire::{Decoder, Encoder};
use crate::worker::Place;

/// Bytes of rows for one leader that are sent together (Q5).
const BATCH_BYTES: usize = 16 << 10;

/// The leader of the only group of an aggregate without keys.
const KEYLESS_LEADER: u32 = 0;

/// The sending and the receiving side of a shuffle on one worker.
pub(super) struct Shuffle {
    partitioner: RefCell<Partitioner>,
    keys: Vec<usize>,
    schema: SchemaRef,
    row_bytes: usize,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    /// Rows that wait to be sent, by leader.
    waiting: RefCell<Vec<Vec<RecordBatch>>>,
    scratch: RefCell<Scratch>,
    announced: Cell<(i64, bool)>,
    answers: Answers,
    /// Answers that [`Shuffle::resume`] still waits for.
    unanswered: Cell<u32>,
    reached: Cell<i64>,
    answered: Event,
}

#[derive(Default)]
struct Scratch {
    owners: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

impl Shuffle {
    pub(super) fn new(spec: &Aggregation, place: &Place, partitioner: Partitioner) -> Self {
        let schema = spec.input_schema.clone();
        let width =
            |field: &arrow::datatypes::FieldRef| field.data_type().primitive_width().unwrap_or(16);
        let row_bytes = schema.fields().iter().map(width).sum::<usize>().max(1);
        Self {
            partitioner: RefCell::new(partitioner),
            keys: spec.keys.clone(),
            row_bytes,
            encoder: RefCell::new(Encoder::new(&schema)),
            decoder: Decoder::new(&schema),
            schema,
            waiting: RefCell::new(vec![Vec::new(); place.workers as usize]),
            scratch: RefCell::new(Scratch {
                owners: Vec::new(),
                rows: vec![Vec::new(); place.workers as usize],
            }),
            announced: Cell::new((i64::MIN, false)),
            answers: Answers::new(place.workers),
            unanswered: Cell::new(0),
            reached: Cell::new(i64::MIN),
            answered: Event::default(),
        }
    }

    pub(super) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Folds the rows that this worker leads and passes the others on; those of `key` at once, with
    /// the key.
    pub(super) async fn push(
        &self,
        grouping: &Grouping,
        batch: &RecordBatch,
        key: Option<i64>,
    ) -> Result<(), DataflowError> {
        for (owner, part) in self.split(batch)? {
            match key {
                _ if owner == grouping.worker => {
                    grouping.fold(&part, key, grouping.merged.borrow_mut().slices())?;
                }
                None => self.waiting.borrow_mut()[owner as usize].push(part),
                Some(key) => {
                    let header =
                        Header { aux: key as u64, ..header(grouping, Kind::Rows, 0, KEYED) };
                    grouping.net.send_rows(owner, header, &self.encoder, &part).await?;
                }
            }
        }
        for to in grouping.net.peers() {
            let rows: usize =
                self.waiting.borrow()[to as usize].iter().map(RecordBatch::num_rows).sum();
            if rows * self.row_bytes >= BATCH_BYTES {
                self.send_waiting(grouping, to).await?;
            }
        }
        Ok(())
    }

    /// Tells the leaders, when windows may fire.
    pub(super) async fn progress(
        &self,
        grouping: &Grouping,
        watermark: i64,
        idle: bool,
    ) -> Result<(), DataflowError> {
        let (announced, was_idle) = self.announced.get();
        if idle == was_idle && !grouping.crosses(announced, watermark) {
            return Ok(());
        }
        self.announced.set((watermark, idle));
        self.announce(grouping, said(watermark, idle)).await?;
        grouping.move_clock(grouping.worker, said(watermark, idle));
        Ok(())
    }

    /// Asks every leader how far it has fired.
    pub(super) async fn resume(&self, grouping: &Grouping) -> i64 {
        let watermark = self.announced.get().0;
        self.announced.set((watermark, false));
        let progress = Progress::active(watermark);
        grouping.move_clock(grouping.worker, progress);
        let peers: Vec<u32> = grouping.net.peers().collect();
        self.unanswered.set(peers.len() as u32);
        self.reached.set(grouping.least());
        for to in peers {
            let header = header(grouping, Kind::Progress, watermark, flags_of(progress) | RESUME);
            grouping.net.send(to, Class::Data, header, |_| 0).await;
        }
        self.answered.wait_for(|| (self.unanswered.get() == 0).then(|| self.reached.get())).await
    }

    /// Sends what waits and ends the stream.
    pub(super) async fn end(
        &self,
        grouping: &Grouping,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.announce(grouping, Progress::ended(watermark)).await
    }

    pub(super) fn receive(
        &self,
        grouping: &Grouping,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let header = message.header;
        match message.kind {
            Kind::Rows => {
                let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
                let (batch, _) = self.decoder.decode(message.payload).map_err(malformed)?;
                let batch = grouping.owned(batch);
                let key = (header.flags & KEYED != 0).then_some(header.aux as i64);
                grouping.fold(&batch, key, grouping.merged.borrow_mut().slices())?;
                grouping.account()?;
            }
            Kind::Ack => {
                self.reached.set(self.reached.get().max(header.watermark));
                self.unanswered.set(self.unanswered.get().saturating_sub(1));
                self.answered.notify();
            }
            _ => {
                grouping.move_clock(from, said_in(&header));
                if header.flags & RESUME != 0 {
                    self.answers.owe(from, 0);
                }
                if grouping.others_have_ended() {
                    self.answers.close();
                }
            }
        }
        Ok(())
    }

    async fn announce(&self, grouping: &Grouping, said: Progress) -> Result<(), DataflowError> {
        for to in grouping.net.peers() {
            self.send_waiting(grouping, to).await?;
            let header = header(grouping, Kind::Progress, said.watermark, flags_of(said));
            grouping.net.send(to, Class::Data, header, |_| 0).await;
        }
        Ok(())
    }

    async fn send_waiting(&self, grouping: &Grouping, to: u32) -> Result<(), DataflowError> {
        let batches = std::mem::take(&mut self.waiting.borrow_mut()[to as usize]);
        if batches.is_empty() {
            return Ok(());
        }
        let batch = concat_batches(&self.schema, &batches)?;
        let header = header(grouping, Kind::Rows, 0, 0);
        grouping.net.send_rows(to, header, &self.encoder, &batch).await
    }

    /// The rows of each leader.
    fn split(&self, batch: &RecordBatch) -> Result<Vec<(u32, RecordBatch)>, DataflowError> {
        let Scratch { owners, rows } = &mut *self.scratch.borrow_mut();
        let keys: Vec<_> = self.keys.iter().map(|&key| batch.column(key).clone()).collect();
        match keys.is_empty() {
            true => *owners = vec![KEYLESS_LEADER; batch.num_rows()],
            false => self.partitioner.borrow_mut().owners_of(&keys, owners)?,
        }
        rows.iter_mut().for_each(Vec::clear);
        for (row, &owner) in owners.iter().enumerate() {
            rows[owner as usize].push(row as u32);
        }
        let each = rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        each.map(|(owner, rows)| {
            let part = take_record_batch(batch, &UInt32Array::from(rows.clone()))?;
            Ok((owner as u32, part))
        })
        .collect()
    }
}

fn header(grouping: &Grouping, kind: Kind, watermark: i64, flags: u8) -> Header {
    Header { kind: kind as u8, tag: grouping.tag, watermark, flags, ..Header::default() }
}
