//! Slices that are saved block by block, where rounds are recorded, given up, or recorded and not
//! known yet, against the same slices that are not saved.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use proptest::prelude::*;

use super::all;
use crate::aggregates::{count, max, sum};
use crate::saved::SavedBlock;
use crate::{
    Accumulator, Aggregate, GroupBy, GroupColumns, Groups, KeyMode, KeyRows, Part, Partitioner,
    SaveRound, SavedGroups, SavedId, Slice, Slices, StateError, StateOptions,
};

const KEYS: i64 = 400;
const SLICES: i64 = 2;

/// A step of a run.
#[derive(Debug, Clone)]
enum Step {
    /// Rows of `rows` keys side by side from `from` on, a `step` apart.
    Rows { slice: i64, from: i64, rows: i64, step: i64, nulls: bool },
    /// Groups of others come.
    Merge { slice: i64, from: i64, rows: i64 },
    /// The groups of other workers are given away.
    GiveAway,
    /// A window ends.
    Drain { slice: i64 },
    /// A round is saved, and `recorded` or given up; then it is `known` or not.
    Save { recorded: bool, known: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slice = || 0..SLICES;
    let rows = (slice(), 0..KEYS, 1..60i64, prop_oneof![Just(1), Just(1), Just(7)], 0..20u8)
        .prop_map(|(slice, from, rows, step, null)| Step::Rows {
            slice,
            from,
            rows,
            step,
            nulls: null == 0,
        });
    let merge = (slice(), 0..KEYS, 1..20i64).prop_map(|(slice, from, rows)| Step::Merge {
        slice,
        from,
        rows,
    });
    let save =
        (0..3u8, any::<bool>()).prop_map(|(up, known)| Step::Save { recorded: up > 0, known });
    let step = prop_oneof![
        6 => rows,
        2 => merge,
        1 => Just(Step::GiveAway),
        1 => slice().prop_map(|slice| Step::Drain { slice }),
        6 => save,
    ];
    prop::collection::vec(step, 1..40)
}

/// The form of the keys.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Keys {
    None,
    Number,
    Pair,
    Text,
}

impl Keys {
    fn types(self) -> Vec<DataType> {
        match self {
            Self::None => vec![],
            Self::Number => vec![DataType::Int64],
            Self::Pair => vec![DataType::Int64; 2],
            Self::Text => vec![DataType::Utf8],
        }
    }

    fn columns(self, keys: &[i64]) -> Vec<ArrayRef> {
        let number = || -> ArrayRef {
            Arc::new(keys.iter().map(|&key| (key > 0).then_some(key)).collect::<Int64Array>())
        };
        match self {
            Self::None => vec![],
            Self::Number => vec![number()],
            Self::Pair => vec![number(), number()],
            Self::Text => {
                let texts = keys.iter().map(|key| format!("a key of some length: {key}"));
                vec![Arc::new(StringArray::from_iter_values(texts))]
            }
        }
    }
}

fn spec(keys: Keys, mode: Option<KeyMode>, aggregates: Vec<Arc<dyn Aggregate>>) -> Arc<GroupBy> {
    let options = StateOptions { key_mode: mode, block_ids: 16, ..StateOptions::default() };
    Arc::new(GroupBy { keys: keys.types(), aggregates, options })
}

/// The rows of columns, in an order of their own.
fn sorted(parts: &[GroupColumns]) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for GroupColumns { keys, states } in parts {
        let columns: Vec<ArrayRef> = keys.iter().chain(states).cloned().collect();
        rows.extend(KeyRows::of(&columns).unwrap().iter().map(|row| row.data().to_vec()));
    }
    rows.sort_unstable();
    rows
}

struct Bed {
    spec: Arc<GroupBy>,
    keys: Keys,
    /// Slices that are saved, and the same that are not.
    saved: Slices,
    plain: Slices,
    round: u64,
    saves: u64,
    known: Option<u64>,
    /// The last round that was recorded, and the groups of it that have numbers.
    recorded: (Option<u64>, BTreeMap<SavedId, GroupColumns>),
    copied: usize,
    unchanged: usize,
}

impl Bed {
    fn new(spec: Arc<GroupBy>, keys: Keys) -> Self {
        let (saved, plain) = (Slices::new(&spec), Slices::new(&spec));
        let recorded = (None, BTreeMap::new());
        let (round, saves, known, copied, unchanged) = (0, 0, None, 0, 0);
        Self { spec, keys, saved, plain, round, saves, known, recorded, copied, unchanged }
    }

