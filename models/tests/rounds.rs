//! RoundModel, explored completely: sources, two operators in a row, and the cut between them. The
//! alignment and the clocks are those that run.
//!
//! Each worker reads some splits. Its rows come over one edge per split to the first operator,
//! which keeps a row until time has passed it and emits it then; its rows are shuffled, merged or
//! broadcast along a chain of relays. What it emits is shuffled to the second operator, which keeps
//! it. Any worker alone is announced that a round ends. When all have saved it, the job may crash,
//! and goes on from there on another number of workers.
//!
//! Invariants: R1 what is saved of a round has each row once that was read before the saved
//! positions, and no other; R2 the instances of an operator have saved at the same time; R3 what is
//! saved waits for a later time; R4 nobody breaks the protocol; R5 when all is quiet, the second
//! operator has each row once: that is the absence of dead ends too; R6 a worker that keeps rows of
//! the next round apart marks its own, so that what is kept has a bound. Each [`Flaw`] must be
//! found.

use std::collections::{BTreeMap, VecDeque};

use models::{Explored, Model, Steps as StepsOf, Violation, explore};
use state::epoch::{
    Arrives, END_OF_STREAM, Presence, Progress, RoundAlignment, RoundBreach, VectorClock,
};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Broadcast rows have no colour.
    NoColour,
    /// Frames of the next round are taken at once.
    NothingKept,
    /// An edge goes on behind its marker.
    EdgeGoesOn,
    /// Rows that stay on their worker are taken at once behind its marker.
    OwnRowsGoOn,
    /// The marker goes ahead of rows that wait to be sent, or of what is kept for others.
    MarkerAhead,
    /// A source counts a row as read that it has not pushed.
    PositionAhead,
    /// A marker does not count broadcasts.
    CastsNotCounted,
    /// An edge that ends holds the marker back.
    EdgeEndNotCounted,
    /// A peer that ends holds the round back.
    PeerEndNotCounted,
    /// The end of the last edge counts before it is sent behind the rows.
    EndBeforeRows,
    /// A worker that is not announced does not mark.
    NoLamport,
    /// An operator saves before it has emitted what is due.
    SaveBeforeDue,
    /// Time depends on the order in which idle workers were sends.
    ClocksNotSettled,
}

/// How rows come to the first operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Shuffle,
    Merge,
    Broadcast,
}

struct RoundModel {
    way: Way,
    workers: usize,
    /// The times of the rows of each split. A row is known by its place among all of them.
    splits: Vec<Vec<i64>>,
    rounds: u64,
    /// Whether splits that are read may be idle before they end.
    idle: bool,
    /// The number of workers after a crash.
    crash: Option<usize>,
    flaw: Flaw,
}

type Row = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    Rows(Vec<Row>),
    /// The rows of a worker that an epoch has brought.
    Delta {
        rows: Vec<Row>,
        progress: Progress,
    },
    Cast {
        source: usize,
        row: Row,
    },
    Progress {
        progress: Progress,
        before: u64,
    },
    Round {
        round: u64,
        progress: Progress,
        before: u64,
    },
}

/// A frame of the first operator or the second one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Frame {
    operator: usize,
    colour: u16,
    kind: Kind,
}

