//! The contract of an exchange: one set of cases that runs over each exchange, between workers
//! of one process and of several in the simulated network.

mod bed;
mod passes;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::Transfer;
use state::Partitioner;
use state::epoch::{Presence, Progress};

use self::bed::{BASE, Bed, SHAPE, Seen, Shape, TAG, envelope, schema};
use self::passes::{BROADCAST, FROM_REGION};
use super::{
    AnyExchange, Connected, Forward, GATHERER, Gather, Inputs, Member, Merge, Port, Shuffle, uppar,
};
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::job::{
    Distribution, Exchange, FrequentKeys, MultiPartitioner, RowPartitioner, Settings,
    ShuffleSettings, TreeChoice, halves,
};
use crate::runtime::frame::{Colour, Envelope, Frame};
use crate::runtime::local_exchange::Load;
use crate::runtime::net::Message;
use crate::runtime::place::WorkerContext;

/// An exchange, and what is to come of it.
struct Case {
    name: &'static str,
    inputs: fn(&WorkerContext) -> Inputs,
    /// The workers that a number of a worker is for: the number, its worker, and how many workers
    /// there are.
    goes_to: fn(i64, u32, u32) -> Vec<u32>,
    /// The kinds of frames that it takes.
    takes: &'static [u8],
    tree: Option<TreeChoice>,
    /// How frames are moved.
    transfer: Transfer,
    /// Whether all rows of a sender arrive in order, and not only those for the same workers, or of
    /// other epochs.
    in_order: bool,
    /// Whether progress comes with epochs.
    merges: bool,
    /// Whether groups travel, and not rows.
    groups: bool,
    gathers: bool,
}

impl Case {
    fn settings(&self, settings: &mut Settings) {
        if let Some(tree) = self.tree {
            settings.casting.tree = tree;
        }
        settings.ring.transfer = self.transfer;
    }

    /// Whether anything travels.
    fn travels(&self) -> bool {
        !self.takes.is_empty()
    }
}

const PLAIN: Case = Case {
    name: "forward",
    inputs: |place| Inputs::of(vec![AnyExchange::Forward(Forward)], place),
    goes_to: |_, worker, _| vec![worker],
    takes: &[],
    tree: None,
    transfer: Transfer::Write,
    in_order: true,
    merges: false,
    groups: false,
    gathers: false,
};

const WAITING: Case = Case {
    name: "shuffle to rows that wait",
    inputs: |place| {
        let port = Port { waits: true, ..port_of(Distribution::Hash) };
        Inputs::of_rows(TAG, vec![port], Exchange::Shuffle, place, SHUFFLE)
    },
    goes_to: |number, _, workers| vec![leader(number, workers)],
    takes: &[1, 2, 5, 6, 9],
    ..PLAIN
};

/// Rows are sent in several frames.
const SHUFFLE: ShuffleSettings =
    ShuffleSettings { bytes: 256, wait_ns: 10_000_000, frequent_keys: FrequentKeys::Auto };

