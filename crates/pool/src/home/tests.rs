//! The rules for clients of a home.

use super::*;
use crate::access::{At, LoadMode, TableLoad};
use crate::manifest::{Block, Buckets, Codec, Definition, KeyFamily, Layout, Strip};
use crate::pointer::{ExtentId, Pointer};

const LOADER: ClientId = 1;
const READER: ClientId = 2;

fn definition() -> Definition {
    Definition {
        schema: b"columns".to_vec(),
        columns: vec![Layout::Fixed(8)],
        buckets: vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }],
        strip_rows: 8,
    }
}

/// The bytes by which the definition counts.
const DEFINITION_BYTES: u64 = 7 + 2 + 8;

fn load(mode: LoadMode) -> TableLoad {
    TableLoad { table: "t".into(), definition: definition(), mode, origin: None }
}

fn statement(statement: u32) -> StatementId {
    StatementId { job: 7, statement }
}

fn strip(extent: u32, offset: u32, rows: u32) -> Strip {
    let at = Pointer { extent: ExtentId { server: 0, number: extent }, offset };
    let block = Block { at, bytes: rows * 8, codec: Codec::Plain, nulls: 0, least: 0, greatest: 9 };
    Strip { rows, blocks: vec![block] }
}

/// Loads some rows into one partition; gives the version and what is freed.
fn loaded(home: &mut Home, mode: LoadMode, number: u32, rows: u32) -> (u64, Vec<Effect>) {
    let begun = home.begin(LOADER, "loader", load(mode), statement(number), 1).unwrap();
    let extent = home.grant(LOADER, begun, 64).unwrap();
    home.seal(LOADER, begun, extent, rows * 8).unwrap();
    let strips = vec![(number % 2, strip(extent, 0, rows))];
    let (version, effects) = home.commit(LOADER, begun, 0, strips, true);
    (version.unwrap().unwrap(), effects)
}

/// The memory that is freed comes back.
fn come_back(home: &mut Home, effects: &[Effect]) {
    for effect in effects {
        if let Effect::Free(extent) = effect {
            home.freed(*extent);
        }
    }
}

fn home() -> Home {
    Home::new(0, 1 << 20)
}

#[test]
fn an_append_keeps_what_is_there_and_an_overwrite_frees_it() {
    let mut home = home();
    assert_eq!(loaded(&mut home, LoadMode::Create, 0, 3), (1, vec![]));
    assert_eq!(loaded(&mut home, LoadMode::Append, 1, 4), (2, vec![]));
    assert_eq!(loaded(&mut home, LoadMode::Append, 2, 5), (3, vec![]));
    let pin = home.pin(READER, "t", At::Newest, None).unwrap();
    let manifest = Manifest::decode(&pin.manifest).unwrap();
    let rows: Vec<u32> = manifest.strips.iter().map(|strip| strip.rows).collect();
    assert_eq!((rows, &manifest.partitions[..]), (vec![3, 5, 4], &[0, 2, 3][..]));
    let (version, freed) = loaded(&mut home, LoadMode::Overwrite, 3, 1);
    assert_eq!((version, freed), (4, vec![]), "a reader has it");
    let freed = home.unpin(0, READER, pin.lease);
    assert_eq!(freed, [Effect::Free(0), Effect::Free(1), Effect::Free(2)]);
    assert_eq!((home.tables()[0].rows, home.stat().extents), (1, 1));
}

#[test]
fn a_table_is_made_once_and_loaded_as_it_is() {
    let mut home = home();
    let mut begin = |mode| home.begin(LOADER, "loader", load(mode), statement(0), 1);
    let none = PoolError::NoTable { table: "t".into(), nearest: None };
    assert_eq!(begin(LoadMode::Append), Err(none.clone()));
    assert_eq!(begin(LoadMode::Overwrite), Err(none));
    loaded(&mut home, LoadMode::Create, 0, 3);
    let again = home.begin(LOADER, "loader", load(LoadMode::Create), statement(1), 1);
    assert!(matches!(again, Err(PoolError::Mismatch { .. })), "{again:?}");
    let mut other = load(LoadMode::Append);
    other.definition.columns = vec![Layout::Bits];
    let other = home.begin(LOADER, "loader", other, statement(1), 1);
    assert!(matches!(other, Err(PoolError::Mismatch { .. })), "{other:?}");
}