/// An operator on one worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Instance {
    alignment: RoundAlignment,
    /// Of the edges of its worker, and of all workers.
    edges: VectorClock,
    clock: VectorClock,
    announced: Progress,
    /// Rows for others, by worker.
    waiting: Vec<Vec<Row>>,
    cast: u64,
    received: Vec<u64>,
    /// Progress of others behind broadcasts that are not here.
    held: Vec<VecDeque<(Progress, u64)>>,
    kept: Vec<(usize, Frame)>,
    rows: Vec<Row>,
    ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Split {
    number: usize,
    read: usize,
    /// Whether the last row that was read is not pushed.
    in_hand: bool,
    round: u64,
    idle: bool,
    ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Worker {
    splits: Vec<Split>,
    /// RoundModel before this one are to be ended.
    asked: u64,
    operators: [Instance; 2],
}

/// The saved part of a round.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Saved {
    positions: BTreeMap<usize, usize>,
    /// By operator and worker: its rows and its time.
    operators: BTreeMap<(usize, usize), (Vec<Row>, i64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    workers: Vec<Worker>,
    links: BTreeMap<(usize, usize), VecDeque<Frame>>,
    asked: u64,
    /// Of the round that is under way.
    saved: BTreeMap<u64, Saved>,
    /// The last round that was saved whole, and how many were.
    whole: Option<Saved>,
    done: u64,
    crashed: bool,
}

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are read by whoever reads a trace")]
enum Step {
    EndRound { announced: usize },
    Read { worker: usize, split: usize },
    Push { worker: usize, split: usize },
    Mark { worker: usize, split: usize },
    Idle { worker: usize, split: usize },
    End { worker: usize, split: usize },
    Announce { worker: usize },
    Deliver { from: usize, to: usize },
    Run { worker: usize },
    Crash,
}

type Steps = StepsOf<Step, State>;

/// The result of a step: nothing, or a breach.
type Done = Result<(), String>;

fn breach(breach: RoundBreach) -> String {
    format!("R4: {breach}")
}

fn instance(round: u64, edges: usize, worker: usize, workers: usize, least: i64) -> Instance {
    let sends = (0..workers).map(|other| other != worker);
    Instance {
        alignment: RoundAlignment::new(round, edges, sends),
        edges: VectorClock::beginning_at(edges as u32, least),
        clock: VectorClock::beginning_at(workers as u32, least),
        announced: Progress::active(i64::MIN),
        waiting: vec![vec![]; workers],
        cast: 0,
        received: vec![0; workers],
        held: vec![VecDeque::new(); workers],
        kept: vec![],
        rows: vec![],
        ended: false,
    }
}

impl Instance {
    /// Rows whose time has come.
    fn due(&self, model: &RoundModel) -> Vec<Row> {
        let is_due = |row: &&Row| model.time(**row) <= self.clock.least();
        self.rows.iter().filter(is_due).copied().collect()
    }

    /// The progress of its edges.
    fn progress(&self, edges: usize) -> Progress {
        let presence = |edge| self.edges.of(edge as u32).map(|of| of.presence);
        let none_active = (0..edges).all(|edge| presence(edge) != Some(Presence::Active));
        if self.edges.ended() {
            Progress::ended(END_OF_STREAM)
        } else if none_active {
            Progress::idle(self.edges.least())
        } else {
            Progress::active(self.edges.least())
        }
    }
}

impl State {
    fn send(&mut self, from: usize, to: usize, operator: usize, kind: Kind) {
        let colour = self.workers[from].operators[operator].alignment.round() as u16;
        self.links.entry((from, to)).or_default().push_back(Frame { operator, colour, kind });
    }
}

impl RoundModel {
    fn new(way: Way, workers: usize, splits: &[&[i64]]) -> Self {
        let splits = splits.iter().map(|times| times.to_vec()).collect();
        Self { way, workers, splits, rounds: 1, idle: false, crash: None, flaw: Flaw::None }
    }

    fn row(&self, split: usize, at: usize) -> Row {
        (self.splits[..split].iter().map(Vec::len).sum::<usize>() + at) as Row
    }

    fn time(&self, row: Row) -> i64 {
        self.splits.iter().flatten().nth(row as usize).copied().unwrap_or(i64::MAX)
    }

    /// The job on a number of workers, behind the saved round.
    fn begin(&self, workers: usize, round: u64, saved: &Saved) -> State {
        let least = saved.operators.values().map(|(_, time)| *time).max().unwrap_or(i64::MIN);
        let mut all = vec![];
        for worker in 0..workers {
            let own = (0..self.splits.len()).filter(|split| split % workers == worker);
            let split = |number| {
                let read = saved.positions.get(&number).copied().unwrap_or(0);
                let (in_hand, idle, ended) = (false, false, false);
                Split { number, read, in_hand, round, idle, ended }
            };
            let splits: Vec<Split> = own.map(split).collect();
            let mut operators =
                [splits.len(), 1].map(|edges| instance(round, edges, worker, workers, i64::MIN));
            operators[0] = instance(round, splits.len(), worker, workers, least);
            for (&(operator, _), (rows, _)) in &saved.operators {
                let of = &mut operators[operator].rows;
                let to_all = operator == 0 && self.way == Way::Broadcast;
                of.extend(rows.iter().filter(|&&row| to_all || row as usize % workers == worker));
            }
            for of in &mut operators {
                of.rows.sort_unstable();
            }
            // Copies of what was broadcast are the same row.
            operators[0].rows.dedup();
            all.push(Worker { splits, asked: round, operators });
        }
        State {
            workers: all,
            links: BTreeMap::new(),
            asked: round,
            saved: BTreeMap::new(),
            whole: None,
            done: round,
            crashed: false,
        }
    }

    fn may_pass(&self, state: &State, worker: usize, operator: usize, edge: usize) -> bool {
        let of = &state.workers[worker].operators[operator];
        of.alignment.may_pass(edge) || (self.flaw == Flaw::EdgeGoesOn && operator == 0)
    }

    /// Rows come to an operator by an edge of the worker.
    fn push(&self, state: &mut State, worker: usize, operator: usize, row: Row) {
        let workers = state.workers.len();
        let of = &mut state.workers[worker].operators[operator];
        let to = row as usize % workers;
        if operator == 0 && self.way == Way::Broadcast {
            of.rows.push(row);
            of.rows.sort_unstable();
            of.cast += 1;
            if workers > 1 {
                let kind = Kind::Cast { source: worker, row };
                state.send(worker, (worker + 1) % workers, operator, kind);
            }
        } else if to == worker {
            of.rows.push(row);
            of.rows.sort_unstable();
        } else if operator == 0 {
            of.waiting[to].push(row);
        } else {
            state.send(worker, to, operator, Kind::Rows(vec![row]));
        }
    }

    fn merges(&self, operator: usize) -> bool {
        operator == 0 && self.way == Way::Merge
    }

    /// Sends what waits for others; of a merge with the progress.
    fn flush(&self, state: &mut State, worker: usize, operator: usize, progress: Progress) {
        for to in (0..state.workers.len()).filter(|&to| to != worker) {
            let of = &mut state.workers[worker].operators[operator];
            let rows = std::mem::take(&mut of.waiting[to]);
            if self.merges(operator) {
                state.send(worker, to, operator, Kind::Delta { rows, progress });
            } else if !rows.is_empty() {
                state.send(worker, to, operator, Kind::Rows(rows));
            }
        }
    }

    /// The progress of a worker's edges, which it knows itself from now on.
    fn reached(state: &mut State, worker: usize, operator: usize) -> Progress {
        let edges = if operator == 0 { state.workers[worker].splits.len() } else { 1 };
        let of = &mut state.workers[worker].operators[operator];
        of.announced = of.progress(edges);
        of.clock.advance(worker as u32, of.announced);
        of.announced
    }

    /// Sends what waits, and progress behind it.
    fn announce(&self, state: &mut State, worker: usize, operator: usize) -> Done {
        let progress = Self::reached(state, worker, operator);
        self.flush(state, worker, operator, progress);
        let before = state.workers[worker].operators[operator].cast;
        let others = (0..state.workers.len()).filter(|&to| to != worker);
        for to in others.filter(|_| !self.merges(operator)) {
            state.send(worker, to, operator, Kind::Progress { progress, before });
        }
        self.look(state, worker, operator)
    }

    /// All edges have marked: sends the marker behind what waits.
    fn send_marker(&self, state: &mut State, worker: usize, operator: usize) -> Done {
        let progress = Self::reached(state, worker, operator);
        if self.flaw != Flaw::MarkerAhead {
            self.flush(state, worker, operator, progress);
        }
        let of = &mut state.workers[worker].operators[operator];
        let round = of.alignment.round();
        let before = if self.flaw == Flaw::CastsNotCounted { 0 } else { of.cast };
        of.alignment.sent();
        for to in (0..state.workers.len()).filter(|&to| to != worker) {
            state.send(worker, to, operator, Kind::Round { round, progress, before });
        }
        self.look(state, worker, operator)
    }

    /// An edge of a worker marks its round.
    fn mark(&self, state: &mut State, worker: usize, operator: usize, edge: usize) -> Done {
        let of = &mut state.workers[worker].operators[operator];
        let round = of.alignment.round();
        let due = of.alignment.mark_edge(edge, round).map_err(breach)?;
        if due { self.send_marker(state, worker, operator) } else { Ok(()) }
    }

    /// An edge of a worker ends.
    fn end(&self, state: &mut State, worker: usize, operator: usize, edge: usize) -> Done {
        let of = &mut state.workers[worker].operators[operator];
        of.edges.advance(edge as u32, Progress::ended(END_OF_STREAM));
        let ended = of.edges.ended();
        let counts = self.flaw != Flaw::EdgeEndNotCounted;
        let due = counts && of.alignment.end_edge(edge);
        if ended && self.flaw == Flaw::EndBeforeRows && operator == 0 {
            self.look(state, worker, operator)
        } else if ended {
            self.announce(state, worker, operator)
        } else if due {
            self.send_marker(state, worker, operator)
        } else {
            Ok(())
        }
    }

    /// Where a round is complete: time settles; the second operator, which has nothing to emit,
    /// saves at once.
    fn look(&self, state: &mut State, worker: usize, operator: usize) -> Done {
        let of = &mut state.workers[worker].operators[operator];
        if !of.alignment.is_complete() {
            return Ok(());
        }
        if self.flaw != Flaw::ClocksNotSettled {
            of.clock.settle();
        }
        if operator == 1 { self.save(state, worker, operator) } else { Ok(()) }
    }

    /// Saves the state of an instance, passes the marker on, and begins the next round.
    fn save(&self, state: &mut State, worker: usize, operator: usize) -> Done {
        let of = &state.workers[worker].operators[operator];
        let kept = (of.rows.clone(), if operator == 0 { of.clock.least() } else { i64::MIN });
        let round = of.alignment.round();
        state.saved.entry(round).or_default().operators.insert((operator, worker), kept);
        self.complete(state, round)?;
        if operator == 0 {
            self.mark(state, worker, 1, 0)?;
        }
        let of = &mut state.workers[worker].operators[operator];
        of.alignment.begin_next();
        for (from, frame) in std::mem::take(&mut of.kept) {
            self.take(state, worker, from, frame)?;
        }
        self.look(state, worker, operator)
    }

    /// Checks a round that all have saved.
    fn complete(&self, state: &mut State, round: u64) -> Done {
        let saved = &state.saved[&round];
        let workers = state.workers.len();
        if saved.operators.len() < 2 * workers || saved.positions.len() < self.splits.len() {
            return Ok(());
        }
        let saved = state.saved.remove(&round).unwrap_or_default();
        state.done = round + 1;
        let of = |operator| saved.operators.iter().filter(move |((of, _), _)| *of == operator);
        let times: Vec<i64> = of(0).map(|(_, (_, time))| *time).collect();
        if times.iter().any(|time| *time != times[0]) {
            return Err(format!("R2: they saved at {times:?}"));
        }
        let copies = if self.way == Way::Broadcast { workers } else { 1 };
        let count = |operator, row: Row| {
            of(operator).flat_map(|(_, (rows, _))| rows).filter(|of| **of == row).count()
        };
        for (split, times) in self.splits.iter().enumerate() {
            for (at, &time) in times.iter().enumerate() {
                let row = self.row(split, at);
                let (first, second) = (count(0, row), count(1, row));
                if first > 0
                    && time <= *saved.operators.values().map(|(_, at)| at).max().unwrap_or(&0)
                {
                    return Err(format!("R3: row {row} of time {time} was due"));
                }
                let was_read = at < saved.positions[&split];
                let once = matches!((first, second), (0, 1)) || (first, second) == (copies, 0);
                if (first, second) != (0, 0) && !was_read || was_read && !once {
                    return Err(format!("R1: row {row}: {first} and {second} times"));
                }
            }
        }
        state.whole = Some(saved);
        Ok(())
    }

    /// A frame comes to a worker.
    fn deliver(&self, state: &mut State, from: usize, to: usize, frame: Frame) -> Done {
        let workers = state.workers.len();
        if let Kind::Cast { source, .. } = frame.kind {
            // A relay passes it on at once, as it is.
            let next = (to + 1) % workers;
            if next != source {
                state.links.entry((to, next)).or_default().push_back(frame.clone());
            }
            return self.take(state, to, from, frame);
        }
        let of = &mut state.workers[to].operators[frame.operator];
        match of.alignment.arrives(from as u32, frame.colour).map_err(breach)? {
            Arrives::Later if self.flaw != Flaw::NothingKept => {
                let round = of.alignment.round();
                of.kept.push((from, frame));
                self.hear(state, to, round);
                Ok(())
            }
            _ => self.take(state, to, from, frame),
        }
    }

    fn hear(&self, state: &mut State, worker: usize, round: u64) {
        if self.flaw != Flaw::NoLamport {
            let asked = &mut state.workers[worker].asked;
            *asked = (*asked).max(round + 1);
        }
    }

    /// Takes a frame, whose round is under way; a broadcast row may have to be kept apart.
    fn take(&self, state: &mut State, worker: usize, from: usize, frame: Frame) -> Done {
        let Frame { operator, colour, ref kind } = frame;
        let of = &mut state.workers[worker].operators[operator];
        match *kind {
            Kind::Rows(ref rows) => {
                of.rows.extend(rows);
                of.rows.sort_unstable();
            }
            Kind::Delta { ref rows, progress } => {
                of.rows.extend(rows);
                of.rows.sort_unstable();
                of.held[from].push_back((progress, 0));
                return self.release(state, worker, operator, from);
            }
            Kind::Cast { source, row } => {
                let arrives = of.alignment.relayed(colour).map_err(breach)?;
                // A row that was kept apart has been counted when it came.
                of.received[source] += u64::from(from != worker);
                if arrives == Arrives::Later && self.flaw != Flaw::NoColour {
                    let round = of.alignment.round();
                    of.kept.push((worker, Frame { operator, colour, kind: kind.clone() }));
                    self.hear(state, worker, round);
                } else {
                    of.rows.push(row);
                    of.rows.sort_unstable();
                }
                return self.release(state, worker, operator, source);
            }
            Kind::Progress { progress, before } => {
                of.held[from].push_back((progress, before));
                return self.release(state, worker, operator, from);
            }
            Kind::Round { round, progress, before } => {
                if !self.merges(operator) {
                    of.held[from].push_back((progress, before));
                }
                self.release(state, worker, operator, from)?;
                let of = &mut state.workers[worker].operators[operator];
                let received = self.received(of, operator, from);
                let marked = of.alignment.mark_peer(from as u32, round, before, received);
                marked.map_err(breach)?;
                self.hear(state, worker, round);
                return self.look(state, worker, operator);
            }
        }
        Ok(())
    }

    fn received(&self, of: &Instance, operator: usize, from: usize) -> u64 {
        let casts = operator == 0 && self.way == Way::Broadcast;
        if casts { of.received[from] } else { u64::MAX }
    }

    /// Lets the progress of a worker count whose broadcasts are here.
    fn release(&self, state: &mut State, worker: usize, operator: usize, from: usize) -> Done {
        let of = &mut state.workers[worker].operators[operator];
        let received = self.received(of, operator, from);
        while let Some((progress, _)) = of.held[from].pop_front_if(|held| held.1 <= received) {
            of.clock.advance(from as u32, progress);
            if progress.presence == Presence::Ended && self.flaw != Flaw::PeerEndNotCounted {
                of.alignment.end_peer(from as u32);
            }
        }
        of.alignment.received(from as u32, received);
        self.look(state, worker, operator)
    }

    /// The run loop of the first operator: emits what is due, or saves, or ends.
    fn run(&self, state: &mut State, worker: usize) -> Option<Done> {
        let workers = state.workers.len();
        let [first, second] = &state.workers[worker].operators;
        let (due, complete) = (first.due(self), first.alignment.is_complete());
        if complete && (due.is_empty() || self.flaw == Flaw::SaveBeforeDue) {
            return second.alignment.may_pass(0).then(|| self.save(state, worker, 0));
        }
        if first.ended || !second.alignment.may_pass(0) {
            return None;
        }
        if !due.is_empty() {
            state.workers[worker].operators[0].rows.retain(|row| !due.contains(row));
            for row in due {
                let emits = self.way != Way::Broadcast || row as usize % workers == worker;
                if emits {
                    self.push(state, worker, 1, row);
                }
            }
            return Some(Ok(()));
        }
        if !first.clock.ended() {
            return None;
        }
        state.workers[worker].operators[0].ended = true;
        Some(self.end(state, worker, 1, 0))
    }

    fn mark_split(&self, state: &mut State, worker: usize, edge: usize) -> Done {
        let split = &mut state.workers[worker].splits[edge];
        let (number, read, round) = (split.number, split.read, split.round);
        split.round += 1;
        state.saved.entry(round).or_default().positions.insert(number, read);
        self.mark(state, worker, 0, edge)
    }

    /// A split has ended: that is its position in all later rounds.
    fn end_split(&self, state: &mut State, worker: usize, edge: usize) -> Done {
        let split = &mut state.workers[worker].splits[edge];
        let (number, read, round) = (split.number, split.read, split.round);
        split.ended = true;
        for later in round..self.rounds {
            state.saved.entry(later).or_default().positions.insert(number, read);
        }
        self.end(state, worker, 0, edge)
    }

    fn split_steps(&self, state: &State, worker: usize, edge: usize, out: &mut Steps) {
        let split = &state.workers[worker].splits[edge];
        if split.ended {
            return;
        }
        let mut add = |step, change: &dyn Fn(&mut State) -> Done| {
            let mut next = state.clone();
            out.push((step, change(&mut next).map(|()| next)));
        };
        let times = &self.splits[split.number];
        let passes = self.may_pass(state, worker, 0, edge);
        if state.workers[worker].asked > split.round
            && state.workers[worker].operators[0].alignment.may_pass(edge)
            && (!split.in_hand || self.flaw == Flaw::PositionAhead)
        {
            let step = Step::Mark { worker, split: split.number };
            add(step, &|next| self.mark_split(next, worker, edge));
        }
        let stays = |row: Row| row as usize % state.workers.len() == worker;
        let push = |next: &mut State, at: usize| {
            let row = self.row(split.number, at);
            let of = &mut next.workers[worker].operators[0];
            of.edges.advance(edge as u32, Progress::active(times[at]));
            self.push(next, worker, 0, row);
            Ok(())
        };
        if split.in_hand && passes {
            add(Step::Push { worker, split: split.number }, &|next| {
                next.workers[worker].splits[edge].in_hand = false;
                push(next, split.read - 1)
            });
        }
        if split.read < times.len() && !split.in_hand {
            let own = self.flaw == Flaw::OwnRowsGoOn && stays(self.row(split.number, split.read));
            let step = Step::Read { worker, split: split.number };
            if self.flaw == Flaw::PositionAhead {
                add(step, &|next| {
                    let split = &mut next.workers[worker].splits[edge];
                    (split.read, split.in_hand) = (split.read + 1, true);
                    Ok(())
                });
            } else if passes || own {
                add(step, &|next| {
                    next.workers[worker].splits[edge].read += 1;
                    push(next, split.read)
                });
            }
        }
        if split.read == times.len() && !split.in_hand && passes {
            if self.idle && !split.idle {
                add(Step::Idle { worker, split: split.number }, &|next| {
                    next.workers[worker].splits[edge].idle = true;
                    let of = &mut next.workers[worker].operators[0];
                    let reached = of.edges.of(edge as u32).map_or(i64::MIN, |of| of.watermark);
                    of.edges.advance(edge as u32, Progress::idle(reached));
                    Ok(())
                });
            }
            let step = Step::End { worker, split: split.number };
            add(step, &|next| self.end_split(next, worker, edge));
        }
    }

    fn worker_steps(&self, state: &State, worker: usize, out: &mut Steps) {
        for edge in 0..state.workers[worker].splits.len() {
            self.split_steps(state, worker, edge, out);
        }
        let of = &state.workers[worker].operators[0];
        let progress = of.progress(state.workers[worker].splits.len());
        let has_ended = progress.presence == Presence::Ended;
        let quiet = of.alignment.is_marked() || has_ended && self.flaw != Flaw::EndBeforeRows;
        if progress != of.announced && !quiet {
            let mut next = state.clone();
            let announced = self.announce(&mut next, worker, 0);
            out.push((Step::Announce { worker }, announced.map(|()| next)));
        }
        let mut next = state.clone();
        if let Some(ran) = self.run(&mut next, worker) {
            out.push((Step::Run { worker }, ran.map(|()| next)));
        }
    }
}

impl Model for RoundModel {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        vec![self.begin(self.workers, 0, &Saved::default())]
    }

    fn steps(&self, state: &State, out: &mut Steps) {
        let waits = state.asked > state.done;
        if state.asked < self.rounds && !waits && !state.crashed {
            for announced in 0..state.workers.len() {
                let mut next = state.clone();
                next.asked += 1;
                next.workers[announced].asked = next.asked;
                out.push((Step::EndRound { announced }, Ok(next)));
            }
        }
        for worker in 0..state.workers.len() {
            self.worker_steps(state, worker, out);
        }
        for (&(from, to), frames) in &state.links {
            let Some(frame) = frames.front().cloned() else { continue };
            let mut next = state.clone();
            if let Some(link) = next.links.get_mut(&(from, to)) {
                link.pop_front();
                if link.is_empty() {
                    next.links.remove(&(from, to));
                }
            }
            let delivered = self.deliver(&mut next, from, to, frame);
            out.push((Step::Deliver { from, to }, delivered.map(|()| next)));
        }
        if let (Some(workers), false) = (self.crash, state.crashed) {
            let saved = state.whole.clone().unwrap_or_default();
            let mut next = self.begin(workers, state.done, &saved);
            next.crashed = true;
            out.push((Step::Crash, Ok(next)));
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for worker in &state.workers {
            let keeps = |of: &&Instance| !of.kept.is_empty();
            if let Some(of) = worker.operators.iter().find(keeps)
                && worker.asked <= of.alignment.round()
            {
                return Err(
                    "R6: a worker that keeps the next round apart goes on in its own".into()
                );
            }
        }
        Ok(())
    }

    fn is_final(&self, state: &State) -> bool {
        let mut rows: Vec<Row> =
            state.workers.iter().flat_map(|worker| worker.operators[1].rows.clone()).collect();
        rows.sort_unstable();
        let all = 0..self.splits.iter().map(Vec::len).sum::<usize>() as Row;
        let ended =
            |worker: &Worker| worker.operators[0].ended && worker.operators[0].rows.is_empty();
        state.links.is_empty() && state.workers.iter().all(ended) && rows == all.collect::<Vec<_>>()
    }
}

const STATES_MAX: usize = 3_000_000;

fn run(model: &RoundModel) -> Result<Explored, Violation> {
    explore(model, STATES_MAX)
}

/// The configurations that are explored.
fn honest() -> Vec<(&'static str, RoundModel)> {
    let of = RoundModel::new;
    let idle = |model: RoundModel| RoundModel { idle: true, ..model };
    let crash = |workers, model: RoundModel| RoundModel { crash: Some(workers), ..model };
    let twice = |model: RoundModel| RoundModel { rounds: 2, ..model };
    use Way::{Broadcast, Merge, Shuffle};
    vec![
        ("two edges", of(Shuffle, 2, &[&[1, 3], &[2], &[2]])),
        ("two edges that merge", of(Merge, 2, &[&[1, 3], &[2], &[2]])),
        ("two edges that broadcast", of(Broadcast, 2, &[&[1], &[2], &[2]])),
        ("three workers", of(Shuffle, 3, &[&[1], &[2], &[]])),
        ("three that merge", of(Merge, 3, &[&[1], &[], &[]])),
        ("a chain of relays", of(Broadcast, 3, &[&[1], &[], &[]])),
        ("two rounds", twice(of(Shuffle, 2, &[&[1, 3], &[2]]))),
        ("two rounds of a broadcast", twice(of(Broadcast, 2, &[&[1, 2], &[2]]))),
        ("idle", idle(of(Shuffle, 2, &[&[1, 3], &[2]]))),
        ("idle, merge", idle(of(Merge, 2, &[&[1, 3], &[2]]))),
        ("from two to one", crash(1, of(Shuffle, 2, &[&[1, 3], &[2]]))),
        ("from two to three", crash(3, of(Shuffle, 2, &[&[1, 3], &[2], &[]]))),
        ("a merge from one to two", crash(2, of(Merge, 1, &[&[1, 3], &[2, 4]]))),
        ("a broadcast from two to one", crash(1, of(Broadcast, 2, &[&[1, 3], &[2]]))),
        ("a broadcast from two to three", crash(3, of(Broadcast, 2, &[&[1], &[2], &[]]))),
    ]
}

#[test]
fn each_row_is_in_the_cut_once_whatever_comes_first() {
    let mut states = 0;
    for (name, model) in honest() {
        let explored = run(&model).unwrap_or_else(|violation| {
            panic!("{name}: {}\n{}", violation.reason, violation.trace)
        });
        assert!(explored.finals > 0, "{name}");
        states += explored.states;
    }
    assert!(states > 500_000, "only {states} states");
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    use Way::{Broadcast, Merge, Shuffle};
    let small = |way| RoundModel::new(way, 2, &[&[1, 3], &[2]]);
    let edges = |way| RoundModel::new(way, 2, &[&[1], &[2], &[2]]);
    let relays = || RoundModel::new(Broadcast, 3, &[&[1], &[], &[]]);
    for (flaw, reason, model) in [
        (Flaw::NoColour, "R1", small(Broadcast)),
        (Flaw::NothingKept, "R1", small(Shuffle)),
        (Flaw::EdgeGoesOn, "R", edges(Shuffle)),
        (Flaw::OwnRowsGoOn, "R1", edges(Shuffle)),
        (Flaw::MarkerAhead, "R", small(Shuffle)),
        (Flaw::MarkerAhead, "R", small(Merge)),
        (Flaw::PositionAhead, "R1", small(Shuffle)),
        (Flaw::CastsNotCounted, "R", relays()),
        (Flaw::EdgeEndNotCounted, "dead end", edges(Shuffle)),
        (Flaw::PeerEndNotCounted, "dead end", small(Shuffle)),
        (Flaw::EndBeforeRows, "dead end", small(Shuffle)),
        (Flaw::NoLamport, "R6", small(Shuffle)),
        (Flaw::SaveBeforeDue, "R3", small(Shuffle)),
        (Flaw::ClocksNotSettled, "R2", RoundModel { idle: true, ..small(Shuffle) }),
    ] {
        let found = run(&RoundModel { flaw, ..model }).err();
        let found = found.unwrap_or_else(|| panic!("{flaw:?} goes unnoticed"));
        assert!(found.reason.starts_with(reason), "{flaw:?}: {}\n{}", found.reason, found.trace);
    }
}