/// All exchanges.
const EXCHANGES: [Case; 13] = [
    FROM_REGION,
    PLAIN,
    Case {
        name: "shuffle by key",
        inputs: |place| of_rows(place, Distribution::Hash, None, None),
        goes_to: |number, _, workers| vec![leader(number, workers)],
        takes: &[1, 2, 5, 6],
        ..PLAIN
    },
    Case {
        name: "shuffle by a function",
        inputs: |place| of_rows(place, Distribution::Hash, Some(Arc::new(ByNumber)), None),
        goes_to: |number, _, workers| vec![(number % i64::from(workers)) as u32],
        takes: &[1, 2, 5, 6],
        ..PLAIN
    },
    Case {
        name: "shuffle in turn",
        inputs: |place| of_rows(place, Distribution::RoundRobin, None, None),
        goes_to: |number, worker, workers| vec![(worker + (number % BASE) as u32) % workers],
        takes: &[1, 2, 5, 6],
        ..PLAIN
    },
    Case {
        name: "uppar",
        inputs: |place| {
            let partition = uppar(&[0], place.worker, place.workers);
            let shuffle = Shuffle::new(0, &schema(), partition, place, SHUFFLE);
            Inputs::of(vec![AnyExchange::Shuffle(Box::new(shuffle))], place)
        },
        goes_to: |number, _, workers| {
            vec![halves::leader(leader(number, halves::leaders(workers)))]
        },
        takes: &[1, 2, 5, 6],
        ..PLAIN
    },
    Case {
        name: "merge",
        inputs: |place| {
            let merge = Merge::new(Partitioner::new(place.workers), place);
            Inputs::of(vec![AnyExchange::Merge(Box::new(merge))], place)
        },
        goes_to: |number, _, workers| vec![leader(number, workers)],
        takes: &[3, 4],
        in_order: false,
        merges: true,
        groups: true,
        ..PLAIN
    },
    Case {
        name: "merge of rows",
        inputs: |place| {
            Inputs::of_rows(TAG, vec![port_of(Distribution::Hash)], Exchange::Merge, place, SHUFFLE)
        },
        goes_to: |number, _, workers| vec![leader(number, workers)],
        takes: &[3, 4],
        merges: true,
        ..PLAIN
    },
    WAITING,
    BROADCAST,
    Case {
        name: "broadcast by copies",
        tree: Some(TreeChoice::Copies),
        takes: &[2, 6, 13, 14, 16, 17, 18, 19, 20, 21],
        ..BROADCAST
    },
    Case {
        name: "broadcast to some",
        inputs: |place| of_rows(place, Distribution::Hash, None, Some(Arc::new(ByNumber))),
        goes_to: |number, _, workers| some(number, workers),
        takes: &[2, 6, 13, 15, 16, 17, 18, 19, 20, 21],
        tree: None,
        in_order: false,
        ..BROADCAST
    },
    Case {
        name: "gather",
        inputs: |place| {
            let gather = Gather::new(0, &schema(), place);
            Inputs::of(vec![AnyExchange::Gather(Box::new(gather))], place)
        },
        goes_to: |_, _, _| vec![GATHERER],
        takes: &[7, 8, 9],
        gathers: true,
        ..PLAIN
    },
];

fn of_rows(
    place: &WorkerContext,
    distribution: Distribution,
    partitioner: Option<Arc<dyn RowPartitioner>>,
    multi_partitioner: Option<Arc<dyn MultiPartitioner>>,
) -> Inputs {
    let port = Port { partitioner, multi_partitioner, ..port_of(distribution) };
    Inputs::of_rows(TAG, vec![port], Exchange::Shuffle, place, SHUFFLE)
}

fn port_of(distribution: Distribution) -> Port {
    Port {
        schema: schema(),
        keys: vec![0],
        distribution,
        partitioner: None,
        multi_partitioner: None,
        window: None,
        waits: false,
    }
}

fn leader(number: i64, workers: u32) -> u32 {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![number]));
    let mut owners = vec![];
    Partitioner::new(workers).owners_of(&[keys], &mut owners).expect("an integer is hashed");
    owners[0]
}

/// Some workers: the number's remainder and the next one, or nobody.
fn some(number: i64, workers: u32) -> Vec<u32> {
    let first = (number % i64::from(workers)) as u32;
    let set = BTreeSet::from([first, (first + 1) % workers]);
    if number % 5 == 0 { vec![] } else { set.into_iter().collect() }
}

/// Leads numbers by their remainder.
struct ByNumber;

impl RowPartitioner for ByNumber {
    fn partition(
        &self,
        batch: &RecordBatch,
        of: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        to.extend(numbers.iter().map(|number| (number % i64::from(of)) as u32));
        Ok(())
    }
}

impl MultiPartitioner for ByNumber {
    fn partition(
        &self,
        batch: &RecordBatch,
        of: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        to.extend(numbers.iter().map(|&number| some(number, of).into_iter().collect()));
        Ok(())
    }
}

/// In one process, in several, in both.
const LAYOUTS: [(u32, u32); 5] = [(1, 2), (1, 3), (2, 1), (3, 1), (2, 2)];

fn each(shape: Shape, check: impl Fn(&Case, Shape)) {
    for case in &EXCHANGES {
        for (number, (processes, workers)) in (0..).zip(LAYOUTS) {
            let seed = shape.seed * 100 + number;
            check(case, Shape { processes, workers, seed, ..shape });
        }
    }
}

/// The numbers of a worker that another one is to see, in order.
fn expected(case: &Case, shape: Shape, source: u32, worker: u32) -> Vec<i64> {
    let numbers = (0..shape.batches).flat_map(|batch| shape.numbers(source, batch));
    let goes_to = |number: &i64| (case.goes_to)(*number, source, shape.total()).contains(&worker);
    numbers.filter(goes_to).collect()
}

/// The numbers of a worker that another one has seen, in order.
fn rows_of(seen: &[Seen], source: u32) -> Vec<i64> {
    let row = |seen: &Seen| match seen {
        Seen::Row(of, number, _) if *of == source => Some(*number),
        _ => None,
    };
    seen.iter().filter_map(row).collect()
}