#[test]
fn one_job_loads_a_table_at_a_time_and_its_nodes_load_together() {
    let mut home = home();
    let begun = home.begin(1, "node 0", load(LoadMode::Create), statement(0), 2).unwrap();
    assert_eq!(home.begin(2, "node 1", load(LoadMode::Create), statement(0), 2), Ok(begun));
    let other = home.begin(3, "another", load(LoadMode::Create), statement(1), 2);
    let reason = "node 0 loads table 't' now".into();
    assert_eq!(other, Err(PoolError::Refused { reason }));
    for (client, writer) in [(1, 1), (2, 0)] {
        let extent = home.grant(client, begun, 64).unwrap();
        home.seal(client, begun, extent, 8).unwrap();
        let strips = vec![(1, strip(extent, 0, 1))];
        let (version, _) = home.commit(client, begun, writer, strips, true);
        assert_eq!(version, Ok((writer == 0).then_some(1)));
    }
    assert_eq!(home.tables()[0].rows, 2);
}

#[test]
fn of_a_load_that_ends_early_nothing_is_kept() {
    let mut home = home();
    let ends: [fn(&mut Home, u64) -> Vec<Effect>; 2] =
        [|home, load| home.abort(1, load, ""), |home, _| home.closed(0, 2)];
    for ends in ends {
        let begun = home.begin(1, "node 0", load(LoadMode::Create), statement(0), 2).unwrap();
        home.begin(2, "node 1", load(LoadMode::Create), statement(0), 2).unwrap();
        let extents = [home.grant(1, begun, 64).unwrap(), home.grant(2, begun, 64).unwrap()];
        home.seal(1, begun, extents[0], 8).unwrap();
        let freed: Vec<Effect> = extents.into_iter().map(Effect::Free).collect();
        assert_eq!(ends(&mut home, begun), freed);
        assert_eq!((home.stat().bytes, home.stat().loads), (128, 0), "memory is on its way back");
        come_back(&mut home, &freed);
        come_back(&mut home, &freed);
        assert_eq!((home.stat().bytes, home.stat().loads), (0, 0));
        assert!(home.grant(1, begun, 64).is_err(), "it is over for all nodes");
    }
}

#[test]
fn the_nodes_of_a_load_that_was_given_up_hear_why() {
    type End = fn(&mut Home, u64) -> Vec<Effect>;
    let ends: [(End, &str); 4] = [
        (|home, load| home.abort(1, load, "line 3 has no number"), "node 0 failed: line 3 has no"),
        (|home, load| home.abort(1, load, ""), "node 0 has given it up"),
        (|home, _| home.closed(0, 1), "node 0 has ended, or its connection has"),
        (
            |home, load| home.commit(1, load, 0, vec![(0, strip(9, 0, 1))], true).1,
            "node 0 failed: the memory server refuses: the load names a block outside",
        ),
    ];
    for (end, reason) in ends {
        let mut home = home();
        let begun = home.begin(1, "node 0", load(LoadMode::Create), statement(0), 2).unwrap();
        home.begin(2, "node 1", load(LoadMode::Create), statement(0), 2).unwrap();
        let extents = [(); 2].map(|()| home.grant(2, begun, 64).unwrap());
        home.seal(2, begun, extents[0], 8).unwrap();
        assert_eq!(home.check_seal(2, begun, extents[1]), Ok(()));
        assert!(matches!(home.check_seal(1, begun, extents[1]), Err(PoolError::Refused { .. })));
        end(&mut home, begun);
        // The next request of a node fails as a consequence.
        let strips = || vec![(0, strip(extents[0], 0, 1))];
        let errors = [
            home.grant(2, begun, 64).map(drop),
            home.check_seal(2, begun, extents[1]),
            home.hand_in(2, begun, 1, strips(), true).0.map(drop),
            home.replace(2, begun, 1, strips()).0,
            home.commit(2, begun, 1, strips(), true).0.map(drop),
        ];
        for error in errors {
            assert!(matches!(error, Err(PoolError::GivenUp { .. })), "{error:?}");
        }
        // A later reason does not take the place of the first.
        home.abort(2, begun, "the load was given up");
        home.closed(0, 2);
        match home.outcome(begun, statement(0)) {
            Err(PoolError::GivenUp { reason: is }) => assert!(is.contains(reason), "{is}"),
            other => panic!("{other:?}"),
        }
        let stranger = home.outcome(begun, statement(1)).unwrap_err().to_string();
        assert!(stranger.contains("another statement"), "{stranger}");
    }
}