    fn rows(&mut self, slice: i64, keys: &[i64], nulls: bool) {
        let columns = self.keys.columns(keys);
        let value = |key: &i64| (!nulls || key % 3 > 0).then_some(key * 5 - 7);
        let values: ArrayRef = Arc::new(keys.iter().map(value).collect::<Int64Array>());
        let has_argument = |of: &Arc<dyn Aggregate>| !format!("{of:?}").contains("argument: false");
        let args = self
            .spec
            .aggregates
            .iter()
            .map(|of| if has_argument(of) { vec![values.clone()] } else { vec![] });
        let args: Vec<Vec<ArrayRef>> = args.collect();
        for slices in [&mut self.saved, &mut self.plain] {
            slices.update(slice, keys.len(), &columns, &args).unwrap();
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Rows { slice, from, rows, step, nulls } => {
                let keys: Vec<i64> = (0..rows).map(|at| (from + at * step) % KEYS).collect();
                self.rows(slice, &keys, nulls);
            }
            Step::Merge { slice, from, rows } => {
                let mut other = Bed::new(self.spec.clone(), self.keys);
                other.rows(0, &(from..from + rows).collect::<Vec<_>>(), false);
                while let Some(delta) = other.plain.take_delta(0).unwrap() {
                    for slices in [&mut self.saved, &mut self.plain] {
                        slices.merge(slice, &delta.keys, &delta.states).unwrap();
                    }
                }
            }
            Step::GiveAway if self.keys == Keys::None => {}
            Step::GiveAway => {
                for slices in [&mut self.saved, &mut self.plain] {
                    let mut partitioner = Partitioner::in_blocks(2);
                    let give = |_, _: &_, _: &_| Ok::<_, StateError>(());
                    slices.take_remote_groups(0, &mut partitioner, give).unwrap();
                }
            }
            Step::Drain { slice } => {
                for slices in [&mut self.saved, &mut self.plain] {
                    while slices.take_values(slice).unwrap().is_some() {}
                }
            }
            Step::Save { recorded, known } => self.save(recorded, known),
        }
    }

    fn save(&mut self, is_recorded: bool, is_known: bool) {
        let round = SaveRound { round: self.round, recorded: self.known };
        let mut numbered = BTreeMap::new();
        let starts: Vec<i64> = self.saved.starts().collect();
        for start in starts {
            self.saves += 1;
            let mut parts = Vec::new();
            let each = |saved| {
                let (id, part) = match saved {
                    SavedGroups::Held(groups) => {
                        self.copied += 1;
                        (groups.id(), groups.columns()?)
                    }
                    SavedGroups::Unchanged { id, .. } => {
                        self.unchanged += 1;
                        // The last round that was recorded has them.
                        (Some(id), self.recorded.1[&id].clone())
                    }
                    other => panic!("{other:?}"),
                };
                if let Some(id) = id {
                    let before = self.recorded.1.get(&id);
                    assert!(before.is_none_or(|before| *before == part), "{id:?} has changed");
                    assert!(numbered.insert(id, part.clone()).is_none(), "{id:?} came twice");
                }
                parts.push(part);
                Ok::<_, StateError>(())
            };
            self.saved.save(start, usize::MAX, (round, self.saves), each).unwrap();
            let mut plain = Slice::new(&self.spec);
            self.plain.merge_into(start, &mut plain).unwrap();
            let expected: Vec<_> = std::iter::from_fn(|| plain.take_delta().unwrap()).collect();
            assert_eq!(sorted(&parts), sorted(&expected), "slice {start} in {round:?}");
        }
        if is_recorded {
            self.recorded = (Some(self.round), numbered);
        }
        self.round += 1;
        if is_known {
            self.known = self.recorded.0;
        }
    }
}

/// An aggregate whose states can only be read as columns, as those of DataFusion.
#[derive(Debug)]
struct Uncopied(Arc<dyn Aggregate>);

impl Aggregate for Uncopied {
    fn state_types(&self) -> Vec<DataType> {
        self.0.state_types()
    }

    fn output_type(&self) -> DataType {
        self.0.output_type()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(UncopiedStates(self.0.create()))
    }
}

struct UncopiedStates(Box<dyn Accumulator>);