fn ran(case: &Case, shape: Shape) -> Bed {
    let mut bed = Bed::new(case, shape);
    bed.start(shape);
    bed.run(|_| false).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    assert!(bed.is_over(), "{}: workers wait for each other", case.name);
    bed
}

#[test]
fn rows_arrive_once_and_those_of_a_sender_in_order() {
    for seed in 0..2 {
        each(Shape { seed, ..SHAPE }, |case, shape| {
            for (worker, actor) in (0..).zip(&ran(case, shape).actors) {
                let seen = actor.probe.seen.borrow();
                for source in 0..shape.total() {
                    let mut rows = rows_of(&seen, source);
                    if !case.in_order {
                        rows.sort_unstable();
                    }
                    let wanted = expected(case, shape, source, worker);
                    assert_eq!(rows, wanted, "{}: of {source} at {worker}", case.name);
                }
            }
        });
    }
}

#[test]
fn progress_does_not_overtake_rows_and_the_end_is_announced_once() {
    for seed in 2..4 {
        each(Shape { seed, ..SHAPE }, |case, shape| {
            for (worker, actor) in (0..).zip(&ran(case, shape).actors) {
                let seen = actor.probe.seen.borrow();
                for source in 0..shape.total() {
                    in_order(case, shape, &seen, source, worker);
                }
            }
        });
    }
}

/// Looks at what a worker has seen of another one.
fn in_order(case: &Case, shape: Shape, seen: &[Seen], source: u32, worker: u32) {
    let name = case.name;
    let wanted = expected(case, shape, source, worker);
    let (mut rows, mut ends): (Vec<i64>, u32) = (vec![], 0);
    for at in seen {
        match *at {
            Seen::Row(of, number, _) if of == source => {
                assert_eq!(ends, 0, "{name}: {number} comes behind the end of {source}");
                rows.push(number);
            }
            Seen::Progress(of, Progress { watermark, presence }) if of == source => {
                ends += u32::from(presence == Presence::Ended);
                let before = wanted.iter().filter(|&&number| number < watermark).count();
                let seen = rows.iter().filter(|&&number| number < watermark).count();
                assert_eq!(seen, before, "{name}: {watermark} of {source} overtakes at {worker}");
            }
            _ => {}
        }
    }
    let hears = source == worker || (case.travels() && (!case.gathers || worker == GATHERER));
    assert_eq!(ends, u32::from(hears), "{name}: the end of {source} at {worker}");
}

#[test]
fn rows_have_the_colour_of_their_source_wherever_they_come_from() {
    for seed in 4..6 {
        each(Shape { seed, ..SHAPE }, |case, shape| {
            let bed = ran(case, shape);
            for actor in &bed.actors {
                for seen in &*actor.probe.seen.borrow() {
                    let Seen::Row(source, number, Some(colour)) = *seen else { continue };
                    let batch = (number % BASE) as usize / shape.rows;
                    let wanted = Colour::of_round(shape.round(source, batch));
                    assert_eq!(colour, wanted, "{}: {number}", case.name);
                }
                for (from, envelope) in &*actor.probe.frames.borrow() {
                    let Some(source) = envelope.frame.source(*from) else { continue };
                    let last = shape.batches - 1;
                    let of = [0, last].map(|batch| Colour::of_round(shape.round(source, batch)));
                    assert!(of.contains(&envelope.colour), "{}: {envelope:?}", case.name);
                }
            }
        });
    }
}

#[test]
fn a_relay_keeps_the_colour_of_the_source() {
    // A chain of processes: all but the first get the frames from another one than their source.
    let shape = Shape { processes: 4, workers: 2, seed: 3, ..SHAPE };
    let bed = ran(&BROADCAST, shape);
    let mut relayed = 0;
    for actor in &bed.actors {
        for (from, envelope) in &*actor.probe.frames.borrow() {
            let (Frame::Broadcast { source, .. } | Frame::BroadcastReference { source, .. }) =
                envelope.frame
            else {
                continue;
            };
            let last = shape.batches - 1;
            let colours = |of: u32| [0, last].map(|b| Colour::of_round(shape.round(of, b)));
            assert!(colours(source).contains(&envelope.colour), "{envelope:?} by {from}");
            assert!(*from == source || !colours(*from).contains(&envelope.colour));
            relayed += u32::from(*from != source);
        }
    }
    assert!(relayed > 100, "only {relayed} frames were relayed");
}