#[test]
fn a_loader_names_only_what_it_has_sealed() {
    type Wrong = (u32, fn(u32) -> Strip);
    let wrong: [Wrong; 6] = [
        (2, |extent| strip(extent, 0, 1)),
        (0, |extent| strip(extent + 1, 0, 1)),
        (0, |extent| strip(extent, 64, 1)),
        (0, |extent| strip(extent, 0, 9)),
        (0, |extent| Strip { rows: 2, ..strip(extent, 0, 1) }),
        (0, |_| Strip { rows: 1, blocks: vec![] }),
    ];
    for (number, (partition, make)) in wrong.into_iter().enumerate() {
        let mut home = home();
        let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
        let sealed = home.grant(1, begun, 64).unwrap();
        let written = home.grant(1, begun, 64).unwrap();
        assert!(home.seal(1, begun, written, 65).is_err(), "more than it has");
        assert!(home.seal(2, begun, written, 8).is_err(), "of another client");
        home.seal(1, begun, sealed, 64).unwrap();
        let strips = vec![(partition, make(sealed))];
        let (committed, freed) = home.commit(1, begun, 0, strips, true);
        assert!(committed.is_err(), "strip {number}");
        assert_eq!(freed, [Effect::Free(sealed), Effect::Free(written)]);
    }
}

#[test]
fn a_budget_is_kept() {
    let mut home = Home::new(0, DEFINITION_BYTES - 1);
    let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1);
    assert!(matches!(begun, Err(PoolError::Full { needed: DEFINITION_BYTES, .. })), "{begun:?}");
    let mut home = Home::new(0, 1000 + DEFINITION_BYTES);
    let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let extent = home.grant(1, begun, 800).unwrap();
    assert_eq!(home.grant(1, begun, 201), Err(PoolError::Full { needed: 201, free: 200 }));
    home.seal(1, begun, extent, 8).unwrap();
    let (version, freed) = home.commit(1, begun, 0, vec![(0, strip(extent, 0, 1))], true);
    assert!(matches!(version, Err(PoolError::Full { .. })), "no room for the manifest");
    assert_eq!((freed, home.stat().bytes), (vec![Effect::Free(extent)], 800));
    home.freed(extent);
    assert_eq!(home.stat().bytes, 0);
}

#[test]
fn no_more_extents_are_granted_than_the_system_admits() {
    let mut home = home().with_extents_max(2);
    let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let first = home.grant(1, begun, 64).unwrap();
    home.grant(1, begun, 64).unwrap();
    let third = home.grant(1, begun, 64).unwrap_err().to_string();
    assert!(third.contains("ulimit -n"), "{third}");
    let freed = home.abort(1, begun, "");
    assert!(freed.contains(&Effect::Free(first)) && home.is_freeing());
    let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    assert!(home.grant(1, begun, 64).is_err(), "they have not come back");
    come_back(&mut home, &freed);
    assert!(home.grant(1, begun, 64).is_ok());
}

/// A home that saves, with a version that is being saved, and its load.
fn saving() -> (Home, u64, Box<SavedVersion>) {
    let mut home = home().with_saving();
    let begun = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let extent = home.grant(LOADER, begun, 64).unwrap();
    home.seal(LOADER, begun, extent, 24).unwrap();
    let strips = vec![(0, strip(extent, 0, 3))];
    let (version, effects) = home.commit(LOADER, begun, 0, strips, true);
    assert_eq!(version, Ok(None));
    let [Effect::Save(saved)] = &effects[..] else { panic!("{effects:?}") };
    (home, begun, saved.clone())
}

