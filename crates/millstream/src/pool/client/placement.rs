//! Which server gets a strip of a load: each as often as it has free bytes, in turn.
//!
//! Smooth weighted turns: each server gains its weight with each turn, and the one that has gained
//! most has the turn, and loses the sum of all weights. So a server with a third of the weight has
//! each third turn, and not all of its turns together.

use std::collections::HashMap;
use std::sync::Mutex;

use super::locked;

/// Turns until they are repeated, where strips go in turn.
const TURNS: usize = 256;

/// The servers of the strips of a load, by their numbers in the load.
#[derive(Debug)]
pub(super) struct StripPlacement {
    /// By partition; of a table with fewer partitions than servers by strip.
    turns: Vec<u16>,
    /// By worker, if strips go in turn: how many it has written.
    written: Option<Mutex<HashMap<u32, usize>>>,
}

impl StripPlacement {
    /// Of a load over servers with these free bytes: partitions go to them in turn; where they are
    /// fewer than servers, strips do.
    pub(super) fn new(free: &[u64], partitions: u32) -> Self {
        if partitions as usize >= free.len() {
            return Self { turns: turns(free, partitions as usize), written: None };
        }
        Self { turns: turns(free, TURNS), written: Some(Mutex::default()) }
    }

    /// The server for the next strip of a partition by a worker.
    pub(super) fn server_of(&self, worker: u32, partition: u32) -> usize {
        let turn = match &self.written {
            None => partition as usize,
            Some(written) => {
                let mut written = locked(written);
                let strips = written.entry(worker).or_default();
                *strips += 1;
                partition as usize + worker as usize + *strips - 1
            }
        };
        self.turns[turn % self.turns.len()].into()
    }
}

/// The first turns of servers with these weights.
fn turns(weights: &[u64], count: usize) -> Vec<u16> {
    // None is left out for ever: a server that is full now may have room later.
    let weights: Vec<i128> = weights.iter().map(|weight| i128::from((*weight).max(1))).collect();
    let all: i128 = weights.iter().sum();
    let mut gained = vec![0_i128; weights.len()];
    let turn = |_| {
        gained.iter_mut().zip(&weights).for_each(|(gained, weight)| *gained += weight);
        let most = (0..gained.len()).max_by_key(|at| (gained[*at], std::cmp::Reverse(*at)));
        let most = most.unwrap_or_default();
        gained[most] -= all;
        most as u16
    };
    (0..count.max(1)).map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_turns_as_they_have_free_bytes() {
        for weights in [&[8, 8][..], &[30, 10], &[7, 2, 1], &[5, 5, 0], &[0, 0]] {
            let turns = turns(weights, 1000);
            let all: u64 = weights.iter().map(|weight| (*weight).max(1)).sum();
            for (at, weight) in weights.iter().enumerate() {
                let has = turns.iter().filter(|turn| usize::from(**turn) == at).count() as u64;
                let due = 1000 * (*weight).max(1) / all;
                assert!(has.abs_diff(due) <= 1, "{weights:?}: server {at} has {has} of {due}");
            }
        }
        assert_eq!(turns(&[1, 1, 1], 6), [0, 1, 2, 0, 1, 2], "the one that has the table is first");
        assert_eq!(turns(&[2, 1], 6), [0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn strips_of_few_partitions_go_in_turn_by_worker() {
        let placement = StripPlacement::new(&[4, 4, 4], 1);
        let of = |worker| (0..3).map(|_| placement.server_of(worker, 0)).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(0)), (vec![0, 1, 2], vec![1, 2, 0], vec![0, 1, 2]));
        let placement = StripPlacement::new(&[4, 4], 8);
        let of = |partition| placement.server_of(3, partition);
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1]);
    }
}