#[test]
fn a_receiver_that_takes_nothing_holds_back_the_sender() {
    let shape = Shape { batches: 4_000, rows: 64, every: 2, ..SHAPE };
    for case in EXCHANGES.iter().filter(|case| case.travels()) {
        for (processes, workers) in [(1, 2), (2, 1)] {
            let shape = Shape { processes, workers, ..shape };
            let mut bed = Bed::new(case, shape);
            bed.start(shape);
            bed.run(|worker| worker == 0).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            let pushed = bed.actors[1].probe.pushed.get();
            assert!(pushed > 0 && pushed < shape.batches / 2, "{}: {pushed} batches", case.name);
            bed.run(|_| false).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert!(bed.is_over(), "{}: it goes on", case.name);
            let mut rows = rows_of(&bed.actors[0].probe.seen.borrow(), 1);
            rows.sort_unstable();
            assert!(rows == expected(case, shape, 1, 0), "{}", case.name);
        }
    }
}

#[test]
fn no_more_than_a_window_of_each_sender_waits_in_an_operator_that_processes_nothing() {
    let shape = Shape { batches: 300, rows: 64, every: 2, seed: 8, ..SHAPE };
    let gather = EXCHANGES.iter().find(|case| case.gathers).expect("gather");
    for case in [&WAITING, gather] {
        for (processes, workers) in LAYOUTS {
            let shape = Shape { processes, workers, ..shape };
            let mut bed = Bed::new(case, shape);
            let holder = bed.actors[0].probe.clone();
            holder.holds.set(true);
            bed.start(shape);
            bed.run(|_| false).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            let mut waiting = vec![0; shape.total() as usize];
            for arrival in &*holder.held.borrow() {
                waiting[arrival.source as usize] += arrival.bytes;
            }
            for (source, waiting) in (0..).zip(waiting) {
                let own = source == 0 && case.gathers;
                let least = if own { 0 } else { bed::RECEIVE_BYTES / 2 };
                let most = if own { 0 } else { bed::RECEIVE_BYTES };
                assert!((least..=most).contains(&waiting), "{}: {waiting} of {source}", case.name);
                let pushed = bed.actors[source as usize].probe.pushed.get();
                assert_eq!(pushed == shape.batches, own, "{}: of {source}", case.name);
            }
            holder.holds.set(false);
            holder.process();
            bed.run(|_| false).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert!(bed.is_over(), "{}: it goes on", case.name);
            for source in 0..shape.total() {
                let rows = rows_of(&bed.actors[0].probe.seen.borrow(), source);
                assert_eq!(rows, expected(case, shape, source, 0), "{}", case.name);
            }
        }
    }
}

#[test]
fn rows_beyond_the_window_and_a_position_that_was_not_sent_are_errors() {
    let shape = Shape { processes: 2, seed: 9, ..SHAPE };
    let gather = EXCHANGES.iter().find(|case| case.gathers).expect("gather");
    for (case, frame) in [(&WAITING, Frame::Rows { slice: None }), (gather, Frame::Gather)] {
        let bed = Bed::new(case, shape);
        bed.actors[0].probe.holds.set(true);
        let rows = || Load::of_rows(&bed::batch_of(&[1; 100]));
        for _ in 0..2 {
            receive(&bed, envelope(frame), rows()).expect("there is room");
        }
        let more = || receive(&bed, envelope(frame), rows());
        let detail = (0..8).find_map(|_| match more() {
            Ok(()) => None,
            Err(error) => Some(refusal(case, Err(error), frame)),
        });
        let detail = detail.expect("the window is full");
        assert!(detail.ends_with("beyond a window of 2048"), "{}: {detail}", case.name);
        let frame = Frame::Consumed { position: 1 };
        let peer = &bed.actors[1].probe;
        let load = Load::Own(Bytes::new());
        match peer.receive(0, Message { envelope: envelope(frame), load }) {
            Err(DataflowError::Frame { worker: 0, detail }) => {
                assert_eq!(detail, "all bytes before 1 are processed, of 0 that were sent");
            }
            other => panic!("{}: {other:?}", case.name),
        }
    }
}

/// Gives a frame to worker 0 as if worker 1 had sent it.
fn receive(bed: &Bed, envelope: Envelope, load: Load) -> Result<(), DataflowError> {
    bed.actors[0].probe.receive(1, Message { envelope, load })
}

fn refusal(case: &Case, received: Result<(), DataflowError>, frame: Frame) -> String {
    match received {
        Err(DataflowError::Frame { worker: 1, detail }) => detail,
        other => panic!("{}: {frame:?} gives {other:?}", case.name),
    }
}