#[test]
fn a_version_appears_when_it_was_saved_whoever_has_ended() {
    let (mut home, load, saved) = saving();
    assert!(home.pin(READER, "t", At::Newest, None).is_err(), "it may be lost yet");
    assert_eq!(home.outcome(load, statement(0)), Ok(None));
    assert!(home.begin(READER, "b", self::load(LoadMode::Create), statement(1), 1).is_err());
    assert!(home.drop_table("t").is_err(), "it is not there yet");
    assert_eq!(home.closed(0, LOADER), []);
    assert_eq!(home.saved(load, Ok(())), []);
    assert_eq!(home.outcome(load, statement(0)), Ok(Some(1)));
    assert!(home.outcome(load, statement(1)).is_err(), "of another statement");
    let pin = home.pin(READER, "t", At::Newest, None).unwrap();
    assert_eq!(pin.manifest, saved.bytes);
}

#[test]
fn the_outcomes_that_were_decided_first_are_forgotten_first() {
    let mut home = home();
    let outcome = |number: u64| LoadOutcome::Version(statement(0), number);
    let numbers = |count: u64| (0..count).map(|number| u64::MAX - number);
    let most = OUTCOMES_MAX as u64;
    numbers(most).for_each(|load| home.remember(load, outcome(1)));
    home.remember(5, outcome(2));
    home.remember(5, outcome(3));
    assert_eq!(home.outcome(5, statement(0)), Ok(Some(3)), "a low number is not an old one");
    assert!(home.outcome(u64::MAX, statement(0)).is_err(), "the first has gone");
    let others = numbers(most).skip(1);
    others.for_each(|load| assert_eq!(home.outcome(load, statement(0)), Ok(Some(1)), "{load}"));
}

#[test]
fn statements_that_have_let_go_make_room_for_others() {
    let mut home = home();
    loaded(&mut home, LoadMode::Create, 0, 3);
    let pins_max = 16 * LEASES_MAX as u32;
    for number in 0..pins_max {
        assert!(!home.is_full_of_statements());
        let pin = home.pin(READER, "t", At::Newest, Some(statement(number))).unwrap();
        home.unpin(0, READER, pin.lease);
    }
    assert!(home.is_full_of_statements());
    assert!(home.pin(LOADER, "t", At::Newest, Some(statement(pins_max))).is_err());
    assert_eq!(home.forget_statements(), []);
    home.pin(LOADER, "t", At::Newest, Some(statement(pins_max))).unwrap();
}

#[test]
fn of_a_version_that_cannot_be_saved_nothing_is_kept() {
    let (mut home, load, _) = saving();
    let freed = home.saved(load, Err("no space left".into()));
    assert_eq!(freed, [Effect::Free(0)]);
    come_back(&mut home, &freed);
    assert_eq!((home.stat().bytes, home.stat().loads), (0, 0));
    let outcome = home.outcome(load, statement(0)).unwrap_err().to_string();
    assert!(outcome.contains("no space left"), "{outcome}");
    assert!(home.pin(READER, "t", At::Newest, None).is_err());
}

#[test]
fn what_was_saved_is_there_again_and_what_is_damaged_is_named() {
    let (_, load, saved) = saving();
    let mut home = self::home().with_saving().with_incarnation(7);
    home.restore(*saved.clone(), |_| 4096).unwrap();
    assert!(home.restore(*saved.clone(), |_| 4096).is_err(), "it is there");
    home.set_damaged("d", "a bit".into(), &[]);
    assert_eq!(home.outcome(load, statement(0)), Ok(Some(1)), "who asks now learns it, too");
    let pin = home.pin(READER, "t", At::Newest, None).unwrap();
    assert_eq!((&pin.manifest, pin.version), (&saved.bytes, 1));
    assert!(pin.lease > 7 << 32);
    assert_eq!(home.stat().bytes, 4096 + 2 * saved.bytes.len() as u64);
    let named = PoolError::Damaged { table: "d".into(), reason: "a bit".into() };
    assert_eq!(home.pin(READER, "d", At::Newest, None).unwrap_err(), named);
    let load = TableLoad { table: "d".into(), ..self::load(LoadMode::Create) };
    assert_eq!(home.begin(LOADER, "b", load.clone(), statement(1), 1), Err(named));
    assert!(home.tables().iter().any(|table| table.damaged && table.name == "d"));
    home.drop_table("d").unwrap();
    let begun = home.begin(LOADER, "b", load, statement(1), 1).unwrap();
    assert_eq!(home.grant(LOADER, begun, 64), Ok(1), "numbers are not used again");
    let small = Home::new(0, 4095).restore(*saved, |_| 4096);
    assert!(matches!(small, Err(PoolError::Full { .. })), "{small:?}");
}

