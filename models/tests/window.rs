//! Shuffles that share a ring, explored completely: workers in a circle, a chain of shuffles, and
//! all of their frames in one ring from each worker to the next. The windows are the types of
//! `channel` that the engine runs.
//!
//! A source first sends the rows of a build side, if there are any, and the end of the build; then,
//! when its own build is complete, it sends rows that are shuffled once, probed, shuffled again and
//! so on. Rows for a build that is not complete wait.
//!
//! Invariants of every state: W1 no more than a window of bytes waits for an operator; W2 the
//! consumer refuses no frame of an honest producer, and the producer no position of an honest
//! consumer; W3 there is always a step until all rows are processed; W4 when all rows are processed
//! and the producer knows the last position, less than a quarter of its window is taken. Each
//! deviation in [`Flaw`] must be found.

use std::collections::VecDeque;

use channel::protocol::{FRAME_BYTES_MIN, ReceiveWindow, SendWindow};
use models::{Model, Steps as StepsOf};

use crate::{finds, holds};

/// A deviation from the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A worker that waits for room in a ring does nothing else, as in the paper.
    BlockingWorker,
    /// A frame stays in the ring until its operator can pass on its output.
    HeldInRing,
    /// The producer sends all frames for which the ring has room.
    NoWindow,
    /// The window is never given back.
    NothingReturned,
    /// The number of bytes processed since the last time is returned.
    Increments,
    /// The window is given back when frames are taken off the ring.
    ReturnedOnReceipt,
    /// The source reads the probe side first, and sends the build after it.
    ProbeFirst,
}

struct Shuffles {
    workers: usize,
    shuffles: usize,
    /// The frames of each source for the probe side, and for the build side.
    frames: u8,
    builds: u8,
    /// Frames that a ring holds.
    ring: usize,
    /// Frames that a window holds.
    window: u64,
    flaw: Flaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Frame {
    Build,
    /// The build of the sender has ended.
    BuildEnd,
    /// Rows of a shuffle.
    Rows(usize),
}

/// A worker, and its ring to the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Worker {
    /// Frames that the source has still to send for the build side (with its end) and for the
    /// probe side.
    builds: u8,
    rows: u8,
    /// The build side is complete on this worker.
    whole: bool,
    /// By shuffle: whether a frame waits to be sent, and the number that wait to be processed.
    sending: Vec<bool>,
    inbox: Vec<u8>,
    /// Frames that have come out of the last shuffle.
    done: u8,
    ring: VecDeque<Frame>,
    send: Vec<SendWindow>,
    /// At the next worker: its windows, and the positions that it has still to return.
    receive: Vec<ReceiveWindow>,
    pending: Vec<Option<u64>>,
    /// The last position that it decided to return, and the last one that the producer knows.
    returned: Vec<u64>,
    acknowledged: Vec<u64>,
}

type State = Vec<Worker>;

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "fields are there for the trace of a violation")]
enum Step {
    Build(usize),
    Read(usize),
    Send(usize, usize),
    Take(usize, Frame),
    Process(usize, usize),
    Return(usize, usize, u64),
}

type Steps = StepsOf<Step, State>;

impl Shuffles {
    fn honest(workers: usize, shuffles: usize, frames: u8) -> Self {
        Self { workers, shuffles, frames, builds: 0, ring: 1, window: 2, flaw: Flaw::None }
    }

    fn before(&self, worker: usize) -> usize {
        (worker + self.workers - 1) % self.workers
    }

    /// Whether the worker takes no other step because a frame waits for room.
    fn stands_still(&self, worker: &Worker) -> bool {
        self.flaw == Flaw::BlockingWorker && worker.sending.contains(&true)
    }

    fn read(&self, s: &State, w: usize, out: &mut Steps) {
        let worker = &s[w];
        if self.stands_still(worker) {
            return;
        }
        let builds = worker.builds > 0 && worker.ring.len() < self.ring;
        let reads_probe = worker.rows == 0 && !worker.sending[0];
        if builds && (self.flaw != Flaw::ProbeFirst || reads_probe) {
            let mut next = s.clone();
            next[w].builds -= 1;
            next[w].ring.push_back(if worker.builds > 1 { Frame::Build } else { Frame::BuildEnd });
            out.push((Step::Build(w), Ok(next)));
        }
        let may_probe = (worker.whole && worker.builds == 0) || self.flaw == Flaw::ProbeFirst;
        if worker.rows > 0 && !worker.sending[0] && may_probe {
            let mut next = s.clone();
            next[w].rows -= 1;
            next[w].sending[0] = true;
            out.push((Step::Read(w), Ok(next)));
        }
    }

