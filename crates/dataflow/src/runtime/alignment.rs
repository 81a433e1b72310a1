//! Watermark alignment: keeps the sources of one worker in step, where their rows meet.
//!
//! An operator that keeps rows or groups keeps those of a source that is ahead until the others
//! have come as far. If one source is read faster than another, in event time, that is most of its
//! rows. So a source that is ahead waits for as long as another one has rows. Only sources of one
//! worker look at each other, and the one that is furthest behind never waits: none waits for a
//! peer, and no two for each other.

use std::cell::RefCell;
use std::rc::Rc;

use crate::job::Operator;
use crate::runtime::scheduler::Event;

/// Sources that keep in step.
#[derive(Default)]
struct Group {
    /// How far each has come, in milliseconds of event time; nothing while it has no rows to give.
    reached: RefCell<Vec<Option<i64>>>,
    moved: Event,
}

/// One source among those that it keeps in step with.
pub(crate) struct SourceAlignment {
    group: Rc<Group>,
    number: usize,
}

impl SourceAlignment {
    /// Whether no source that has rows is behind this one.
    pub(crate) fn may_go(&self) -> bool {
        let reached = self.group.reached.borrow();
        let least = reached.iter().flatten().min();
        reached[self.number] <= least.copied()
    }

    /// Waits until it may go. Who waits may give up.
    pub(crate) async fn wait(&self) {
        self.group.moved.wait_for(|| self.may_go().then_some(())).await;
    }

    /// This source has come so far; nothing if it has no rows now.
    pub(crate) fn reached(&self, millis: Option<i64>) {
        let before = std::mem::replace(&mut self.group.reached.borrow_mut()[self.number], millis);
        if before != millis {
            self.group.moved.notify();
        }
    }
}

impl Drop for SourceAlignment {
    fn drop(&mut self) {
        self.reached(None);
    }
}

/// For each operator that is a source with event time, and whose rows meet those of others, its
/// place among them.
pub(crate) fn alignments(operators: &[Operator]) -> Vec<Option<SourceAlignment>> {
    let groups = groups(operators);
    let mut made: Vec<Option<Rc<Group>>> = vec![None; operators.len()];
    let mut alignment = |at: usize, group: usize| {
        let is_alone = groups.iter().filter(|&&other| other == Some(group)).count() == 1;
        if is_alone || !keeps_time(&operators[at]) {
            return None;
        }
        let group = made[group].get_or_insert_default().clone();
        let number = group.reached.borrow().len();
        // Before its first rows none is ahead.
        group.reached.borrow_mut().push(Some(i64::MIN));
        Some(SourceAlignment { group, number })
    };
    groups.iter().enumerate().map(|(at, group)| alignment(at, (*group)?)).collect()
}

/// The group of each source with event time: the least index of those whose rows meet its own where
/// rows wait for others.
fn groups(operators: &[Operator]) -> Vec<Option<usize>> {
    let sources = (0..operators.len()).map(|at| keeps_time(&operators[at]).then_some(at));
    let mut groups: Vec<Option<usize>> = sources.collect();
    // Of each operator the sources whose rows come to it.
    let mut reads: Vec<Vec<usize>> =
        groups.iter().map(|own| own.iter().copied().collect()).collect();
    for (at, operator) in operators.iter().enumerate() {
        let edges = operator.inputs.iter().flatten().filter(|edge| edge.timed);
        let come: Vec<usize> = edges.flat_map(|edge| reads[edge.from].clone()).collect();
        if operator.spec().waits_for_rows() {
            let meet: Vec<usize> = come.iter().filter_map(|&source| groups[source]).collect();
            let least = meet.iter().min().copied();
            let is_met = |group: &&mut Option<usize>| group.is_some_and(|g| meet.contains(&g));
            groups.iter_mut().filter(is_met).for_each(|group| *group = least);
        }
        reads[at].extend(come);
    }
    groups
}

fn keeps_time(operator: &Operator) -> bool {
    operator.spec().source().is_some_and(|input| input.watermark.is_some())
}