/// Rows of the load behind that version were not saved: its loader must not take it for the end.
#[test]
fn a_version_of_a_load_that_went_on_is_no_outcome_of_it_after_a_restart() {
    let mut home = self::home().with_saving();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let strip = sealed(&mut home, load, 1);
    let (_, effects) = home.hand_in(LOADER, load, 0, vec![strip], true);
    let [Effect::Save(saved)] = &effects[..] else { panic!("{effects:?}") };
    assert!(saved.goes_on);
    let mut restarted = self::home().with_saving().with_incarnation(7);
    restarted.restore(*saved.clone(), |_| 4096).unwrap();
    assert!(restarted.outcome(load, statement(0)).is_err());
    assert_eq!(rows_of(&mut restarted), (1, vec![1]));
}

#[test]
fn a_load_ends_when_its_last_writer_has_committed_and_not_before() {
    let mut home = home().with_saving();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 2).unwrap();
    for writer in 0..2 {
        let strip = sealed(&mut home, load, 1 + writer);
        assert_eq!(home.hand_in(LOADER, load, writer, vec![strip], true).0, Ok(None));
    }
    // The first version is being saved.
    assert_eq!(home.commit(LOADER, load, 0, vec![], true), (Ok(None), vec![]));
    assert!(!home.is_ending(load), "the other writer may go on for long");
    let last = sealed(&mut home, load, 3);
    assert_eq!(home.commit(LOADER, load, 1, vec![last], true), (Ok(None), vec![]));
    assert!(home.is_ending(load));
    assert_eq!(home.saved(load, Ok(())).len(), 1, "the last version is saved");
    assert!(home.is_ending(load));
    assert_eq!(home.saved(load, Ok(())), []);
    assert!(!home.is_ending(load));
    assert_eq!(rows_of(&mut home), (2, vec![1, 2, 3]));
}

#[test]
fn a_dropped_table_is_read_to_the_end_and_its_numbers_are_not_used_again() {
    let mut home = home();
    loaded(&mut home, LoadMode::Create, 0, 3);
    let pin = home.pin(READER, "t", At::Newest, None).unwrap();
    assert_eq!(home.drop_table("t"), Ok(vec![]));
    assert!(home.pin(READER, "t", At::Version(1), None).is_err());
    assert!(home.pinned(READER, pin.lease).is_some());
    assert_eq!(loaded(&mut home, LoadMode::Create, 1, 2).0, 2);
    assert_eq!(home.unpin(0, READER, pin.lease), [Effect::Free(0)]);
    let gone = home.pin(READER, "t", At::Version(1), None);
    assert!(matches!(gone, Err(PoolError::NoVersion { version: 1, .. })), "{gone:?}");
}

#[test]
fn a_load_does_not_bring_back_a_table_that_was_dropped_meanwhile() {
    for mode in [LoadMode::Append, LoadMode::Overwrite] {
        let mut home = home();
        loaded(&mut home, LoadMode::Create, 0, 3);
        let begun = home.begin(LOADER, "loader", load(mode), statement(1), 1).unwrap();
        let extent = home.grant(LOADER, begun, 64).unwrap();
        home.seal(LOADER, begun, extent, 8).unwrap();
        assert_eq!(home.drop_table("t"), Ok(vec![Effect::Free(0)]));
        let (version, freed) = home.commit(LOADER, begun, 0, vec![(0, strip(extent, 0, 1))], true);
        assert_eq!(version, Err(PoolError::NoTable { table: "t".into(), nearest: None }));
        come_back(&mut home, &freed);
        home.freed(0);
        assert_eq!((freed, home.stat().bytes), (vec![Effect::Free(extent)], 0));
    }
}