    /// Coroutines write the frames that wait to the ring.
    fn send(&self, s: &State, w: usize, out: &mut Steps) {
        if s[w].ring.len() == self.ring {
            return;
        }
        for shuffle in (0..self.shuffles).filter(|&shuffle| s[w].sending[shuffle]) {
            let mut next = s.clone();
            let fits = next[w].send[shuffle].reserve(0);
            if fits || self.ignores_windows() {
                next[w].sending[shuffle] = false;
                next[w].ring.push_back(Frame::Rows(shuffle));
                out.push((Step::Send(w, shuffle), Ok(next)));
            }
        }
    }

    /// Whether the frames that wait are not counted.
    fn ignores_windows(&self) -> bool {
        matches!(self.flaw, Flaw::BlockingWorker | Flaw::HeldInRing | Flaw::NoWindow)
    }

    /// Whether rows are processed on their way off the ring.
    fn has_no_inbox(&self) -> bool {
        matches!(self.flaw, Flaw::BlockingWorker | Flaw::HeldInRing)
    }

    /// The worker takes the first frame off the ring that leads to it.
    fn take(&self, s: &State, w: usize, out: &mut Steps) {
        let from = self.before(w);
        let Some(&frame) = s[from].ring.front() else { return };
        if self.stands_still(&s[w]) {
            return;
        }
        let mut next = s.clone();
        next[from].ring.pop_front();
        let result = match frame {
            Frame::Build => Ok(next),
            Frame::BuildEnd => {
                next[w].whole = true;
                Ok(next)
            }
            Frame::Rows(shuffle) if self.has_no_inbox() => {
                if !Self::process_one(&mut next[w], shuffle) {
                    return;
                }
                Ok(next)
            }
            Frame::Rows(shuffle) => {
                next[w].inbox[shuffle] += 1;
                let received = next[from].receive[shuffle].receive(0);
                if self.flaw == Flaw::ReturnedOnReceipt
                    && let Some(position) = next[from].receive[shuffle].consume(FRAME_BYTES_MIN)
                {
                    next[from].pending[shuffle] = Some(position);
                }
                received.map(|_| next).map_err(|breach| format!("W2: {breach}"))
            }
        };
        out.push((Step::Take(w, frame), result));
    }

    /// An operator processes a frame, unless its last output still waits to be sent.
    fn process_one(worker: &mut Worker, shuffle: usize) -> bool {
        match worker.sending.get_mut(shuffle + 1) {
            _ if !worker.whole => return false,
            Some(true) => return false,
            Some(sending) => *sending = true,
            None => worker.done += 1,
        }
        true
    }

    fn process(&self, s: &State, w: usize, out: &mut Steps) {
        let from = self.before(w);
        for shuffle in (0..self.shuffles).filter(|&shuffle| s[w].inbox[shuffle] > 0) {
            let mut next = s.clone();
            if !Self::process_one(&mut next[w], shuffle) {
                continue;
            }
            next[w].inbox[shuffle] -= 1;
            let way = &mut next[from];
            if self.flaw != Flaw::ReturnedOnReceipt
                && let Some(position) = way.receive[shuffle].consume(FRAME_BYTES_MIN)
            {
                let before = std::mem::replace(&mut way.returned[shuffle], position);
                way.pending[shuffle] = match self.flaw {
                    Flaw::NothingReturned => None,
                    Flaw::Increments => Some(position - before),
                    _ => Some(position),
                };
            }
            out.push((Step::Process(w, shuffle), Ok(next)));
        }
    }

    /// A pending position reaches the producer: only the last one, since each replaces the one
    /// before it.
    fn give_back(&self, s: &State, from: usize, out: &mut Steps) {
        for shuffle in 0..self.shuffles {
            let Some(number) = s[from].pending[shuffle] else { continue };
            let mut next = s.clone();
            next[from].pending[shuffle] = None;
            let way = &mut next[from];
            way.acknowledged[shuffle] += number;
            let position =
                if self.flaw == Flaw::Increments { way.acknowledged[shuffle] } else { number };
            way.acknowledged[shuffle] = position;
            let returned = way.send[shuffle].consumed(position);
            let result = returned.map(|()| next).map_err(|breach| format!("W2: {breach}"));
            out.push((Step::Return(from, shuffle, number), result));
        }
    }
}

