//! The shuffle exchange (S13, Q): every row goes to the leader of its key.
//!
//! Rows for one leader are collected until they fill the batching threshold (Q5) or the watermark
//! passes a point at which something may become complete. A link is first in first out, so that a
//! watermark arrives after the rows that it speaks of.
//!
//! An operator may have several inputs; rows of each travel on a *lane* of their own, with one
//! watermark for all.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use channel::{Class, Header};
use state::Partitioner;
use state::epoch::Progress;

use super::{Answers, Member, said};
use crate::error::DataflowError;
use crate::frame::{KEYED, Kind, RESUME, flags_of, said_in};
use crate::job::Route;
use crate::net::Message;
use crate::scheduler::Event;
use crate::wire::{Decoder, Encoder};

/// Bytes of rows for one leader that are sent together (Q5).
const BATCH_BYTES: usize = 16 << 10;

/// The leader of all rows where there are no keys.
const KEYLESS_LEADER: u32 = 0;

/// The sending and the receiving side of a shuffle on one worker.
pub(crate) struct Shuffle {
    lanes: Vec<Lane>,
    announced: Cell<(i64, bool)>,
    answers: Answers,
    /// Answers that [`Shuffle::resume`] still waits for.
    unanswered: Cell<u32>,
    reached: Cell<i64>,
    answered: Event,
}

/// The rows of one input.
pub(crate) struct Lane {
    partitioner: RefCell<Partitioner>,
    workers: u32,
    /// Leads rows in place of a hash of the keys.
    route: Option<Arc<dyn Route>>,
    keys: Vec<usize>,
    schema: SchemaRef,
    row_bytes: usize,
    encoder: RefCell<Encoder>,
    decoder: Decoder,
    /// Rows that wait to be sent, by leader.
    waiting: RefCell<Vec<Vec<RecordBatch>>>,
    scratch: RefCell<Scratch>,
}

#[derive(Default)]
struct Scratch {
    owners: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

impl Lane {
    /// Rows of `schema`, led by the columns `keys`.
    pub(crate) fn new(schema: &SchemaRef, keys: &[usize], workers: u32) -> Self {
        let width =
            |field: &arrow::datatypes::FieldRef| field.data_type().primitive_width().unwrap_or(16);
        Self {
            partitioner: RefCell::new(Partitioner::new(workers)),
            workers,
            route: None,
            keys: keys.to_vec(),
            row_bytes: schema.fields().iter().map(width).sum::<usize>().max(1),
            encoder: RefCell::new(Encoder::new(schema)),
            decoder: Decoder::new(schema),
            schema: schema.clone(),
            waiting: RefCell::new(vec![Vec::new(); workers as usize]),
            scratch: RefCell::new(Scratch {
                owners: Vec::new(),
                rows: vec![Vec::new(); workers as usize],
            }),
        }
    }

    /// The same rows, led by a function if there is one.
    pub(crate) fn routed(self, route: Option<Arc<dyn Route>>) -> Self {
        Self { route, ..self }
    }

    /// The worker of each row.
    fn owners(&self, batch: &RecordBatch, owners: &mut Vec<u32>) -> Result<(), DataflowError> {
        let keys: Vec<_> = self.keys.iter().map(|&key| batch.column(key).clone()).collect();
        match &self.route {
            Some(route) => {
                owners.clear();
                route.route(batch, self.workers, owners)?;
                let fits = owners.len() == batch.num_rows();
                if !fits || owners.iter().any(|&owner| owner >= self.workers) {
                    let message = format!(
                        "a route gave {} workers up to {} for {} rows, of {} workers",
                        owners.len(),
                        owners.iter().max().unwrap_or(&0),
                        batch.num_rows(),
                        self.workers
                    );
                    return Err(DataflowError::Expression(message));
                }
            }
            None if keys.is_empty() => *owners = vec![KEYLESS_LEADER; batch.num_rows()],
            None => self.partitioner.borrow_mut().owners_of(&keys, owners)?,
        }
        Ok(())
    }