#[test]
fn frames_of_other_exchanges_and_without_an_input_are_errors() {
    each(SHAPE, |case, shape| {
        let bed = Bed::new(case, shape);
        for frame in Frame::KINDS {
            let nothing = || Load::Own(Bytes::new());
            if !case.takes.contains(&frame.kind()) {
                refusal(case, receive(&bed, envelope(frame), nothing()), frame);
            }
            // Progress and markers are of all inputs.
            if case.travels() && ![2, 22].contains(&frame.kind()) {
                let elsewhere = Envelope { port: 7, ..envelope(frame) };
                let detail = refusal(case, receive(&bed, elsewhere, nothing()), frame);
                assert_eq!(detail, "there is no input 7", "{}", case.name);
            }
        }
    });
}

#[test]
fn malformed_frames_are_errors() {
    let rubbish = || Load::Own(Bytes::from_static(&[7; 200]));
    each(Shape { seed: 5, ..SHAPE }, |case, shape| {
        let bed = Bed::new(case, shape);
        for &kind in case.takes {
            let frames: &[Frame] = match kind {
                1 => &[Frame::Rows { slice: None }],
                3 => &[Frame::Delta {
                    epoch: 1,
                    chunk: 0,
                    last: true,
                    progress: Progress { watermark: 0, presence: Presence::Active },
                }],
                4 => &[Frame::EpochAck { epoch: 7, watermark: 0 }],
                5 => &[Frame::Groups],
                6 => &[Frame::ResumeAck { watermark: 0 }],
                7 => &[Frame::Gather],
                9 if !case.gathers => &[Frame::Consumed { position: 1 }],
                12 => &[
                    Frame::Broadcast { source: 1, number: 9, version: 9, placeholder: true },
                    Frame::Broadcast { source: 99, number: 0, version: 0, placeholder: false },
                ],
                13 => &[
                    Frame::BroadcastReference { source: 1, number: 0, complete_before: 1 },
                    Frame::BroadcastReference { source: 99, number: 0, complete_before: 1 },
                ],
                14 => &[Frame::BroadcastCopy { number: 0, complete_before: 1 }],
                15 => &[Frame::BroadcastList { number: 0 }],
                16 => &[
                    Frame::BroadcastAck { source: 0, before: 5 },
                    Frame::BroadcastAck { source: 99, before: 0 },
                ],
                17 => &[Frame::TreeUpdate { version: 1 }],
                18 => &[Frame::TreeUpdateAck { version: 5 }],
                19 => &[Frame::Nack { number: 5 }],
                21 => &[Frame::PayloadAck { before: 5 }],
                // Progress has no fields that can be wrong, an end too; a repair may be late.
                _ => &[],
            };
            for &frame in frames {
                refusal(case, receive(&bed, envelope(frame), rubbish()), frame);
            }
        }
    });
}

#[test]
fn what_comes_behind_the_end_of_its_sender_is_an_error() {
    let nothing = || Load::Own(Bytes::new());
    each(Shape { seed: 6, ..SHAPE }, |case, shape| {
        if !case.travels() {
            return;
        }
        let bed = Bed::new(case, shape);
        let progress = Progress::ended(i64::MAX);
        let end = match case {
            _ if case.merges => Frame::Delta { epoch: 1, chunk: 0, last: true, progress },
            _ if case.gathers => Frame::GatherEnd,
            _ => Frame::Progress { progress, resumes: false, broadcast_before: 0 },
        };
        receive(&bed, envelope(end), nothing()).expect("an end");
        assert!(bed.actors[0].probe.has_ended(1), "{}", case.name);
        let rows = Frame::KINDS
            .into_iter()
            .filter(|frame| case.takes.contains(&frame.kind()) && frame.source(1).is_some());
        let rows: Vec<Frame> = rows.chain([end]).collect();
        assert!(rows.len() > 1, "{}", case.name);
        for frame in rows {
            let frame = match frame {
                Frame::Broadcast { number, version, placeholder, .. } => {
                    Frame::Broadcast { source: 1, number, version, placeholder }
                }
                Frame::BroadcastReference { number, complete_before, .. } => {
                    Frame::BroadcastReference { source: 1, number, complete_before }
                }
                frame => frame,
            };
            let detail = refusal(case, receive(&bed, envelope(frame), nothing()), frame);
            assert!(detail.ends_with("comes behind the end of worker 1"), "{detail}");
        }
    });
}
