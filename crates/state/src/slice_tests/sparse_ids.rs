//! Arrays whose ids have holes where no key was: who stands them, and who tells them.

use super::*;

/// Stands for an aggregate from outside that wants dense ids: asserts that it gets them.
#[derive(Debug)]
struct DenseOnly;

struct DenseOnlyState {
    seen: Vec<bool>,
}

impl Aggregate for DenseOnly {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::UInt8]
    }

    fn output_type(&self) -> DataType {
        DataType::UInt8
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(DenseOnlyState { seen: vec![] })
    }
}

impl Accumulator for DenseOnlyState {
    fn update(&mut self, _: &[ArrayRef], groups: &Groups, total: usize) -> Result<(), StateError> {
        self.seen.resize(total, false);
        groups.iter().for_each(|id| self.seen[id as usize] = true);
        assert!(self.seen.iter().all(|&seen| seen), "a hole below {total}");
        Ok(())
    }

    fn merge(&mut self, _: &[ArrayRef], groups: &Groups, total: usize) -> Result<(), StateError> {
        self.update(&[], groups, total)
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.values(part)?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        assert_eq!((self.seen.len(), part.rows()), (part.total(), part.ids().len()));
        Ok(Arc::new(UInt8Array::from(vec![1; part.rows()])))
    }

    fn clear(&mut self, total: usize) {
        assert_eq!(std::mem::take(&mut self.seen).len(), total);
    }

    fn bytes(&self) -> usize {
        self.seen.len()
    }
}

#[test]
fn an_aggregate_that_needs_dense_ids_sees_no_sparse_ones() {
    let spec = spec(vec![DataType::Int64], vec![Arc::new(DenseOnly)], None);
    let mut slice = Slice::new(&spec);
    for keys in [vec![None, None], vec![Some(70), Some(50), None], vec![Some(-9), Some(70)]] {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        slice.update(&[keys], &[vec![]]).unwrap();
        assert_eq!(slice.key_mode(), KeyMode::Tiny);
    }
    assert_eq!(text(&delta(&mut slice)), [["", "1"], ["-9", "1"], ["50", "1"], ["70", "1"]]);
}

#[test]
fn an_array_that_begins_with_nulls_has_no_holes() {
    let spec = spec(vec![DataType::Int64], max(&DataType::Int64).into_iter().collect(), None);
    let mut slice = Slice::new(&spec);
    let mut update = |keys: Vec<i64>, value: Option<i64>| {
        let values: Int64Array = keys.iter().map(|_| value).collect();
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        slice.update(&[keys], &[vec![Arc::new(values)]]).unwrap();
        slice.key_mode()
    };
    assert_eq!(update((0..1_000).map(|key| key * 130).collect(), Some(1)), KeyMode::Hash);
    assert_eq!(update((0..9_000).map(|key| key * 14).collect(), Some(2)), KeyMode::Hash);
    assert_eq!(update((128_960..128_963).collect(), None), KeyMode::Array);
    let rows = text(&values(&mut slice));
    let of = |key: &str| rows.iter().find(|row| row[0] == key).map(|row| row[1].as_str());
    assert_eq!([of("128960"), of("128961"), of("128962")], [Some("1"), Some(""), Some("")]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn aggregates_tell_which_ids_have_rows(
        batches in prop::collection::vec(
            (0u32..4, prop::collection::vec((0i64..90, -9i64..9), 1..30)),
            1..9,
        ),
        workers in 1usize..4,
    ) {
        // Of some batches there are nulls, so that states of no value meet arrays with holes; of
        // others the worst value of its type, which looks like none.
        let of = |end: i64| {
            let batch = |(kind, rows): &(u32, Vec<(i64, i64)>)| {
                let value = |value: i64| match (kind, value) {
                    (0, 5..) => None,
                    (1, 5..) => Some(end),
                    _ => Some(value),
                };
                rows.iter().map(|&(key, v)| (Some(key), value(v))).collect()
            };
            batches.iter().map(batch).collect::<Vec<Batch>>()
        };
        let int = DataType::Int64;
        let cases = [
            (i64::MIN, [max(&int), min(&int)], [5, 4]),
            (i64::MAX, [min(&int), max(&int)], [4, 5]),
            (7, [avg(&int), sum(&int)], [6, 3]),
        ];
        for (end, aggregates, columns) in cases {
            let batches = of(end);
            let aggregates: Vec<_> = aggregates.into_iter().flatten().collect();
            // Both together, and the first alone: its rows need no ids.
            for some in [2, 1] {
                let spec = spec(vec![int.clone()], aggregates[..some].to_vec(), None);
                let row = |row: Vec<String>| {
                    let columns = columns[..some].iter().map(|&column| &row[column]);
                    [&row[0]].into_iter().chain(columns).cloned().collect::<Vec<_>>()
                };
                let expected: Vec<_> = oracle(&batches).into_iter().map(row).collect();
                let mut merged = text(&late_merge(&spec, &batches, workers));
                merged.sort();
                prop_assert_eq!(&merged, &expected);
            }
        }
    }
}