impl Model for Shuffles {
    type State = State;
    type Step = Step;

    fn initial(&self) -> Vec<State> {
        let bytes = self.window * FRAME_BYTES_MIN;
        let shuffles = self.shuffles;
        let worker = Worker {
            builds: self.builds,
            rows: self.frames,
            whole: self.builds == 0,
            sending: vec![false; shuffles],
            inbox: vec![0; shuffles],
            done: 0,
            ring: VecDeque::new(),
            send: vec![SendWindow::new(bytes); shuffles],
            receive: vec![ReceiveWindow::new(bytes); shuffles],
            pending: vec![None; shuffles],
            returned: vec![0; shuffles],
            acknowledged: vec![0; shuffles],
        };
        vec![vec![worker; self.workers]]
    }

    fn steps(&self, s: &State, out: &mut Steps) {
        for w in 0..self.workers {
            self.read(s, w, out);
            self.send(s, w, out);
            self.take(s, w, out);
            self.process(s, w, out);
            self.give_back(s, w, out);
        }
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let window = self.window;
        for w in 0..self.workers {
            let way = &s[self.before(w)];
            for (shuffle, &waiting) in s[w].inbox.iter().enumerate() {
                if u64::from(waiting) > window {
                    return Err(format!("W1: {waiting} frames wait, beyond a window of {window}"));
                }
                let rests = waiting == 0
                    && !way.ring.contains(&Frame::Rows(shuffle))
                    && way.pending[shuffle].is_none();
                let lacks = way.send[shuffle].unprocessed();
                if rests && !self.ignores_windows() && lacks * 4 >= window * FRAME_BYTES_MIN {
                    return Err(format!("W4: all is processed, and {lacks} bytes are missing"));
                }
            }
        }
        Ok(())
    }

    fn is_final(&self, s: &State) -> bool {
        let done: usize = s.iter().map(|worker| usize::from(worker.done)).sum();
        done == self.workers * usize::from(self.frames)
    }
}

fn fails(model: &Shuffles, reason: &str) {
    finds(model, model.flaw, reason);
}

#[test]
fn chains_of_shuffles_end_and_no_more_than_a_window_waits() {
    holds(&Shuffles::honest(2, 2, 4), 100_000);
    holds(&Shuffles::honest(2, 3, 2), 10_000);
    holds(&Shuffles::honest(3, 2, 2), 100_000);
}

#[test]
fn a_window_that_is_returned_by_quarters_is_enough() {
    holds(&Shuffles { window: 8, ..Shuffles::honest(2, 2, 4) }, 10_000);
}

#[test]
fn rows_for_a_build_that_is_not_whole_wait_within_the_window() {
    holds(&Shuffles { builds: 3, ..Shuffles::honest(2, 2, 3) }, 10_000);
    holds(&Shuffles { builds: 1, ..Shuffles::honest(3, 2, 2) }, 10_000);
}

#[test]
fn workers_that_wait_for_room_and_take_nothing_wait_forever() {
    let flaw = Flaw::BlockingWorker;
    fails(&Shuffles { flaw, ring: 2, ..Shuffles::honest(2, 2, 3) }, "dead end");
    let flaw = Flaw::HeldInRing;
    fails(&Shuffles { flaw, ..Shuffles::honest(2, 2, 4) }, "dead end");
}

#[test]
fn without_a_window_any_number_of_frames_waits() {
    fails(&Shuffles { flaw: Flaw::NoWindow, ..Shuffles::honest(2, 2, 4) }, "beyond a window");
    fails(&Shuffles { flaw: Flaw::ReturnedOnReceipt, ..Shuffles::honest(2, 2, 4) }, "W1");
}

#[test]
fn a_window_that_is_not_returned_as_a_position_closes() {
    fails(&Shuffles { flaw: Flaw::NothingReturned, ..Shuffles::honest(2, 2, 4) }, "W4");
    fails(&Shuffles { flaw: Flaw::Increments, ..Shuffles::honest(2, 2, 4) }, "W4");
}

#[test]
fn a_source_that_reads_the_probe_side_first_waits_forever() {
    let flaw = Flaw::ProbeFirst;
    fails(&Shuffles { flaw, builds: 2, ..Shuffles::honest(2, 2, 4) }, "dead end");
}