#[test]
fn strips_count_before_their_version_appears() {
    let mut home = Home::new(0, DEFINITION_BYTES + 64 + 200);
    let begun = home.begin(1, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let extent = home.grant(1, begun, 64).unwrap();
    home.seal(1, begun, extent, 64).unwrap();
    let mut commit = || home.commit(1, begun, 0, vec![(0, strip(extent, 0, 1))], false).0;
    assert_eq!([commit(), commit()], [Ok(None), Ok(None)]);
    assert_eq!(commit(), Err(PoolError::Full { needed: 88, free: 24 }));
    home.freed(extent);
    assert_eq!((home.stat().bytes, home.stat().loads), (0, 0));
}

#[test]
fn a_statement_keeps_its_version_until_its_nodes_have_let_go_for_a_minute() {
    let mut home = home();
    loaded(&mut home, LoadMode::Create, 0, 3);
    let first = home.pin(READER, "t", At::Newest, Some(statement(9))).unwrap();
    loaded(&mut home, LoadMode::Overwrite, 1, 2);
    assert!(home.unpin(0, READER, first.lease).is_empty());
    let late = home.pin(3, "t", At::Newest, Some(statement(9))).unwrap();
    let other = home.pin(3, "t", At::Newest, Some(statement(10))).unwrap();
    assert_eq!((first.version, late.version, other.version), (1, 1, 2));
    assert!(home.unpin(5, 3, late.lease).is_empty());
    assert!(home.tick(60_000_000_004).is_empty());
    assert_eq!(home.tick(60_000_000_005), [Effect::Free(0)]);
}

#[test]
fn space_is_worth_more_than_nodes_that_are_late() {
    let mut home = home();
    loaded(&mut home, LoadMode::Create, 0, 3);
    let pins = [READER, LOADER]
        .map(|client| home.pin(client, "t", At::Newest, Some(statement(5))).unwrap().lease);
    let (_, freed) = loaded(&mut home, LoadMode::Overwrite, 1, 3);
    assert_eq!((freed, home.unpin(0, READER, pins[0])), (vec![], vec![]));
    assert_eq!(home.forget_statements(), [], "a node of it reads");
    assert_eq!(home.unpin(0, LOADER, pins[1]), []);
    assert_eq!(home.forget_statements(), [Effect::Free(0)]);
}

#[test]
fn a_node_takes_part_whether_it_came_before_the_table_or_after() {
    let mut home = home();
    let mut begin =
        |client, mode, number| home.begin(client, "loader", load(mode), statement(number), 2);
    let number = begin(LOADER, LoadMode::Create, 0).unwrap();
    assert_eq!(begin(READER, LoadMode::Append, 0), Ok(number));
    assert!(begin(READER, LoadMode::Append, 1).is_err(), "another statement");
}

#[test]
fn who_is_silent_is_closed_before_anything_is_freed() {
    let mut home = home();
    loaded(&mut home, LoadMode::Create, 0, 3);
    home.renew(0, READER);
    home.pin(READER, "t", At::Newest, None).unwrap();
    loaded(&mut home, LoadMode::Overwrite, 1, 2);
    home.renew(5, READER);
    assert!(home.tick(LEASE_NS + 4).is_empty());
    let closes = home.tick(LEASE_NS + 5);
    assert!(matches!(closes[..], [Effect::Close(READER, _)]), "{closes:?}");
    assert!(home.tick(LEASE_NS + 6).is_empty(), "it is said once");
    assert_eq!(home.closed(LEASE_NS + 7, READER), [Effect::Free(0)]);
}

/// Seals an extent of a load with these rows, and gives them as a strip.
fn sealed(home: &mut Home, load: u64, rows: u32) -> (u32, Strip) {
    let extent = home.grant(LOADER, load, 64).unwrap();
    home.seal(LOADER, load, extent, rows * 8).unwrap();
    (1, strip(extent, 0, rows))
}

/// Rows of the strips of the newest version.
fn rows_of(home: &mut Home) -> (u64, Vec<u32>) {
    let pin = home.pin(READER, "t", At::Newest, None).unwrap();
    let manifest = Manifest::decode(&pin.manifest).unwrap();
    assert_eq!(home.unpin(0, READER, pin.lease), []);
    (pin.version, manifest.strips.iter().map(|strip| strip.rows).collect())
}

#[test]
fn a_version_appears_when_each_writer_has_submitted_or_ended() {
    let mut home = home();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 2).unwrap();
    let first = sealed(&mut home, load, 1);
    assert_eq!(home.hand_in(LOADER, load, 0, vec![first], true), (Ok(None), vec![]));
    // A part of what the other one hands in is not there yet.
    let part = sealed(&mut home, load, 2);
    assert_eq!(home.hand_in(LOADER, load, 1, vec![part], false), (Ok(None), vec![]));
    let none = home.pin(READER, "t", At::Newest, None);
    assert!(matches!(none, Err(PoolError::NoTable { .. })), "{none:?}");
    let twice = sealed(&mut home, load, 3);
    assert_eq!(home.hand_in(LOADER, load, 0, vec![twice], true), (Ok(None), vec![]));
    assert_eq!(home.hand_in(LOADER, load, 1, vec![], true), (Ok(Some(1)), vec![]));
    assert_eq!(rows_of(&mut home), (1, vec![1, 3, 2]));
    // Without rows there is no other version.
    for writer in 0..2 {
        assert_eq!(home.hand_in(LOADER, load, writer, vec![], true), (Ok(None), vec![]));
    }
    // Nobody waits for a writer that has ended.
    let last = sealed(&mut home, load, 4);
    assert_eq!(home.commit(LOADER, load, 0, vec![last], true), (Ok(None), vec![]));
    let more = sealed(&mut home, load, 5);
    assert_eq!(home.hand_in(LOADER, load, 1, vec![more], true), (Ok(Some(2)), vec![]));
    assert_eq!(rows_of(&mut home), (2, vec![1, 3, 2, 4, 5]));
    assert!(home.hand_in(LOADER, load, 0, vec![], true).0.is_err(), "it has committed");
}

