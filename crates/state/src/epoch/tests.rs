//! One test per rule of the protocol.

use super::*;

fn tag(epoch: u64, chunk: u32, last: bool) -> Tag {
    let progress = Progress::active(epoch as i64 * 10);
    Tag { helper: 0, incarnation: 0, epoch, chunk, last, progress }
}

#[test]
fn a_chunk_is_accepted_once_and_in_order() {
    let mut leader = Leader::new(2);
    let gap = |epoch, chunk| Verdict::Refuse(TagRefusal::Gap { epoch, chunk });
    assert_eq!(leader.accept(&tag(2, 0, true)), gap(1, 0));
    assert_eq!(leader.accept(&tag(1, 1, true)), gap(1, 0));
    assert_eq!(leader.accept(&tag(1, 0, false)), Verdict::Stage);
    assert_eq!(leader.accept(&tag(1, 0, false)), Verdict::Refuse(TagRefusal::Duplicate));
    assert_eq!(leader.cut().epochs, [0, 0], "a staged chunk is no part of the state");
    assert_eq!(leader.accept(&tag(1, 1, true)), Verdict::Complete);
    assert_eq!(leader.accept(&tag(1, 1, true)), Verdict::Refuse(TagRefusal::Duplicate));
    assert_eq!(leader.accept(&tag(2, 0, true)), Verdict::Complete);
    assert_eq!(leader.cut().epochs, [2, 0]);
    let unknown = Tag { helper: 2, ..tag(1, 0, true) };
    assert_eq!(leader.accept(&unknown), Verdict::Refuse(TagRefusal::Unknown));
}

#[test]
fn windows_wait_for_the_last_helper() {
    let mut leader = Leader::new(3);
    assert!(!leader.advance(2, Progress::active(8)));
    leader.accept(&Tag { progress: Progress::active(10), ..tag(1, 0, false) });
    leader.accept(&Tag { helper: 1, progress: Progress::active(7), ..tag(1, 0, true) });
    assert_eq!(leader.clock().least(), i64::MIN, "a staged chunk moves no time");
    leader.accept(&tag(1, 1, true));
    assert_eq!(leader.clock().least(), 7);
    let ended = Progress::ended(END_OF_STREAM);
    leader.accept(&Tag { helper: 1, progress: ended, ..tag(2, 0, true) });
    assert_eq!((leader.clock().least(), leader.clock().of(1)), (8, Some(ended)));
    assert!(leader.advance(2, Progress::idle(8)), "told without an epoch");
    assert_eq!(leader.clock().least(), 10);
    leader.accept(&Tag { progress: Progress::active(3), ..tag(2, 0, true) });
    assert_eq!(leader.clock().least(), 10, "a watermark does not go back");
}

#[test]
fn a_helper_keeps_until_commit_and_sends_again() {
    let mut helper = Helper::new(0, 0, 0, 2);
    assert_eq!(helper.close(Progress::active(10), vec!["a", "b"]), Ok(1));
    assert_eq!(helper.close(Progress::active(20), vec![]), Ok(2));
    assert!(!helper.may_close());
    assert_eq!(
        helper.close(Progress::active(30), vec!["lost"]),
        Err(TooManyEpochs { uncommitted: 2 })
    );
    let drain = |helper: &mut Helper<&'static str>| {
        let mut sent = vec![];
        while let Some((tag, &chunk)) = helper.to_send() {
            sent.push((tag.epoch, tag.chunk, tag.last, chunk));
            helper.sent();
        }
        sent
    };
    let all = [(1, 0, false, "a"), (1, 1, true, "b"), (2, 0, true, "")];
    assert_eq!(drain(&mut helper), all);
    assert_eq!(helper.uncommitted(), 2, "sent is not committed");
    helper.resend(0).unwrap();
    assert_eq!(drain(&mut helper), all);
    assert_eq!(helper.acknowledge(1), Ok(1));
    assert_eq!(helper.acknowledge(0), Ok(0), "an old acknowledgement says nothing");
    assert_eq!(drain(&mut helper), []);
    helper.resend(1).unwrap();
    assert_eq!(drain(&mut helper), all[2..]);
    assert_eq!(helper.acknowledge(3), Err(AcknowledgeError { epoch: 3, closed: 2 }));
    assert_eq!((helper.acknowledge(2), helper.epoch(), helper.committed()), (Ok(1), 3, 2));
}

#[test]
fn an_acknowledgement_in_the_middle_of_sending_keeps_the_place() {
    let mut helper = Helper::new(0, 0, 0, 4);
    helper.close(Progress::active(1), vec![1]).unwrap();
    helper.close(Progress::active(2), vec![2, 3]).unwrap();
    helper.sent();
    helper.sent();
    helper.acknowledge(1).unwrap();
    let (tag, &chunk) = helper.to_send().unwrap();
    assert_eq!((tag.epoch, tag.chunk, tag.last, chunk), (2, 1, true, 3));
}

#[test]
fn a_new_life_begins_after_what_is_committed() {
    let mut leader = Leader::new(1);
    leader.accept(&tag(1, 0, true));
    leader.accept(&tag(2, 0, false));
    assert_eq!(leader.rejoin(0, 1), Rejoin::CommitFirst);
    assert_eq!(leader.accept(&tag(2, 1, true)), Verdict::Refuse(TagRefusal::Stale));
    let cut = leader.cut();
    assert_eq!(cut.epochs, [1]);
    leader.committed(cut);
    assert_eq!(leader.rejoin(0, 1), Rejoin::After(1));
    assert_eq!(leader.rejoin(0, 0), Rejoin::Refused, "the former life");
    assert_eq!(leader.rejoin(1, 1), Rejoin::Refused, "no such helper");
    let new = Tag { incarnation: 1, ..tag(2, 0, true) };
    assert_eq!(leader.accept(&new), Verdict::Complete);
}

#[test]
fn a_leader_comes_back_with_what_it_wrote() {
    let mut leader = Leader::new(1);
    leader.accept(&tag(1, 0, true));
    let cut = leader.cut();
    leader.accept(&tag(2, 0, true));
    leader.committed(cut.clone());
    assert_eq!(leader.acknowledged(0), Some(1));
    let mut back = Leader::restore(&cut, &[0]);
    assert_eq!((back.clock().least(), back.acknowledged(0)), (10, Some(1)));
    assert_eq!(back.accept(&tag(1, 0, true)), Verdict::Refuse(TagRefusal::Duplicate));
    assert_eq!(back.accept(&tag(2, 0, true)), Verdict::Complete);
    back.committed(back.cut());
    back.committed(cut);
    assert_eq!(back.acknowledged(0), Some(2), "an older cut changes nothing");
}
