//! Which links are asked at a step whether they have an event: a frame, credit, a completion.
//!
//! A worker of a large job has a link with each of hundreds of others, and few of them carry
//! something at a time. Those that have had an event lately, or on which something was sent, are
//! on the ready list: they are asked at each step, and what was posted on them is started. Of the
//! others a sixteenth is asked, in turn, and all of them when no link on the list has moved.
//!
//! ```text
//!   ready   ask, ask, ask                at each step ── LEAVES_AFTER steps without an event ─┐
//!     ▲                                                                                       ▼
//!     └── an event, or a frame is sent ── others   ask 1/SHARE of them at each step, or all
//! ```
//!
//! So the first frame on a link that carried nothing is seen after [`SHARE`] steps at the latest.
//! The death of a process is seen at the socket of its link, which over shared memory is polled
//! once for some thousand times that the link is asked. For a link off the list of a busy worker
//! this takes [`SHARE`] times as many steps.

use std::cell::{Cell, RefCell};

/// A link leaves the list after this number of steps without an event.
const LEAVES_AFTER: u32 = 16;

/// One of this number of the links that are not on the list is asked at each step.
const SHARE: usize = 16;

/// The ready list of a worker.
pub(super) struct ReadyList {
    /// Workers whose links are on the list.
    ready: RefCell<Vec<u32>>,
    /// By worker: steps without an event since it came on the list; `None` for one that is not on
    /// it.
    quiet_steps: Vec<Cell<Option<u32>>>,
    /// The worker behind the last one that was asked in turn.
    next: Cell<usize>,
}

impl ReadyList {
    /// Of this number of workers: all are on the list.
    pub(super) fn new(workers: usize) -> Self {
        let quiet_steps = (0..workers).map(|_| Cell::new(Some(0))).collect();
        let ready = RefCell::new((0..workers as u32).collect());
        Self { ready, quiet_steps, next: Cell::new(0) }
    }

    /// The link with a worker has an event, or something is sent on it.
    pub(super) fn put(&self, worker: u32) {
        if self.quiet_steps[worker as usize].replace(Some(0)).is_none() {
            self.ready.borrow_mut().push(worker);
        }
    }

    fn has(&self, worker: u32) -> bool {
        self.quiet_steps[worker as usize].get().is_some()
    }

    /// Whether the link with a worker stays on the list behind a step without an event.
    fn stays(&self, worker: u32) -> bool {
        let steps = &self.quiet_steps[worker as usize];
        steps.set(steps.get().map(|steps| steps + 1).filter(|steps| *steps < LEAVES_AFTER));
        steps.get().is_some()
    }

    /// Asks the links on the list by `ask`, which tells whether there was an event, and takes those
    /// off that have had none for long.
    ///
    /// # Errors
    /// That of `ask`.
    pub(super) fn ask_ready<E>(
        &self,
        mut ask: impl FnMut(u32) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut at = 0;
        let next = |at: usize| self.ready.borrow().get(at).copied();
        while let Some(worker) = next(at) {
            if ask(worker)? {
                self.put(worker);
            } else if !self.stays(worker) {
                self.ready.borrow_mut().swap_remove(at);
                continue;
            }
            at += 1;
        }
        Ok(())
    }

    /// Asks a share of the other links, or all of them; those with an event come on the list.
    ///
    /// # Errors
    /// That of `ask`.
    pub(super) fn ask_others<E>(
        &self,
        all: bool,
        mut ask: impl FnMut(u32) -> Result<bool, E>,
    ) -> Result<(), E> {
        let workers = self.quiet_steps.len();
        for _ in 0..if all { workers } else { workers.div_ceil(SHARE) } {
            let worker = self.next.get() as u32;
            self.next.set((self.next.get() + 1) % workers);
            if !self.has(worker) && ask(worker)? {
                self.put(worker);
            }
        }
        Ok(())
    }

    /// Each worker whose link is on the list.
    pub(super) fn for_each(&self, act: impl FnMut(u32)) {
        self.ready.borrow().iter().copied().for_each(act);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workers that are asked at a step, of which `events` have something.
    fn step(list: &ReadyList, events: &[u32]) -> Vec<u32> {
        let mut asked = Vec::new();
        let mut ask = |worker| {
            asked.push(worker);
            Ok::<_, ()>(events.contains(&worker))
        };
        list.ask_ready(&mut ask).unwrap();
        list.ask_others(false, &mut ask).unwrap();
        asked
    }

    #[test]
    fn links_without_events_are_asked_in_turn() {
        const WORKERS: u32 = 100;
        let list = ReadyList::new(WORKERS as usize);
        for at in 0..LEAVES_AFTER {
            assert!(step(&list, &[7]).len() >= WORKERS as usize, "{at}");
        }
        let mut seen = vec![0; WORKERS as usize];
        for _ in 0..SHARE {
            let asked = step(&list, &[7]);
            assert!(asked.len() <= 1 + (WORKERS as usize).div_ceil(SHARE), "{asked:?}");
            assert_eq!(asked[0], 7, "at each step");
            asked.iter().for_each(|&worker| seen[worker as usize] += 1);
        }
        assert!(seen.iter().all(|&times| times > 0), "{seen:?}");
    }

    #[test]
    fn an_event_and_a_frame_that_is_sent_bring_a_link_onto_the_list() {
        let list = ReadyList::new(50);
        (0..LEAVES_AFTER).for_each(|_| drop(step(&list, &[])));
        list.for_each(|worker| panic!("{worker} has had no event"));
        list.put(41);
        list.put(41);
        assert_eq!(step(&list, &[])[0], 41);
        for _ in 0..SHARE {
            step(&list, &[9]);
        }
        let asked = step(&list, &[]);
        assert!(asked.contains(&9) && !asked[1..].contains(&41), "{asked:?}");
        assert_eq!(asked.iter().filter(|&&worker| worker == 9).count(), 1);
    }

    #[test]
    fn a_worker_that_has_nothing_asks_all_once() {
        let list = ReadyList::new(10);
        (0..LEAVES_AFTER).for_each(|_| drop(step(&list, &[])));
        let mut asked = Vec::new();
        let mut ask = |worker| {
            asked.push(worker);
            Ok::<_, ()>(worker == 3)
        };
        list.ask_ready(&mut ask).unwrap();
        list.ask_others(true, &mut ask).unwrap();
        asked.sort_unstable();
        assert_eq!(asked, (0..10).collect::<Vec<_>>());
        assert_eq!(step(&list, &[])[0], 3);
    }

    #[test]
    fn an_error_leaves_the_list_as_it_is() {
        let list = ReadyList::new(4);
        let fails = |worker| if worker == 2 { Err("broken") } else { Ok(false) };
        assert_eq!(list.ask_ready(fails), Err("broken"));
        assert_eq!(step(&list, &[])[..4], [0, 1, 2, 3]);
        // A job of one worker has no links.
        assert_eq!(step(&ReadyList::new(1), &[]), [0]);
    }
}