#[test]
fn what_a_load_has_published_stays_when_it_is_given_up() {
    let mut home = home();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let first = sealed(&mut home, load, 1);
    assert_eq!(home.hand_in(LOADER, load, 0, vec![first], true).0, Ok(Some(1)));
    let (_, lost) = sealed(&mut home, load, 2);
    let lost = lost.blocks[0].at.extent.number;
    assert_eq!(home.closed(0, LOADER), [Effect::Free(lost)]);
    assert_eq!(rows_of(&mut home), (1, vec![1]));
    let again = home.begin(LOADER, "loader", self::load(LoadMode::Append), statement(1), 1);
    assert_eq!(home.commit(LOADER, again.unwrap(), 0, vec![], true).0, Ok(Some(2)));
}

#[test]
fn a_short_strip_goes_when_a_longer_one_takes_its_place() {
    let mut home = home();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 2).unwrap();
    let hand_in = |home: &mut Home, replaced, strip| {
        assert_eq!(home.replace(LOADER, load, 0, replaced), (Ok(()), vec![]));
        let (version, mut freed) = home.hand_in(LOADER, load, 0, vec![strip], true);
        assert_eq!(version, Ok(None));
        let (version, more) = home.hand_in(LOADER, load, 1, vec![], true);
        freed.extend(more);
        (version, freed)
    };
    let mut before = sealed(&mut home, load, 1);
    assert_eq!(hand_in(&mut home, vec![], before.clone()), (Ok(Some(1)), vec![]));
    for rows in 2..8 {
        let next = sealed(&mut home, load, rows);
        let gone = before.1.blocks[0].at.extent.number;
        let (version, freed) = hand_in(&mut home, vec![before], next.clone());
        assert_eq!((version, freed), (Ok(Some(rows.into())), vec![Effect::Free(gone)]));
        assert_eq!(rows_of(&mut home).1, [rows]);
        before = next;
    }
    // One that has not appeared is of no version.
    let unseen = sealed(&mut home, load, 8);
    let gone = unseen.1.blocks[0].at.extent.number;
    assert_eq!(home.replace(LOADER, load, 0, vec![before]).0, Ok(()));
    assert_eq!(home.hand_in(LOADER, load, 0, vec![unseen.clone()], true).0, Ok(None));
    let last = sealed(&mut home, load, 3);
    let (version, freed) = hand_in(&mut home, vec![unseen.clone()], last);
    assert_eq!((version, rows_of(&mut home).1), (Ok(Some(8)), vec![3]));
    assert!(freed.contains(&Effect::Free(gone)) && freed.len() == 2, "{freed:?}");
    assert_eq!(home.stat().extents, 1);
    // A strip that is not there cannot be replaced; the load is over, and the table as it was.
    let (_, _) = home.replace(LOADER, load, 1, vec![unseen]);
    assert!(home.hand_in(LOADER, load, 0, vec![], true).0.is_ok());
    let (error, _) = home.hand_in(LOADER, load, 1, vec![], true);
    assert!(matches!(error, Err(PoolError::Refused { .. })), "{error:?}");
    assert_eq!((home.stat().loads, rows_of(&mut home).1), (0, vec![3]));
}

