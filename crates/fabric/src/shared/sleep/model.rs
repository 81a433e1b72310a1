//! All interleavings of workers that sleep on a line and of arrivals, on the [`Watch`] that runs:
//! no arrival for a worker that sleeps is left without anybody who will look.

use std::cell::Cell;
use std::collections::HashSet;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{Sleeps, Watch};

const WORKERS: usize = 3;
const LINE: RawFd = 7;

/// The step that a variant leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A worker that has used the connection does not look for a watcher.
    Settling,
    /// A watcher that rises leaves no word.
    Word,
    /// The watch is given to one that has risen meanwhile.
    LookAtHeir,
    /// A worker that lies down leaves the watch to one that is awake.
    TakingOver,
}

/// Where a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Wakes,
    /// Tries the lock, once if it is held by another.
    Tries,
    /// Holds it.
    Holds,
    /// Still holds it, and has seen to it that somebody watches.
    Settled,
    /// Has let go, and looks for requests.
    LetGo,
    /// Looks at its inbox. It may be busy with what it found for as long as it likes.
    Acts,
    /// Waits for the lock to lie down.
    LiesDown,
    /// Holds it, and has polled.
    Polled,
    /// Has lain down, and looks for requests.
    Lies,
    Sleeps,
}

/// The variant, and whether workers rise in the middle of a hand-over.
type Course = (Without, bool);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Worker {
    at: At,
    asleep: bool,
    rung: bool,
    watches: bool,
    /// Its inbox has something that it has not looked at.
    fresh: bool,
    /// It has lain down when it has looked for requests.
    lain: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    workers: [Worker; WORKERS],
    /// Arrivals on the line, by the worker that they are for.
    pending: [bool; WORKERS],
    due: bool,
    locked: bool,
    parked: Vec<usize>,
    watcher: Option<usize>,
    /// Arrivals, and wake-ups from elsewhere, that are still to come.
    arrivals: u32,
    wakes: u32,
}

/// A worker, as the watch sees it.
struct Model {
    number: usize,
    worker: Cell<Worker>,
    looks: bool,
    /// It rises, if it was about to, between the look for one that sleeps and the gift.
    rises: bool,
}

impl Model {
    fn change(&self, change: impl FnOnce(&mut Worker)) {
        let mut worker = self.worker.get();
        change(&mut worker);
        self.worker.set(worker);
    }
}

impl Sleeps for Model {
    fn is_asleep(&self) -> bool {
        self.worker.get().asleep
    }

    fn watch(&self, line: RawFd) -> bool {
        assert_eq!(line, LINE);
        if self.rises && self.worker.get().at == At::Wakes {
            self.change(|worker| {
                worker.rise();
            });
        }
        let watches = self.is_asleep() || !self.looks;
        self.change(|worker| worker.watches |= watches);
        watches
    }

    fn unwatch(&self, _: RawFd) {
        assert!(self.worker.get().watches, "only who watches ceases to");
        self.change(|worker| worker.watches = false);
    }

    fn ring(&self) {
        self.change(|worker| {
            worker.rung |= worker.asleep;
            worker.asleep = false;
        });
    }
}

impl Worker {
    /// True when it slept and watched.
    fn rise(&mut self) -> bool {
        let watched = self.asleep && self.watches;
        (self.asleep, self.rung, self.lain, self.at) = (false, false, false, At::Tries);
        watched
    }
}

impl World {
    fn new(arrivals: u32, wakes: u32) -> Self {
        let awake = Worker {
            at: At::Wakes,
            asleep: false,
            rung: false,
            watches: false,
            fresh: false,
            lain: false,
        };
        Self {
            workers: [awake; WORKERS],
            pending: [false; WORKERS],
            due: false,
            locked: false,
            parked: Vec::new(),
            watcher: None,
            arrivals,
            wakes,
        }
    }

    /// Does something with the watch of the connection.
    #[allow(clippy::arc_with_non_send_sync, reason = "the watch has them so; here is one thread")]
    fn watch<R>(
        &mut self,
        (without, rises): Course,
        act: impl FnOnce(&mut Watch<Model>, &[Arc<Model>; WORKERS]) -> R,
    ) -> R {
        let looks = without != Without::LookAtHeir;
        let of = |number: usize| {
            Arc::new(Model { number, worker: Cell::new(self.workers[number]), looks, rises })
        };
        let all: [Arc<Model>; WORKERS] = std::array::from_fn(of);
        let parked = self.parked.iter().map(|at| all[*at].clone()).collect();
        let watcher = self.watcher.map(|at| (all[at].clone(), LINE));
        let mut watch = Watch { parked, watcher };
        let result = act(&mut watch, &all);
        self.parked = watch.parked.iter().map(|worker| worker.number).collect();
        self.watcher = watch.watcher.as_ref().map(|(watcher, _)| watcher.number);
        self.workers = std::array::from_fn(|at| all[at].worker.get());
        result
    }

