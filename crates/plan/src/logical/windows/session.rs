//! `SESSION` as window functions, for [`super::expanded`]: a bound of the session of each row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use dataflow::time::last_tick;
use datafusion::common::exec_err;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{PartitionEvaluator, Signature, Volatility, WindowUDFImpl};

use super::{Bound, WindowShape};
use crate::logical::errors::PlanError;
use crate::text::interval::tick_ns;
use crate::text::types::sql_name;

/// `__session_…(time, gap) OVER (PARTITION BY …)`: a bound of the session of each row. The gap is
/// in nanoseconds.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionOf {
    bound: Bound,
    signature: Signature,
}

impl SessionOf {
    pub(super) fn new(bound: Bound) -> Self {
        Self { bound, signature: Signature::variadic_any(Volatility::Stable) }
    }
}

impl WindowUDFImpl for SessionOf {
    fn name(&self) -> &str {
        WindowShape::Session.function(self.bound)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(
        &self,
        _: PartitionEvaluatorArgs,
    ) -> DfResult<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Evaluator { bound: self.bound }))
    }

    fn field(&self, args: WindowUDFFieldArgs) -> DfResult<FieldRef> {
        let Some(time) = args.get_input_field(0) else {
            return exec_err!("a window needs a time");
        };
        let DataType::Timestamp(..) = time.data_type() else {
            return Err(PlanError::WindowOf(sql_name(time.data_type())).into());
        };
        Ok(Arc::new(Field::new(args.name(), time.data_type().clone(), true)))
    }
}

/// Finds the sessions of one key, all of whose rows are there.
#[derive(Debug)]
struct Evaluator {
    bound: Bound,
}

impl PartitionEvaluator for Evaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> DfResult<ArrayRef> {
        let [time, gap, ..] = values else { return exec_err!("a session has a time and a gap") };
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return Err(PlanError::WindowOf(sql_name(time.data_type())).into());
        };
        if rows == 0 {
            return Ok(time.slice(0, 0));
        }
        let gap = gap.as_primitive::<Int64Type>().value(0);
        let ticks = cast(time, &DataType::Int64)?;
        let sessions = sessions_of(ticks.as_primitive::<Int64Type>(), gap / tick_ns(*unit));
        let bound = |(first, end): (i64, i64)| match self.bound {
            Bound::Start => first,
            Bound::End => end,
            Bound::Time => end.saturating_sub(last_tick(*unit)),
        };
        let bounds: Int64Array = sessions.into_iter().map(|session| session.map(bound)).collect();
        Ok(cast(&bounds, time.data_type())?)
    }
}

/// By row the first time and the end of its session; nothing without a time.
fn sessions_of(times: &Int64Array, gap: i64) -> Vec<Option<(i64, i64)>> {
    let mut order: Vec<usize> = (0..times.len()).filter(|&row| times.is_valid(row)).collect();
    order.sort_unstable_by_key(|&row| times.value(row));
    let mut sessions = vec![None; times.len()];
    let apart = |a: &usize, b: &usize| times.value(*b).saturating_sub(times.value(*a)) <= gap;
    for session in order.chunk_by(apart) {
        let (first, last) = (times.value(session[0]), times.value(session[session.len() - 1]));
        session.iter().for_each(|&row| sessions[row] = Some((first, last.saturating_add(gap))));
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_any_order_find_their_session() {
        let times = Int64Array::from(vec![Some(30), Some(0), None, Some(10), Some(41), Some(20)]);
        let (first, last) = (Some((0, 40)), Some((41, 51)));
        let expected = [first, first, None, first, last, first];
        assert_eq!(sessions_of(&times, 10), expected);
        assert!(sessions_of(&Int64Array::from(vec![0i64; 0]), 10).is_empty());
    }
}
