//! The recovery of each operator as a job describes it.

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};

use super::super::fixtures::schema;
use super::specs::{keyed, ranking};
use crate::job::{
    Description, JobRecovery, KeyedOperator, KeyedState, Operator, OperatorKind, OperatorRecovery,
    RowRange, SavedParts, Sort,
};
use crate::keyed::Ranking;

/// Says nothing of its state.
struct Silent(Ranking);

impl KeyedOperator for Silent {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        self.0.create()
    }

    fn saved(&self) -> Option<SavedParts> {
        None
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        self.0.describe(columns)
    }
}

#[test]
fn a_job_says_how_it_is_recovered() {
    let of = |kind: OperatorKind| {
        JobRecovery::of(&[Operator::new("greatest", vec![vec![]], kind)], &[], None)
    };
    let keyed_ranking = ranking(None, &DataType::Int64);
    let kind = OperatorKind::Keyed(keyed_ranking.clone());
    let operators = vec![OperatorRecovery::SavedByKey];
    let saved = JobRecovery { operators, obstacles: vec![], refusals: vec![] };
    assert_eq!(of(kind), saved);
    let schema = schema("left");
    let sort = Sort { schema: schema.clone(), order: vec![], range: RowRange::default() };
    let obstacles = vec!["'greatest' is built anew from all rows".to_owned()];
    let operators = vec![OperatorRecovery::Rebuilt];
    let rebuilt = JobRecovery { operators, obstacles, refusals: vec![] };
    assert_eq!(of(OperatorKind::Sort(sort)), rebuilt);
    let order = vec![(1, SortOptions::default())];
    let (input, keys, schema) = (schema.clone(), vec![0], keyed_ranking.operator.schema());
    let silent = Silent(Ranking { input, keys, window_end: 2, order, limit: None, schema });
    let silent = OperatorKind::Keyed(keyed(silent, 1, &DataType::Int64));
    let unknown = of(silent);
    assert_eq!(unknown.operators, [OperatorRecovery::Unknown]);
    let [refused] = &unknown.refusals[..] else { panic!("{:?}", unknown.refusals) };
    let refused = &refused.message;
    assert!(refused.contains("'greatest' does not say what it keeps"), "{refused}");
}