    /// Delivers what the line has.
    fn collect(&mut self) {
        for at in 0..WORKERS {
            if std::mem::take(&mut self.pending[at]) {
                let worker = &mut self.workers[at];
                worker.fresh = true;
                worker.rung |= worker.asleep;
                worker.asleep = false;
            }
        }
    }

    fn settle(&mut self, course: Course) {
        self.watch(course, |watch, _| {
            if course.0 != Without::Settling && watch.has_parked() {
                watch.settle(LINE);
            }
        });
    }

    /// Lies down, unless there is something. True when it has.
    fn lies_down(&mut self, me: usize, course: Course) -> bool {
        let ready = self.pending.contains(&true) || self.workers[me].fresh;
        if !ready {
            self.workers[me].asleep = true;
            let lain = self.watch(course, |watch, all| {
                if course.0 == Without::TakingOver && watch.watcher.is_some() {
                    watch.parked.push(all[me].clone());
                    return true;
                }
                watch.lie_down(&all[me], Some(LINE))
            });
            if lain {
                return true;
            }
        }
        self.settle(course);
        false
    }

    /// The next step of a worker; none where it sleeps or waits for the lock.
    fn step(&mut self, me: usize, course: Course) -> bool {
        let Worker { at, rung, watches, .. } = self.workers[me];
        let next = match at {
            At::Wakes => {
                self.due |= self.workers[me].rise() && course.0 != Without::Word;
                At::Tries
            }
            At::Tries if self.locked => At::Acts,
            At::Tries => {
                self.locked = true;
                At::Holds
            }
            At::Holds => {
                self.due = false;
                self.collect();
                self.settle(course);
                At::Settled
            }
            At::Settled => {
                self.locked = false;
                if self.workers[me].lain { At::Lies } else { At::LetGo }
            }
            At::LetGo | At::Lies if self.due => At::Tries,
            At::LetGo => At::Acts,
            At::Acts => {
                self.workers[me].fresh = false;
                At::LiesDown
            }
            At::LiesDown if self.locked => return false,
            At::LiesDown => {
                self.locked = true;
                self.due = false;
                self.collect();
                At::Polled
            }
            At::Polled => {
                self.workers[me].lain = self.lies_down(me, course);
                At::Settled
            }
            At::Lies => At::Sleeps,
            At::Sleeps if rung || watches && self.pending.contains(&true) => At::Wakes,
            At::Sleeps => return false,
        };
        // One that has lain down serves what was left for it, and sleeps.
        let lies = next == At::Acts && self.workers[me].lain;
        self.workers[me].at = if lies { At::Sleeps } else { next };
        true
    }

    /// All that can happen next.
    fn next(&self, without: Without) -> Vec<World> {
        let mut all = Vec::new();
        let mut may = |change: &dyn Fn(&mut World) -> bool| {
            let mut next = self.clone();
            if change(&mut next) {
                all.push(next);
            }
        };
        for me in 0..WORKERS {
            may(&|next| next.step(me, (without, false)));
            may(&|next| next.step(me, (without, true)));
            may(&|next| {
                let comes = next.arrivals > 0 && !next.pending[me];
                next.arrivals -= u32::from(comes);
                next.pending[me] |= comes;
                comes
            });
            may(&|next| {
                let wakes = next.wakes > 0 && next.workers[me].at == At::Sleeps;
                next.wakes -= u32::from(wakes);
                if wakes {
                    next.workers[me].at = At::Wakes;
                }
                wakes
            });
        }
        all
    }

    /// Whether a worker sleeps for which something is there, while nobody does anything but act on
    /// what it has found.
    fn is_lost(&self, without: Without) -> bool {
        let stands =
            |me: usize| self.workers[me].at == At::Acts || !self.clone().step(me, (without, false));
        let waits = |me: usize| {
            let Worker { at, fresh, .. } = self.workers[me];
            at == At::Sleeps && (fresh || self.pending[me])
        };
        (0..WORKERS).all(stands) && (0..WORKERS).any(waits)
    }
}

/// The states that were seen, or one in which a wake-up is lost.
fn explore(without: Without, arrivals: u32, wakes: u32) -> Result<usize, World> {
    let first = World::new(arrivals, wakes);
    let mut seen = HashSet::from([first.clone()]);
    let mut todo = vec![first];
    while let Some(world) = todo.pop() {
        if world.is_lost(without) {
            return Err(world);
        }
        for next in world.next(without) {
            if seen.insert(next.clone()) {
                todo.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_arrival_for_one_that_sleeps_is_left_without_anybody_who_will_look() {
    let states = explore(Without::Nothing, 1, 1).unwrap_or_else(|lost| panic!("{lost:#?}"));
    assert!(states > 100_000, "{states} states");
}

#[test]
fn each_part_of_the_hand_over_is_needed() {
    for without in [Without::Settling, Without::Word, Without::LookAtHeir, Without::TakingOver] {
        explore(without, 1, 2).expect_err(&format!("{without:?}"));
    }
}