    /// The rows of each leader.
    fn split(&self, batch: &RecordBatch) -> Result<Vec<(u32, RecordBatch)>, DataflowError> {
        let Scratch { owners, rows } = &mut *self.scratch.borrow_mut();
        self.owners(batch, owners)?;
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

    fn waiting_bytes(&self, to: u32) -> usize {
        let waiting = self.waiting.borrow();
        waiting[to as usize].iter().map(RecordBatch::num_rows).sum::<usize>() * self.row_bytes
    }
}

impl Shuffle {
    pub(crate) fn new(lanes: Vec<Lane>, workers: u32) -> Self {
        Self {
            lanes,
            announced: Cell::new((i64::MIN, false)),
            answers: Answers::new(workers),
            unanswered: Cell::new(0),
            reached: Cell::new(i64::MIN),
            answered: Event::default(),
        }
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Takes the rows that this worker leads and passes the others on; those of `key` at once, with
    /// the key.
    ///
    /// # Errors
    /// When a key cannot be hashed or a column cannot travel.
    pub(crate) async fn push(
        &self,
        member: &impl Member,
        input: usize,
        batch: &RecordBatch,
        key: Option<i64>,
    ) -> Result<(), DataflowError> {
        let lane = &self.lanes[input];
        for (owner, part) in lane.split(batch)? {
            match key {
                _ if owner == member.worker() => member.take(input, part, key)?,
                None => lane.waiting.borrow_mut()[owner as usize].push(part),
                Some(key) => {
                    let header = Header {
                        epoch: input as u64,
                        aux: key as u64,
                        ..header(member, Kind::Rows, 0, KEYED)
                    };
                    member.net().send_rows(owner, header, &lane.encoder, &part).await?;
                }
            }
        }
        for to in member.net().peers() {
            if lane.waiting_bytes(to) >= BATCH_BYTES {
                self.send_waiting(member, input, to).await?;
            }
        }
        Ok(())
    }

    /// Tells the leaders, when something may become complete.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn progress(
        &self,
        member: &impl Member,
        watermark: i64,
        idle: bool,
    ) -> Result<(), DataflowError> {
        let (announced, was_idle) = self.announced.get();
        if idle == was_idle && !member.crosses(announced, watermark) {
            return Ok(());
        }
        self.announced.set((watermark, idle));
        self.announce(member, said(watermark, idle)).await?;
        member.move_clock(member.worker(), said(watermark, idle));
        Ok(())
    }

    /// Asks every leader how far it has fired.
    pub(crate) async fn resume(&self, member: &impl Member) -> i64 {
        let watermark = self.announced.get().0;
        self.announced.set((watermark, false));
        let progress = Progress::active(watermark);
        member.move_clock(member.worker(), progress);
        let peers: Vec<u32> = member.net().peers().collect();
        self.unanswered.set(peers.len() as u32);
        self.reached.set(member.least());
        for to in peers {
            let header = header(member, Kind::Progress, watermark, flags_of(progress) | RESUME);
            member.net().send(to, Class::Data, header, |_| 0).await;
        }
        self.answered.wait_for(|| (self.unanswered.get() == 0).then(|| self.reached.get())).await
    }

    /// Sends what waits and ends the stream.
    ///
    /// # Errors
    /// When a column cannot travel.
    pub(crate) async fn end(
        &self,
        member: &impl Member,
        watermark: i64,
    ) -> Result<(), DataflowError> {
        self.announce(member, Progress::ended(watermark)).await
    }

    /// Takes a frame of another worker.
    ///
    /// # Errors
    /// When it is malformed or its rows cannot be taken.
    pub(crate) fn receive(
        &self,
        member: &impl Member,
        from: u32,
        message: Message,
    ) -> Result<(), DataflowError> {
        let header = message.header;
        match message.kind {
            Kind::Rows => {
                let malformed = |detail: String| DataflowError::Frame { worker: from, detail };
                let input = header.epoch as usize;
                let Some(lane) = self.lanes.get(input) else {
                    return Err(malformed(format!("there is no input {input}")));
                };
                let (batch, _) = lane.decoder.decode(message.payload).map_err(malformed)?;
                let key = (header.flags & KEYED != 0).then_some(header.aux as i64);
                member.take(input, batch, key)?;
            }
            Kind::Ack => {
                self.reached.set(self.reached.get().max(header.watermark));
                self.unanswered.set(self.unanswered.get().saturating_sub(1));
                self.answered.notify();
            }
            _ => {
                member.move_clock(from, said_in(&header));
                if header.flags & RESUME != 0 {
                    self.answers.owe(from, 0);
                }
                if member.others_have_ended() {
                    self.answers.close();
                }
            }
        }
        Ok(())
    }

    async fn announce(&self, member: &impl Member, said: Progress) -> Result<(), DataflowError> {
        for to in member.net().peers() {
            for input in 0..self.lanes.len() {
                self.send_waiting(member, input, to).await?;
            }
            let header = header(member, Kind::Progress, said.watermark, flags_of(said));
            member.net().send(to, Class::Data, header, |_| 0).await;
        }
        Ok(())
    }

    async fn send_waiting(
        &self,
        member: &impl Member,
        input: usize,
        to: u32,
    ) -> Result<(), DataflowError> {
        let lane = &self.lanes[input];
        let batches = std::mem::take(&mut lane.waiting.borrow_mut()[to as usize]);
        if batches.is_empty() {
            return Ok(());
        }
        let batch = concat_batches(&lane.schema, &batches)?;
        let header = Header { epoch: input as u64, ..header(member, Kind::Rows, 0, 0) };
        member.net().send_rows(to, header, &lane.encoder, &batch).await
    }
}

fn header(member: &impl Member, kind: Kind, watermark: i64, flags: u8) -> Header {
    Header { kind: kind as u8, tag: member.tag(), watermark, flags, ..Header::default() }
}
