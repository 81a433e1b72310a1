//! The node that leads: when a round ends, and what its nodes have stored of it.
//!
//! A round ends only when all workers have saved the one before, stored or not: no more than two
//! are under way.

use std::time::{Duration, Instant};

use checkpoint::{CheckpointError, SegmentEntry};
use dataflow::job::CheckpointInterval;

use super::keeper::{KeeperEvent, RoundEnd};
use super::messages::Message;
use crate::checkpoints::{
    CheckpointProgress, LastCheckpoint, PendingCheckpoint, RestoredCheckpoint,
};
use crate::error::Error;

/// The shortest and the longest interval of `auto`.
const AUTO: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How many times longer than a checkpoint an interval of `auto` is.
const AUTO_SHARE: u32 = 100;

/// How often the last checkpoint of a job is tried.
const ENDS_TRIED_MAX: u32 = 5;
/// The pause behind the first try; behind the second it is twice as long, and so on.
const END_PAUSE: Duration = Duration::from_secs(1);

/// The shortest time between two warnings about checkpoints that are given up: a store may be gone
/// for minutes.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// How long after the user has asked for the job's end the workers of a node may take to save the
/// last checkpoint, while no other node goes on: then the job ends behind the one before.
/// Schedulers grant 30 s at least. A saved round is stored, however long that takes.
const STOP_WITHOUT_PARTS: Duration = Duration::from_secs(20);

/// An order of the leader.
pub(super) enum Order {
    /// To be told to all nodes.
    All(Message),
    /// For its own thread.
    Own(KeeperEvent),
}

/// How far a checkpoint is.
enum Phase {
    /// None is under way.
    Rests,
    /// By node, whether its sources are to rest behind the next round. The round ends only when
    /// all are: a worker to which a peer marks the round would read on.
    Calms { resting: Vec<bool> },
    /// Nodes store their parts.
    Gathers { round: u64, end: RoundEnd, parts: Vec<Option<Option<SegmentEntry>>>, since: Instant },
    /// The record is written, and output is published.
    Records { round: u64, bytes: u64, since: Instant },
    /// The job is stopped, or has ended.
    Over,
}

/// The state of the leader.
pub(super) struct Leader {
    interval: Option<CheckpointInterval>,
    /// Whether the job can be saved.
    can_save: bool,
    auto: Duration,
    /// When the last round was ended.
    ended_at: Instant,
    /// The round that is under way.
    round: u64,
    /// The last checkpoint that this run has put into the chain; 0 before the first.
    stored: u64,
    /// The last checkpoint for those who watch the job, and when its round was ended.
    last: Option<(LastCheckpoint, Instant)>,
    /// The counts for those who watch the job.
    counts: CheckpointProgress,
    /// By node, whether all of its workers have ended.
    nodes_ended: Vec<bool>,
    phase: Phase,
    /// By node, whether its workers have saved the round that is under way.
    saved: Vec<bool>,
    stop_sent: bool,
    /// Whether all sources rest behind the next round.
    rests: bool,
    /// When something of the last checkpoint came last, or the user asked for the end; `None`
    /// before.
    stops: Option<Instant>,
    /// Last checkpoints of the job in a row that could not be stored, and why the last could not.
    failed_ends: u32,
    why: String,
    /// When the user was last warned of a checkpoint that is given up, since the last stored one.
    warned: Option<Instant>,
}

impl Leader {
    /// Of a job whose first round is `round`. Without an interval only its end, and its stop if it
    /// can be saved, is a checkpoint.
    pub(super) fn new(
        (interval, can_save): (Option<CheckpointInterval>, bool),
        round: u64,
        nodes: u32,
    ) -> Self {
        Self {
            interval: interval.filter(|_| can_save),
            can_save,
            auto: AUTO[0],
            ended_at: Instant::now(),
            round,
            stored: 0,
            last: None,
            counts: CheckpointProgress::default(),
            nodes_ended: vec![false; nodes as usize],
            phase: Phase::Rests,
            saved: vec![false; nodes as usize],
            stop_sent: false,
            rests: false,
            stops: None,
            failed_ends: 0,
            why: String::new(),
            warned: None,
        }
    }

    /// The same, of a job that goes on from a checkpoint.
    pub(super) fn going_on_from(mut self, restored: Option<RestoredCheckpoint>) -> Self {
        let Some(restored) = restored else { return self };
        let RestoredCheckpoint { number, bytes, .. } = restored;
        let last = LastCheckpoint { number, bytes, age: Duration::ZERO, duration: None };
        self.last = Some((last, Instant::now()));
        self.counts.restored = Some(restored);
        self
    }