impl Accumulator for UncopiedStates {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.0.update(args, groups, total)
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        self.0.merge(states, groups, total)
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        self.0.state(part)
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        self.0.values(part)
    }

    fn clear(&mut self, total: usize) {
        self.0.clear(total);
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

fn uncopied() -> Arc<dyn Aggregate> {
    Arc::new(Uncopied(max(&DataType::Int64).unwrap()))
}

fn check(steps: &[Step], mode: Option<KeyMode>, keys: Keys) {
    let all = [vec![count()], all(), vec![max(&DataType::Int64).unwrap()], vec![uncopied()]];
    for aggregates in all {
        let mut bed = Bed::new(spec(keys, mode, aggregates), keys);
        steps.iter().for_each(|step| bed.run(step));
        bed.save(true, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn blocks_that_are_not_copied_are_as_they_were_saved(steps in steps()) {
        for mode in KeyMode::ALL.into_iter().map(Some).chain([None]) {
            check(&steps, mode, Keys::Number);
        }
        for keys in [Keys::None, Keys::Pair, Keys::Text] {
            check(&steps, None, keys);
        }
    }
}

#[test]
fn only_blocks_with_changes_are_copied() {
    let modes = [KeyMode::Array, KeyMode::Ranges, KeyMode::Hash, KeyMode::Packed, KeyMode::Wide];
    for (mode, aggregate) in modes.into_iter().flat_map(|of| [(of, count()), (of, uncopied())]) {
        let keys = Keys::Number;
        let mut bed = Bed::new(spec(keys, Some(mode), vec![aggregate]), keys);
        bed.rows(0, &(1..160).collect::<Vec<_>>(), false);
        bed.save(true, false);
        let all = bed.copied;
        assert!(all >= 10);
        bed.rows(0, &[3, 4], false);
        bed.save(true, false);
        assert_eq!(bed.unchanged, 0, "{mode:?}: no round is known to be recorded");
        bed.known = bed.recorded.0;
        bed.copied = 0;
        bed.save(false, false);
        assert_eq!((bed.copied, bed.unchanged), (0, all), "{mode:?}");
        bed.rows(0, &[3, 4, 100], false);
        (bed.copied, bed.unchanged) = (0, 0);
        bed.save(false, false);
        assert_eq!((bed.copied, bed.unchanged), (2, all - 2), "{mode:?}");
        // The round was given up.
        (bed.copied, bed.unchanged) = (0, 0);
        bed.save(true, true);
        assert_eq!((bed.copied, bed.unchanged), (2, all - 2), "{mode:?}");
        bed.save(true, true);
        assert_eq!((bed.copied, bed.unchanged), (2, 2 * all - 2), "{mode:?}");
    }
}

/// A worker begins a round when a marker of a peer comes, mostly before its node knows that the
/// round before is recorded.
#[test]
fn blocks_are_not_copied_though_each_round_is_known_one_round_late() {
    let keys = Keys::Number;
    let mut bed = Bed::new(spec(keys, None, vec![count()]), keys);
    bed.rows(0, &(1..160).collect::<Vec<_>>(), false);
    for _ in 0..4 {
        let before = bed.recorded.0;
        bed.save(true, false);
        bed.known = before;
    }
    let all = bed.copied / 2;
    assert!(all >= 10);
    assert_eq!((bed.copied, bed.unchanged), (2 * all, 2 * all));
}

#[test]
fn carries_are_copied_with_their_block_where_few_sums_or_all_carry() {
    for carry in [1, 40] {
        let spec = spec(Keys::Number, None, vec![sum(&DataType::Int64).unwrap()]);
        let mut slice = Slice::new(&spec);
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(1..160));
        let most = |key: i64| if key % carry == 0 { i64::MAX } else { key };
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values((1..160).map(most)));
        for _ in 0..2 {
            slice.update(std::slice::from_ref(&keys), &[vec![values.clone()]]).unwrap();
        }
        let mut parts = Vec::new();
        let keep = |saved| match saved {
            SavedBlock::Copied(groups) => {
                parts.push(groups.columns()?);
                Ok::<_, StateError>(())
            }
            other => panic!("{other:?}"),
        };
        slice.save(SaveRound::default(), 1, keep).unwrap();
        let whole: Vec<GroupColumns> = std::iter::from_fn(|| slice.take_delta().unwrap()).collect();
        assert!(parts.len() >= 10);
        assert_eq!(sorted(&parts), sorted(&whole));
    }
}

#[test]
fn a_copy_does_not_change_with_the_slice() {
    for (at, aggregate) in all().into_iter().enumerate() {
        let spec = spec(Keys::Number, None, vec![aggregate]);
        let mut slice = Slice::new(&spec);
        let column = |range: std::ops::Range<i64>| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(range))
        };
        let args = |values: ArrayRef| if at == 0 { vec![] } else { vec![values] };
        slice.update(&[column(1..100)], &[args(column(1..100))]).unwrap();
        let mut copies = Vec::new();
        let keep = |saved| {
            copies.push(saved);
            Ok::<_, StateError>(())
        };
        slice.save(SaveRound::default(), 1, keep).unwrap();
        let before: Vec<GroupColumns> =
            std::iter::from_fn(|| slice.take_delta().unwrap()).collect();
        slice.update(&[column(1..100)], &[args(column(5..104))]).unwrap();
        let columns = copies.iter().map(|saved| match saved {
            SavedBlock::Copied(groups) => groups.columns().unwrap(),
            other => panic!("{other:?}"),
        });
        let columns: Vec<GroupColumns> = columns.collect();
        assert!(columns.len() > 5);
        assert_eq!(sorted(&columns), sorted(&before));
        let rows: usize = columns.iter().map(GroupColumns::rows).sum();
        assert_eq!(rows, 99);
        let names = (0..columns[0].states.len() + 1).map(|at| format!("c{at}"));
        let GroupColumns { keys, states } = columns[0].clone();
        let columns = names.zip(keys.into_iter().chain(states));
        RecordBatch::try_from_iter(columns).unwrap();
    }
}
