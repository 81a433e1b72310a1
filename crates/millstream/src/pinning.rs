//! Which worker runs on which processor (`millstream.pin`).
//!
//! Every node says on which processors it may run: a launcher has given each process its own, or
//! all of a machine have the same. The nodes of a machine take theirs in the order of their ranks,
//! each the first ones that no node before it has. All compute the same.

use cluster::Control;
use fabric::affinity::{self, PROCESSORS_MAX};

use crate::error::Error;

/// Bytes of the number of a processor in a message.
const NUMBER_BYTES: usize = 4;

/// The processors of this node's workers. Every node makes this call; `machines` are those on which
/// the nodes run.
///
/// # Errors
/// When a node failed, or a machine has fewer processors than workers.
pub(crate) fn agree(
    control: &Control,
    per_node: u32,
    machines: &[Vec<u8>],
) -> Result<Vec<u32>, Error> {
    let own = affinity::processors().unwrap_or_default();
    let own = own.iter().flat_map(|processor| processor.to_le_bytes()).collect();
    let all = control.all_gather("processors", own)?;
    let decoded = (0..)
        .zip(&all)
        .map(|(rank, bytes)| decode(bytes).ok_or(Error::Unlike { rank, what: "version" }));
    let given = decoded.collect::<Result<Vec<_>, _>>()?;
    let mut taken = assign(machines, &given, per_node)?;
    Ok(taken.swap_remove(control.rank() as usize))
}

fn decode(bytes: &[u8]) -> Option<Vec<u32>> {
    let (numbers, rest) = bytes.as_chunks::<NUMBER_BYTES>();
    let valid = rest.is_empty() && numbers.len() <= PROCESSORS_MAX;
    valid.then(|| numbers.iter().map(|number| u32::from_le_bytes(*number)).collect())
}

/// The processors of each node's workers, by the machines of the nodes and the processors that
/// each was given.
fn assign(machines: &[Vec<u8>], given: &[Vec<u32>], per_node: u32) -> Result<Vec<Vec<u32>>, Error> {
    let mut assigned: Vec<Vec<u32>> = Vec::new();
    for (rank, (machine, given)) in machines.iter().zip(given).enumerate() {
        let free = |processor: &&u32| {
            let mut beside = assigned.iter().zip(machines).filter(|(_, other)| *other == machine);
            !beside.any(|(taken, _)| taken.contains(processor))
        };
        let own: Vec<_> = given.iter().filter(free).take(per_node as usize).copied().collect();
        if own.len() < per_node as usize {
            return Err(too_few(rank, own.len(), per_node));
        }
        assigned.push(own);
    }
    Ok(assigned)
}

fn too_few(rank: usize, has: usize, workers: u32) -> Error {
    let noun = if has == 1 { "processor" } else { "processors" };
    Error::Usage {
        message: format!(
            "millstream.pin = 'on' gives each worker a processor of its own, and node {rank} finds \
             {has} {noun} for {workers} workers"
        ),
        hint: "give fewer --workers or --nodes, or more processors by the launcher".into(),
    }
}

/// The calling thread runs on one processor as long as this lives.
pub(crate) struct ProcessorPin {
    before: Vec<u32>,
}

impl ProcessorPin {
    /// # Errors
    /// When the system does not let this process run there.
    pub(crate) fn new(processor: u32) -> Result<Self, Error> {
        let refused = |source: std::io::Error| Error::Usage {
            message: format!("a worker cannot be pinned to processor {processor}: {source}"),
            hint: "the processors of this process have changed: run it again, or SET \
                   millstream.pin = 'off'"
                .into(),
        };
        let before = affinity::processors().map_err(refused)?;
        affinity::set_processors(&[processor]).map_err(refused)?;
        tracing::info!(processor, "the worker is pinned");
        Ok(Self { before })
    }
}

impl Drop for ProcessorPin {
    fn drop(&mut self) {
        if let Err(error) = affinity::set_processors(&self.before) {
            tracing::warn!(%error, "the thread of a worker stays on its processor");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn nodes_of_a_machine_share_its_processors_and_those_of_others_have_their_own() {
        let places = machines(&["a", "a", "b"]);
        let all = vec![vec![0, 1, 2, 5]; 3];
        assert_eq!(assign(&places, &all, 2).unwrap(), [[0, 1], [2, 5], [0, 1]]);
        // As a launcher binds them, which may overlap.
        let bound = vec![vec![4, 5], vec![4, 5, 6, 7], vec![9, 11]];
        assert_eq!(assign(&places, &bound, 2).unwrap(), [[4, 5], [6, 7], [9, 11]]);
        assert_eq!(assign(&[], &[], 2).unwrap(), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn too_few_processors_are_refused_with_the_node_that_lacks_them() {
        let places = machines(&["a", "a"]);
        let refused = assign(&places, &[vec![0, 1, 2], vec![0, 1, 2]], 2).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("node 1 finds 1 processor for 2 workers"), "{text}");
        let unknown = assign(&machines(&["a"]), &[vec![]], 1).unwrap_err().to_string();
        assert!(unknown.contains("node 0 finds 0 processors"), "{unknown}");
    }

    #[test]
    fn a_message_of_processors_is_whole_and_bounded() {
        assert_eq!(decode(&[]), Some(vec![]));
        assert_eq!(decode(&[7, 0, 0, 0, 1, 1, 0, 0]), Some(vec![7, 257]));
        assert_eq!(decode(&[7, 0, 0]), None);
        assert!(decode(&vec![0; NUMBER_BYTES * PROCESSORS_MAX]).is_some());
        assert_eq!(decode(&vec![0; NUMBER_BYTES * (PROCESSORS_MAX + 1)]), None);
    }

    #[test]
    fn a_thread_is_pinned_for_a_while() {
        let before = affinity::processors().unwrap();
        let last = before[before.len() - 1];
        let pinned = ProcessorPin::new(last).unwrap();
        assert_eq!(affinity::processors().unwrap(), [last]);
        drop(pinned);
        assert_eq!(affinity::processors().unwrap(), before);
        let error = ProcessorPin::new(PROCESSORS_MAX as u32).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("cannot be pinned"));
        assert_eq!(affinity::processors().unwrap(), before);
    }
}