#[test]
fn a_table_that_grows_is_saved_version_by_version() {
    let mut home = home().with_saving();
    let saves = |effects: &[Effect]| match effects {
        [Effect::Save(version)] => Some(version.manifest.version),
        [] => None,
        other => panic!("it saves nothing, but: {other:?}"),
    };
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    let hand_in = |home: &mut Home, rows| {
        let strip = sealed(home, load, rows);
        let (version, effects) = home.hand_in(LOADER, load, 0, vec![strip], true);
        assert_eq!(version, Ok(None));
        saves(&effects)
    };
    assert_eq!(hand_in(&mut home, 1), Some(1));
    // A part that is handed in meanwhile is of the version behind.
    assert_eq!((hand_in(&mut home, 2), hand_in(&mut home, 3)), (None, None));
    assert!(home.pin(READER, "t", At::Newest, None).is_err(), "it has not appeared");
    assert_eq!(saves(&home.saved(load, Ok(()))), Some(2));
    assert_eq!(rows_of(&mut home), (1, vec![1]));
    let last = sealed(&mut home, load, 4);
    assert_eq!(home.commit(LOADER, load, 0, vec![last], true), (Ok(None), vec![]));
    assert_eq!(home.outcome(load, statement(0)), Ok(None), "it is not decided");
    assert_eq!(saves(&home.saved(load, Ok(()))), Some(3));
    assert_eq!(
        (rows_of(&mut home), home.outcome(load, statement(0))),
        ((2, vec![1, 2, 3]), Ok(None))
    );
    assert_eq!(saves(&home.saved(load, Ok(()))), None);
    assert_eq!(rows_of(&mut home), (3, vec![1, 2, 3, 4]));
    assert_eq!(home.outcome(load, statement(0)), Ok(Some(3)));
    assert_eq!(home.stat().loads, 0);
}

#[test]
fn a_version_that_cannot_be_saved_ends_a_load_that_goes_on() {
    let mut home = home().with_saving();
    let load = home.begin(LOADER, "loader", load(LoadMode::Create), statement(0), 1).unwrap();
    for rows in [1, 2] {
        let strip = sealed(&mut home, load, rows);
        assert_eq!(home.hand_in(LOADER, load, 0, vec![strip], true).0, Ok(None));
    }
    let freed = home.saved(load, Err("the disk is full".into()));
    let frees = |number| freed.contains(&Effect::Free(number));
    assert!(frees(0) && frees(1) && freed.len() == 2, "{freed:?}");
    freed.iter().for_each(|effect| match effect {
        Effect::Free(number) => home.freed(*number),
        other => panic!("{other:?}"),
    });
    let (error, _) = home.hand_in(LOADER, load, 0, vec![], true);
    assert!(matches!(error, Err(PoolError::GivenUp { .. })), "{error:?}");
    let outcome = home.outcome(load, statement(0)).unwrap_err().to_string();
    assert!(outcome.contains("the disk is full"), "{outcome}");
    assert_eq!((home.stat().loads, home.stat().bytes, home.stat().tables), (0, 0, 0));
}