    /// How the checkpoints of the job stand.
    pub(super) fn progress(&self) -> CheckpointProgress {
        let last = self.last.as_ref().map(|(last, since)| {
            let age = since.elapsed();
            LastCheckpoint { age, ..last.clone() }
        });
        let pending = match &self.phase {
            Phase::Gathers { round, parts, since, .. } => {
                let nodes = (0..).zip(parts).filter(|(_, part)| part.is_none());
                let nodes = nodes.map(|(node, _)| node).collect();
                Some(PendingCheckpoint { round: *round, since: since.elapsed(), nodes })
            }
            Phase::Records { round, since, .. } => {
                let (round, since) = (*round, since.elapsed());
                Some(PendingCheckpoint { round, since, nodes: Vec::new() })
            }
            Phase::Rests | Phase::Calms { .. } | Phase::Over => None,
        };
        CheckpointProgress { last, pending, ..self.counts.clone() }
    }

    /// A checkpoint is not stored, for the reason `why`. The last one of the job is tried again.
    ///
    /// # Errors
    /// When it was tried often enough.
    fn gives_up(&mut self, end: RoundEnd) -> Result<(), Error> {
        self.counts.given_up += 1;
        self.counts.given_up_since += 1;
        if end == RoundEnd::GoesOn {
            return Ok(());
        }
        self.failed_ends += 1;
        if self.failed_ends < ENDS_TRIED_MAX {
            return Ok(());
        }
        let reason = format!("the last checkpoint cannot be stored: {}", self.why);
        Err(CheckpointError::Invalid { reason }.into())
    }

