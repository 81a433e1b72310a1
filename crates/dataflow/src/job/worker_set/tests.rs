use std::collections::BTreeSet;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;

fn written(set: &WorkerSet, of: u32) -> Vec<u8> {
    let mut out = vec![0xa5; WorkerSet::bytes_max(of)];
    let used = set.encode(of, &mut out);
    out.truncate(used);
    out
}

/// Some of so many workers.
fn some() -> impl Strategy<Value = (u32, BTreeSet<u32>)> {
    (1u32..700).prop_flat_map(|of| (Just(of), btree_set(0..of, 1..=of.min(90) as usize)))
}

proptest! {
    #[test]
    fn a_list_is_read_as_it_was_written((of, workers) in some(), behind in vec(any::<u8>(), 0..4)) {
        let set: WorkerSet = workers.iter().rev().copied().collect();
        prop_assert!(set.iter().eq(workers.iter().copied()));
        let mut bytes = written(&set, of);
        prop_assert!(bytes.len() <= WorkerSet::bytes_max(of));
        let used = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(WorkerSet::decode(of, &bytes), Ok((set, used)));
        for length in 0..used {
            prop_assert!(WorkerSet::decode(of, &bytes[..length]).is_err());
        }
    }

    #[test]
    fn what_is_read_of_any_bytes_are_workers_that_there_are(
        of in 1u32..700,
        form in 0u8..3,
        mut bytes in vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..120),
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = form;
        }
        if let Ok((set, used)) = WorkerSet::decode(of, &bytes) {
            prop_assert!(used <= bytes.len() && !set.is_empty());
            prop_assert!(set.iter().all(|worker| worker < of));
            let again = written(&set, of);
            prop_assert_eq!(WorkerSet::decode(of, &again), Ok((set, again.len())));
        }
    }

    #[test]
    fn a_part_is_those_of_a_range((of, workers) in some(), a in 0u32..700, b in 0u32..700) {
        let set: WorkerSet = workers.iter().copied().collect();
        let range = a.min(b)..a.max(b);
        let part = workers.iter().filter(|worker| range.contains(worker));
        let part: Vec<u32> = part.map(|worker| worker - range.start).collect();
        prop_assert_eq!(set.within(range).iter().collect::<Vec<_>>(), part);
        for worker in 0..of {
            prop_assert_eq!(set.contains(worker), workers.contains(&worker));
        }
    }
}

#[test]
fn the_shorter_form_is_taken() {
    let form = |workers: Vec<u32>, of| written(&workers.into_iter().collect(), of);
    assert_eq!(form(vec![0, 2, 9], 10), [BITMAP, 0b101, 0b10]);
    let range = form((100..400).collect(), 480);
    assert_eq!(range, [RANGES, 1, 0, 0, 0, 100, 0, 0, 0, 144, 1, 0, 0]);
    assert_eq!(form((0..480).step_by(2).collect(), 480).len(), 61);
    assert_eq!(written(&WorkerSet::all(0..480), 480).len(), 13);
}

#[test]
fn a_list_that_is_none_is_refused() {
    let error = |of, bytes: &[u8]| WorkerSet::decode(of, bytes).unwrap_err();
    assert_eq!(error(8, &[]), "a list of workers is cut off");
    assert_eq!(error(8, &[7, 0]), "a list of workers has the form 7");
    assert_eq!(error(8, &[BITMAP, 0]), "a list of workers names nobody");
    assert_eq!(error(3, &[BITMAP, 0b1000]), "a list names worker 3 of 3");
    let touching = [RANGES, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0];
    assert_eq!(error(9, &touching), "ranges of workers are empty, touch, or are not in order");
    assert_eq!(error(9, &[RANGES, 0, 0, 0, 0]), "a list of workers names nobody");
    assert_eq!(error(9, &[RANGES, 255, 255, 255, 255]), "a list of workers is cut off");
}
