use super::*;
use crate::in_process;

/// Longer than a death may take to be known.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs `node` as every rank, each on its own thread, and returns what each made.
fn on_each<T: Send>(nodes: u32, node: impl Fn(Control) -> T + Sync) -> Vec<T> {
    let controls = in_process(nodes).unwrap();
    std::thread::scope(|scope| {
        let node = &node;
        let threads: Vec<_> =
            controls.into_iter().map(|control| scope.spawn(move || node(control))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_exchange_gives_everybody_the_same_by_rank() {
    let seen = on_each(4, |control| {
        let mut seen = Vec::new();
        for round in 0..50u8 {
            let mine = vec![round; control.rank() as usize];
            seen.push(control.all_gather("round", mine).unwrap());
        }
        control.close();
        seen
    });
    for all in seen {
        for (round, got) in all.into_iter().enumerate() {
            let expected: Vec<_> = (0..4).map(|rank| vec![round as u8; rank]).collect();
            assert_eq!(got, expected);
        }
    }
}

#[test]
fn who_waits_for_others_does_something_meanwhile() {
    on_each(2, |control| {
        let (topic, mut calls) = (7, 0);
        // The second node comes when the first one has sent it three messages.
        for _ in (0..3).filter(|_| control.rank() == 1) {
            while control.receive_message(0, topic, LIMIT).unwrap().is_none() {}
        }
        let every = Duration::from_millis(1);
        let mut meanwhile = || {
            calls += 1;
            control.send_to(1 - control.rank(), topic, vec![]).unwrap();
            every
        };
        let all = control.all_gather_while("step", vec![5], every, &mut meanwhile).unwrap();
        assert_eq!(all, [[5], [5]]);
        assert!(calls >= 3 || control.rank() == 1);
        control.close();
    });
}

#[test]
fn who_waits_for_others_may_give_up_meanwhile() {
    let failures = on_each(2, |control| {
        let failure = if control.rank() == 0 {
            // The other node comes only when it has heard of this.
            let every = Duration::from_millis(1);
            let mut meanwhile = || {
                control.fail("interrupted");
                every
            };
            control.all_gather_while("end", vec![], every, &mut meanwhile).unwrap_err().to_string()
        } else {
            control.await_failure(LIMIT).unwrap().to_string()
        };
        control.close();
        failure
    });
    assert!(failures.iter().all(|failure| failure.contains("interrupted")), "{failures:?}");
}

#[test]
fn an_exchange_carries_megabytes_and_refuses_more_than_a_frame() {
    on_each(2, |control| {
        let error = control.all_gather("huge", vec![0; FRAME_BYTES_MAX]).unwrap_err();
        assert!(matches!(error, ClusterError::TooLarge { .. }), "{error}");
        let bytes = FRAME_BYTES_MAX - 100;
        let all = control.all_gather("large", vec![control.rank() as u8; bytes]).unwrap();
        for (rank, got) in all.iter().enumerate() {
            assert!(got.len() == bytes && got.iter().all(|&byte| byte == rank as u8));
        }
        control.close();
    });
}

#[test]
fn nodes_at_different_steps_notice() {
    let errors = on_each(2, |control| {
        let step = ["plan", "links"][control.rank() as usize];
        let error = control.all_gather(step, Vec::new()).unwrap_err().to_string();
        control.close();
        error
    });
    assert_eq!(errors[0], "node 1 is at step 'links' while this one is at 'plan'");
    assert_eq!(errors[1], "node 0 is at step 'plan' while this one is at 'links'");
}

#[test]
fn a_node_that_closed_cannot_be_waited_for() {
    let errors = on_each(2, |control| {
        let error = (control.rank() == 0)
            .then(|| control.all_gather("sums", Vec::new()).unwrap_err().to_string());
        control.close();
        error
    });
    assert_eq!(
        errors[0].as_deref(),
        Some("node 1 is at step 'the end' while this one is at 'sums'")
    );
}

#[test]
fn a_reason_reaches_everybody_once() {
    let failures = on_each(4, |control| {
        if control.rank() == 2 {
            control.fail("the disk is full");
            control.fail("and more");
        }
        let failure = control.await_failure(LIMIT).unwrap();
        assert!(control.failed());
        let error = control.all_gather("sums", Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), failure.to_string());
        control.close();
        failure.to_string()
    });
    assert_eq!(failures, ["node 2: the disk is full"; 4]);
}

#[test]
fn a_dropped_handle_is_a_death() {
    let failures = on_each(3, |control| {
        if control.rank() == 1 {
            drop(control);
            return String::new();
        }
        let error = control.all_gather("sums", Vec::new()).unwrap_err();
        control.close();
        error.to_string()
    });
    let process = std::process::id();
    let expected =
        format!("node 1 (process {process}) closed its connection before the job had ended");
    assert_eq!(failures, [expected.clone(), String::new(), expected]);
}

#[test]
fn a_request_to_end_reaches_everybody() {
    on_each(3, |control| {
        assert!(!control.cancelled());
        control.all_gather("before", Vec::new()).unwrap();
        if control.rank() == 1 {
            control.cancel();
            assert!(control.cancelled());
        }
        // Frames of a connection arrive in order, so whoever hears of this step has heard of the
        // request.
        control.all_gather("after", Vec::new()).unwrap();
        assert!(control.cancelled());
        control.close();
    });
}

#[test]
fn progress_reaches_rank_0() {
    on_each(3, |control| {
        assert_eq!(control.latest(control.rank()), None);
        control.all_gather("before", Vec::new()).unwrap();
        control.publish(&[7, control.rank() as u8]);
        control.publish(&vec![0; PROGRESS_BYTES_MAX + 1]);
        control.all_gather("after", Vec::new()).unwrap();
        if control.rank() == 0 {
            for rank in 0..3 {
                // A report is skipped while the link is busy; the one of rank 0 never is.
                let report = control.latest(rank);
                assert!(report == Some(vec![7, rank as u8]) || (rank > 0 && report.is_none()));
            }
            assert_eq!(control.latest(9), None);
        }
        control.close();
    });
}

#[test]
fn what_follows_the_end_is_an_error() {
    on_each(2, |control| {
        control.close();
        control.close();
        let error = control.all_gather("late", Vec::new()).unwrap_err();
        assert!(matches!(error, ClusterError::Closed), "{error}");
    });
}

#[test]
fn a_single_node_is_alone() {
    let control = Control::solo().unwrap();
    assert_eq!((control.rank(), control.nodes(), control.generation()), (0, 1, 1));
    assert_eq!(control.all_gather("a", vec![1]).unwrap(), [[1]]);
    assert_eq!(control.all_gather("b", vec![2]).unwrap(), [[2]]);
    control.publish(&[3]);
    assert_eq!(control.latest(0), Some(vec![3]));
    assert!(!control.failed() && control.await_failure(LIMIT).is_none());
    control.cancel();
    assert!(control.cancelled());
    control.close();
}

#[test]
fn contributions_out_of_turn_are_refused() {
    let shared = Shared::new(0, 3, 1, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let mut state = shared.lock();
    let contribution = || (String::from("s"), vec![1]);
    assert_eq!(state.peer_contributes(0, 1, contribution()), Ok(false));
    assert_eq!(state.peer_contributes(0, 1, contribution()), Err("its exchange came twice"));
    assert_eq!(state.peer_contributes(1, 1, contribution()), Ok(false));
    assert_eq!(state.peer_contributes(2, 1, contribution()), Err("its exchange came out of order"));
    state.contribute(0, 0, contribution());
    assert!(state.take_complete(0).is_none());
    assert_eq!(state.peer_contributes(0, 2, contribution()), Ok(true));
    assert_eq!(state.take_complete(0), Some(vec![contribution(); 3]));
    assert_eq!(state.peer_contributes(0, 2, contribution()), Err("its exchange came out of order"));
}