    /// Notes why a checkpoint cannot be stored, and warns the user unless that was done just now.
    fn warn(&mut self, node: Option<u32>, round: u64, why: String) {
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARNING_PAUSE) {
            self.warned = Some(Instant::now());
            tracing::warn!(node, round, %why, "a checkpoint is given up");
        } else {
            tracing::debug!(node, round, %why, "a checkpoint is given up");
        }
        self.why = why;
    }

    /// A checkpoint is stored, and its output is visible.
    fn has_stored(&mut self, number: u64, bytes: u64, since: Instant) {
        if self.warned.take().is_some() {
            let given_up = self.counts.given_up_since;
            tracing::warn!(number, given_up, "checkpoints are stored again");
        }
        let duration = Some(since.elapsed());
        self.last = Some((LastCheckpoint { number, bytes, age: Duration::ZERO, duration }, since));
        self.counts.stored += 1;
        self.counts.given_up_since = 0;
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// A message of a node.
    pub(super) fn received(&mut self, from: u32, message: Message) -> Result<(), Error> {
        let unlike = Error::Unlike { rank: from, what: "checkpoints" };
        let from = from as usize;
        let (of, part) = match message {
            Message::Part { round, entry } => (round, Some(entry)),
            Message::NoPart { round, why } => {
                self.warn(Some(from as u32), round, why);
                (round, None)
            }
            Message::Ended => {
                self.nodes_ended[from] = true;
                return Ok(());
            }
            Message::Rests | Message::Saved { .. } => {
                let has = match &mut self.phase {
                    Phase::Calms { resting } if message == Message::Rests => resting,
                    Phase::Gathers { round, .. } if message == Message::Saved { round: *round } => {
                        &mut self.saved
                    }
                    // The job was stopped without it.
                    Phase::Over => return Ok(()),
                    _ => return Err(unlike),
                };
                has[from] = true;
                self.stops = self.stops.map(|_| Instant::now());
                return Ok(());
            }
            Message::EndRound { .. } | Message::Rest { .. } | Message::Stop => return Err(unlike),
        };
        match &mut self.phase {
            Phase::Gathers { round, parts, .. } if *round == of => {
                parts[from] = Some(part);
                self.saved[from] = true;
                self.stops = self.stops.map(|_| Instant::now());
                Ok(())
            }
            // The job was stopped without it.
            Phase::Over => Ok(()),
            _ => Err(unlike),
        }
    }

    /// A record was written and its output published, or not.
    pub(super) fn recorded(
        &mut self,
        round: u64,
        end: RoundEnd,
        stored: Result<(), Error>,
    ) -> Result<(), Error> {
        let mut written = None;
        if let Phase::Records { bytes, since, .. } = &self.phase {
            self.auto = (since.elapsed() * AUTO_SHARE).clamp(AUTO[0], AUTO[1]);
            written = Some((*bytes, *since));
        }
        self.stops = self.stops.map(|_| Instant::now());
        let stored = match stored {
            Err(error) if error.leaves_checkpoint_out() => {
                self.warn(None, round, error.to_string());
                self.phase = Phase::Rests;
                return self.gives_up(end);
            }
            stored => stored,
        };
        stored?;
        self.stored = round;
        if let Some((bytes, since)) = written {
            self.has_stored(round, bytes, since);
        }
        self.phase = if end == RoundEnd::GoesOn { Phase::Rests } else { Phase::Over };
        Ok(())
    }

    /// The orders for now. `stop`: the user asks for the job's end.
    ///
    /// # Errors
    /// When the last checkpoint of the job cannot be stored. The one before stays.
    pub(super) fn turn(&mut self, stop: bool) -> Result<Vec<Order>, Error> {
        if stop {
            let since = *self.stops.get_or_insert_with(Instant::now);
            let waits = match self.phase {
                Phase::Gathers { .. } => self.saved.contains(&false),
                Phase::Calms { .. } => true,
                _ => false,
            };
            if waits && since.elapsed() > STOP_WITHOUT_PARTS {
                return Ok(vec![self.stop_without_checkpoint()]);
            }
        }
        let mut orders = Vec::new();
        if let Phase::Gathers { round, end, parts, since } = &self.phase {
            if parts.iter().any(Option::is_none) {
                return Ok(Vec::new());
            }
            let (round, end, since) = (*round, *end, *since);
            let stored =
                (0..).zip(parts).filter(|(_, part)| part.as_ref().is_some_and(Option::is_some));
            let nodes: Vec<u32> = stored.map(|(node, _)| node).collect();
            let whole: Option<Vec<SegmentEntry>> =
                parts.iter().cloned().map(Option::flatten).collect();
            self.phase = Phase::Rests;
            if let Some(parts) = whole {
                let bytes = parts.iter().map(|part| part.bytes).sum();
                self.phase = Phase::Records { round, bytes, since };
                return Ok(vec![Order::Own(KeeperEvent::Complete { round, parts, end })]);
            }
            self.gives_up(end)?;
            // The next checkpoint may need the room that these take.
            orders.push(Order::Own(KeeperEvent::Discard { round, nodes }));
        }
        if let Phase::Calms { resting } = &self.phase {
            if resting.contains(&false) {
                return Ok(orders);
            }
            self.rests = true;
            self.phase = Phase::Rests;
        }
        match self.phase {
            Phase::Over if stop && !self.stop_sent && !self.all_ended() => {
                self.stop_sent = true;
                orders.push(Order::All(Message::Stop));
            }
            Phase::Rests if self.ended_at.elapsed() >= END_PAUSE * self.failed_ends => {
                orders.extend(self.rest(stop));
            }
            _ => {}
        }
        Ok(orders)
    }

    /// Ends the job although a checkpoint is under way, for a sink or a source that waits keeps its
    /// worker from saving.
    fn stop_without_checkpoint(&mut self) -> Order {
        let seconds = STOP_WITHOUT_PARTS.as_secs();
        let waits = self.nodes_not_saved();
        let behind = match self.stored {
            0 => "where it began".to_owned(),
            number => format!("behind checkpoint {number}"),
        };
        tracing::warn!(nodes = ?waits, "nothing is saved for {seconds} s: the job stops {behind}");
        self.phase = Phase::Over;
        self.stop_sent = true;
        Order::All(Message::Stop)
    }

    /// The nodes whose workers have not saved the checkpoint under way.
    fn nodes_not_saved(&self) -> Vec<usize> {
        let Phase::Gathers { .. } = &self.phase else { return Vec::new() };
        self.saved.iter().enumerate().filter(|(_, saved)| !**saved).map(|(node, _)| node).collect()
    }

    pub(super) fn all_ended(&self) -> bool {
        self.nodes_ended.iter().all(|ended| *ended)
    }

    /// Ends the round, if it is time for that.
    fn rest(&mut self, stop: bool) -> Vec<Order> {
        let interval = self.interval.map(|interval| match interval {
            CheckpointInterval::Auto => self.auto,
            CheckpointInterval::Every(ns) => Duration::from_nanos(ns.get()),
        });
        let end = if self.all_ended() {
            RoundEnd::Ended
        } else if stop && !self.can_save {
            // Nothing of it can be kept.
            self.phase = Phase::Over;
            self.stop_sent = true;
            return vec![Order::All(Message::Stop)];
        } else if stop && !self.rests {
            self.phase = Phase::Calms { resting: vec![false; self.nodes_ended.len()] };
            return vec![Order::All(Message::Rest { round: self.round })];
        } else if stop {
            RoundEnd::Stops
        } else if interval.is_some_and(|interval| self.ended_at.elapsed() >= interval) {
            RoundEnd::GoesOn
        } else {
            return Vec::new();
        };
        let round = self.round;
        self.round += 1;
        self.ended_at = Instant::now();
        let parts = vec![None; self.nodes_ended.len()];
        self.phase = Phase::Gathers { round, end, parts, since: Instant::now() };
        self.saved.fill(false);
        vec![Order::All(Message::EndRound { round, stored: self.stored })]
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const ALWAYS: Option<CheckpointInterval> = Some(CheckpointInterval::Every(NonZeroU64::MIN));

    fn entry(file: &str) -> SegmentEntry {
        SegmentEntry { file: file.into(), bytes: 7, crc: 9 }
    }

    fn part(round: u64) -> Message {
        Message::Part { round, entry: entry("f") }
    }

    /// The leader's orders, in short.
    fn turn(leader: &mut Leader, stop: bool) -> String {
        let texts = leader.turn(stop).unwrap().into_iter().map(|order| match order {
            Order::All(message) => String::from_utf8(message.encode()).unwrap().replace('\t', " "),
            Order::Own(KeeperEvent::Complete { round, parts, end }) => {
                format!("complete {round} of {} {end:?}", parts.len())
            }
            Order::Own(KeeperEvent::Discard { round, nodes }) => {
                format!("discard {round} of {nodes:?}")
            }
            Order::Own(_) => "an event".into(),
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_round_ends_when_all_nodes_have_stored_the_one_before() {
        let mut leader = Leader::new((ALWAYS, true), 5, 2);
        assert_eq!(turn(&mut leader, false), "end 5 0");
        leader.received(1, part(5)).unwrap();
        assert_eq!(turn(&mut leader, false), "");
        leader.received(0, part(5)).unwrap();
        assert_eq!(turn(&mut leader, false), "complete 5 of 2 GoesOn");
        assert_eq!(turn(&mut leader, false), "", "it is being written");
        leader.recorded(5, RoundEnd::GoesOn, Ok(())).unwrap();
        assert_eq!(turn(&mut leader, false), "end 6 5");
        // One node cannot store its part: the checkpoint is given up, and output waits.
        leader.received(0, part(6)).unwrap();
        leader.received(1, Message::NoPart { round: 6, why: "full".into() }).unwrap();
        assert_eq!(turn(&mut leader, false), "discard 6 of [0], end 7 5");
        assert!(leader.received(1, part(6)).is_err(), "of a round that is over");
    }

    #[test]
    fn the_user_is_warned_of_checkpoints_that_are_given_up_and_not_of_each() {
        let mut leader = Leader::new((ALWAYS, true), 1, 1);
        let gives_up = |leader: &mut Leader, round: u64| {
            turn(leader, false);
            leader.received(0, Message::NoPart { round, why: "full".into() }).unwrap();
            leader.warned
        };
        let first = gives_up(&mut leader, 1);
        assert!(first.is_some() && gives_up(&mut leader, 2) == first);
        leader.warned = Instant::now().checked_sub(WARNING_PAUSE);
        assert!(gives_up(&mut leader, 3) > first);
        turn(&mut leader, false);
        leader.received(0, part(4)).unwrap();
        assert_eq!(turn(&mut leader, false), "complete 4 of 1 GoesOn");
        leader.recorded(4, RoundEnd::GoesOn, Ok(())).unwrap();
        assert!(leader.warned.is_none(), "a message says that checkpoints are stored again");
    }

    #[test]
    fn a_stop_is_told_behind_the_last_checkpoint() {
        let mut leader = Leader::new((ALWAYS, true), 5, 2);
        assert!(leader.received(1, Message::Rests).is_err(), "nobody has asked for it");
        assert_eq!(turn(&mut leader, true), "rest 5");
        leader.received(0, Message::Rests).unwrap();
        assert_eq!(turn(&mut leader, true), "", "sources of node 1 may not have heard of it");
        leader.received(1, Message::Rests).unwrap();
        assert_eq!(turn(&mut leader, true), "end 5 0");
        leader.received(0, part(5)).unwrap();
        leader.received(1, part(5)).unwrap();
        assert_eq!(turn(&mut leader, true), "complete 5 of 2 Stops");
        assert!(!leader.is_over());
        leader.recorded(5, RoundEnd::Stops, Ok(())).unwrap();
        assert_eq!(turn(&mut leader, true), "stop");
        assert_eq!(turn(&mut leader, true), "");
        assert!(leader.is_over());
        let mut unsaved = Leader::new((ALWAYS, false), 5, 1);
        assert_eq!(turn(&mut unsaved, false), "", "it takes no checkpoints");
        assert_eq!(turn(&mut unsaved, true), "stop");
    }

    #[test]
    fn a_stop_does_not_wait_for_a_node_that_never_saves() {
        let mut leader = Leader::new((ALWAYS, true), 5, 2);
        assert_eq!(turn(&mut leader, false), "end 5 0");
        assert_eq!(turn(&mut leader, true), "");
        // As if the time were over.
        let long_ago = || Instant::now().checked_sub(STOP_WITHOUT_PARTS * 2);
        leader.stops = long_ago();
        leader.received(1, part(5)).unwrap();
        assert_eq!(turn(&mut leader, true), "", "something has come");
        leader.stops = long_ago();
        assert_eq!(leader.nodes_not_saved(), [0]);
        assert_eq!(turn(&mut leader, true), "stop");
        assert!(leader.is_over());
        assert_eq!(turn(&mut leader, true), "");
        assert!(leader.received(0, part(5)).is_ok(), "it has come too late");
    }

    #[test]
    fn a_stop_waits_for_a_record_however_long_it_takes() {
        let mut leader = Leader::new((ALWAYS, true), 5, 1);
        assert_eq!(turn(&mut leader, false), "end 5 0");
        leader.received(0, part(5)).unwrap();
        assert_eq!(turn(&mut leader, false), "complete 5 of 1 GoesOn");
        assert_eq!(turn(&mut leader, true), "");
        leader.stops = Instant::now().checked_sub(STOP_WITHOUT_PARTS * 2);
        assert_eq!(turn(&mut leader, true), "", "the record is being written");
        leader.recorded(5, RoundEnd::GoesOn, Ok(())).unwrap();
        assert_eq!(turn(&mut leader, true), "rest 6");
        assert_eq!(turn(&mut leader, true), "", "the node may answer");
        leader.received(0, Message::Rests).unwrap();
        assert_eq!(turn(&mut leader, true), "end 6 5");
        // A saved round is stored, however long that takes.
        leader.received(0, Message::Saved { round: 6 }).unwrap();
        leader.stops = Instant::now().checked_sub(STOP_WITHOUT_PARTS * 2);
        assert_eq!(turn(&mut leader, true), "");
        assert!(!leader.is_over());
        leader.received(0, part(6)).unwrap();
        assert_eq!(turn(&mut leader, true), "complete 6 of 1 Stops");
        // A record that the store refuses is tried again, as a part is.
        let full = || Err(CheckpointError::Invalid { reason: "no space".into() }.into());
        leader.recorded(6, RoundEnd::Stops, full()).unwrap();
        assert!(!leader.is_over());
    }

    #[test]
    fn the_end_of_all_nodes_is_a_checkpoint_also_of_a_job_that_takes_no_others() {
        let mut leader = Leader::new((ALWAYS, false), 1, 2);
        leader.received(0, Message::Ended).unwrap();
        assert_eq!(turn(&mut leader, false), "");
        leader.received(1, Message::Ended).unwrap();
        assert_eq!(turn(&mut leader, false), "end 1 0");
        leader.received(0, part(1)).unwrap();
        leader.received(1, part(1)).unwrap();
        assert_eq!(turn(&mut leader, false), "complete 1 of 2 Ended");
        leader.recorded(1, RoundEnd::Ended, Ok(())).unwrap();
        assert_eq!(turn(&mut leader, false), "");
        assert!(leader.is_over());
    }

    #[test]
    fn a_last_checkpoint_that_cannot_be_stored_ends_the_job() {
        let mut leader = Leader::new((ALWAYS, true), 1, 1);
        assert_eq!(turn(&mut leader, true), "rest 1");
        leader.received(0, Message::Rests).unwrap();
        for round in 1..=u64::from(ENDS_TRIED_MAX) {
            // As if the pause were over.
            leader.ended_at = Instant::now() - END_PAUSE * ENDS_TRIED_MAX;
            assert_eq!(turn(&mut leader, true), format!("end {round} 0"));
            leader.received(0, Message::NoPart { round, why: "no room".into() }).unwrap();
            leader.ended_at = Instant::now();
            match leader.turn(true) {
                Ok(orders) => assert!(orders.len() < 2, "it pauses"),
                Err(error) => {
                    assert_eq!(round, u64::from(ENDS_TRIED_MAX));
                    assert!(error.to_string().ends_with("cannot be stored: no room"), "{error}");
                    return;
                }
            }
        }
        panic!("it goes on for ever");
    }
}
