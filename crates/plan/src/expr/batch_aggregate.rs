//! Aggregates that the program gives: over whole batches and all groups at once, and without
//! DataFusion's types.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array, new_empty_array};
use arrow::compute::{filter, prep_null_mask_filter};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};

use crate::expr::batch::fits;
use crate::expr::given::FunctionUsage;
use crate::text::types::sql_name;

/// An aggregate of SQL that the program gives.
///
/// Workers aggregate at the same time, each with [groups](BatchGroups) of its own. Their states are
/// what travels between workers, and what checkpoints keep.
pub trait BatchAggregate: Send + Sync {
    /// Its name in SQL, in small letters.
    fn name(&self) -> &str;

    /// The types of its arguments, at least one; SQL converts what it is given to them.
    fn arguments(&self) -> &[DataType];

    /// The types of the columns of its state, at least one.
    fn state(&self) -> &[DataType];

    /// The type of its result.
    fn returns(&self) -> &DataType;

    /// A number that changes with what it does; 0 where nobody knows. A job goes on from a
    /// checkpoint with the same aggregate.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// How it was called in this process.
    fn usage(&self) -> FunctionUsage {
        FunctionUsage::default()
    }

    /// No groups yet.
    ///
    /// # Errors
    /// A text for the author of the query.
    fn groups(&self) -> std::result::Result<Box<dyn BatchGroups>, String>;
}

/// The groups of a worker. They have the numbers 0, 1, 2…, and begin empty.
pub trait BatchGroups: Send + Sync {
    /// Adds rows, of which `groups` tells the group of each; `total` groups are there then.
    ///
    /// # Errors
    /// A text for the author of the query; it ends the job.
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &ArrayRef,
        total: usize,
    ) -> std::result::Result<(), String>;

    /// Adds states that other groups have given; the rest is as for [`update`](Self::update).
    ///
    /// # Errors
    /// A text for the author of the query; it ends the job.
    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &ArrayRef,
        total: usize,
    ) -> std::result::Result<(), String>;

    /// The states of all groups, a value of each for each group. No group is left.
    ///
    /// # Errors
    /// A text for the author of the query; it ends the job.
    fn take_states(&mut self) -> std::result::Result<Vec<ArrayRef>, String>;

    /// The results of all groups. No group is left.
    ///
    /// # Errors
    /// A text for the author of the query; it ends the job.
    fn take_values(&mut self) -> std::result::Result<ArrayRef, String>;

    /// Bytes of its memory, about.
    fn bytes(&self) -> usize;
}

/// The aggregate for DataFusion.
pub(crate) fn called(aggregate: Arc<dyn BatchAggregate>) -> AggregateUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    AggregateUDF::from(CalledAggregate { aggregate, signature })
}

/// The aggregate of the program that a function of DataFusion is, if it is one.
pub(crate) fn given(function: &AggregateUDF) -> Option<Arc<dyn BatchAggregate>> {
    function.inner().downcast_ref::<CalledAggregate>().map(|of| Arc::clone(&of.aggregate))
}

struct CalledAggregate {
    aggregate: Arc<dyn BatchAggregate>,
    signature: Signature,
}

impl fmt::Debug for CalledAggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(…)", self.aggregate.name())
    }
}

/// Two aggregates are the same when they are one object.
impl PartialEq for CalledAggregate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.aggregate, &other.aggregate)
    }
}

impl Eq for CalledAggregate {}

impl Hash for CalledAggregate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.aggregate).hash(state);
    }
}

fn failed<T>(aggregate: &dyn BatchAggregate, message: &str) -> Result<T> {
    exec_err!("aggregate '{}': {message}", aggregate.name())
}

impl AggregateUDFImpl for CalledAggregate {
    fn name(&self) -> &str {
        self.aggregate.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let wanted = self.aggregate.arguments();
        let fit = given.len() == wanted.len() && given.iter().zip(wanted).all(|(a, b)| fits(a, b));
        if !fit {
            let types: Vec<_> = wanted.iter().map(sql_name).collect();
            return plan_err!("write {}({})", self.aggregate.name(), types.join(", "));
        }
        Ok(wanted.to_vec())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.aggregate.returns().clone())
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        if args.is_distinct {
            return plan_err!("{}(DISTINCT …) is not known", self.aggregate.name());
        }
        let fields = self.aggregate.state().iter().enumerate();
        let field = |(at, of): (usize, &DataType)| {
            Arc::new(Field::new(format!("{}[{at}]", args.name), of.clone(), true))
        };
        Ok(fields.map(field).collect())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return plan_err!("{}(DISTINCT …) is not known", self.aggregate.name());
        }
        Ok(Box::new(OneGroup(CheckedGroups::of(&self.aggregate)?)))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if args.is_distinct {
            return plan_err!("{}(DISTINCT …) is not known", self.aggregate.name());
        }
        Ok(Box::new(CheckedGroups::of(&self.aggregate)?))
    }
}

/// Groups whose results are checked.
struct CheckedGroups {
    aggregate: Arc<dyn BatchAggregate>,
    inner: Box<dyn BatchGroups>,
    /// Groups that there are.
    total: usize,
}

impl CheckedGroups {
    fn of(aggregate: &Arc<dyn BatchAggregate>) -> Result<Self> {
        let inner = aggregate.groups();
        let inner = inner.or_else(|message| failed(&**aggregate, &message))?;
        Ok(Self { aggregate: Arc::clone(aggregate), inner, total: 0 })
    }

    /// No groups of the same aggregate.
    fn empty(&self) -> Result<Self> {
        Self::of(&self.aggregate)
    }

    fn update(&mut self, args: &[ArrayRef], groups: ArrayRef, total: usize) -> Result<()> {
        let done = self.inner.update(args, &groups, total);
        self.total = self.total.max(total);
        done.or_else(|message| failed(&*self.aggregate, &message))
    }

    fn merge(&mut self, states: &[ArrayRef], groups: ArrayRef, total: usize) -> Result<()> {
        let done = self.inner.merge(states, &groups, total);
        self.total = self.total.max(total);
        done.or_else(|message| failed(&*self.aggregate, &message))
    }

    fn check(&self, made: &ArrayRef, wanted: &DataType, total: usize) -> Result<()> {
        let (of, rows) = (made.data_type(), made.len());
        if rows != total {
            return failed(&*self.aggregate, &format!("gave {rows} values for {total} groups"));
        }
        if of != wanted {
            return failed(&*self.aggregate, &format!("gave {of}, and not {wanted}"));
        }
        Ok(())
    }

    fn take_states(&mut self) -> Result<Vec<ArrayRef>> {
        let total = std::mem::take(&mut self.total);
        let made = self.inner.take_states();
        let made = made.or_else(|message| failed(&*self.aggregate, &message))?;
        let wanted = self.aggregate.state();
        if made.len() != wanted.len() {
            let (made, wanted) = (made.len(), wanted.len());
            let message = format!("gave {made} columns of state, and not {wanted}");
            return failed(&*self.aggregate, &message);
        }
        made.iter().zip(wanted).try_for_each(|(made, of)| self.check(made, of, total))?;
        Ok(made)
    }

    fn take_values(&mut self) -> Result<ArrayRef> {
        let total = std::mem::take(&mut self.total);
        let made = self.inner.take_values();
        let made = made.or_else(|message| failed(&*self.aggregate, &message))?;
        self.check(&made, self.aggregate.returns(), total)?;
        Ok(made)
    }

    /// Takes the states of the first groups; the others move to the front.
    fn take_first(&mut self, first: usize) -> Result<Vec<ArrayRef>> {
        let (total, states) = (self.total, self.take_states()?);
        let first = first.min(total);
        let rest: Vec<ArrayRef> =
            states.iter().map(|state| state.slice(first, total - first)).collect();
        self.merge(&rest, numbered(total - first), total - first)?;
        Ok(states.iter().map(|state| state.slice(0, first)).collect())
    }
}

/// The numbers of so many groups.
fn numbered(total: usize) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(0..total as u32))
}

/// The numbers of groups as an array.
fn array_of(groups: &[usize]) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(groups.iter().map(|group| *group as u32)))
}

impl GroupsAccumulator for CheckedGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        kept: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let groups = array_of(groups);
        let Some(kept) = kept else { return self.update(values, groups, total) };
        let kept = if kept.null_count() > 0 { &prep_null_mask_filter(kept) } else { kept };
        let values = values.iter().map(|value| filter(value, kept)).collect::<Result<Vec<_>, _>>();
        self.update(&values?, filter(&groups, kept)?, total)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.merge(states, array_of(groups), total)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        kept: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |value| value.len());
        let mut each = self.empty()?;
        let groups: Vec<usize> = (0..rows).collect();
        each.update_batch(values, &groups, kept, rows)?;
        each.take_states()
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        match emit {
            EmitTo::All => self.take_states(),
            EmitTo::First(first) => self.take_first(first),
        }
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let EmitTo::First(first) = emit else { return self.take_values() };
        let states = self.take_first(first)?;
        let mut taken = self.empty()?;
        let total = states.first().map_or(0, |state| state.len());
        taken.merge(&states, numbered(total), total)?;
        taken.take_values()
    }

    fn size(&self) -> usize {
        self.inner.bytes()
    }
}

/// A group alone.
struct OneGroup(CheckedGroups);

impl fmt::Debug for OneGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(…)", self.0.aggregate.name())
    }
}

impl OneGroup {
    fn grow(&mut self) -> Result<()> {
        if self.0.total == 0 {
            let none = self.0.aggregate.arguments().iter().map(new_empty_array);
            let none: Vec<ArrayRef> = none.collect();
            self.0.update(&none, array_of(&[]), 1)?;
        }
        Ok(())
    }
}

impl Accumulator for OneGroup {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |value| value.len());
        self.0.update(values, array_of(&vec![0; rows]), 1)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states.first().map_or(0, |state| state.len());
        self.0.merge(states, array_of(&vec![0; rows]), 1)
    }

    /// The state stays, since a window that slides asks it again.
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.grow()?;
        let states = self.0.take_states()?;
        self.0.merge(&states, numbered(1), 1)?;
        states.iter().map(|state| ScalarValue::try_from_array(state, 0)).collect()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.grow()?;
        let states = self.0.take_states()?;
        self.0.merge(&states, numbered(1), 1)?;
        let value = self.0.take_values()?;
        self.0.merge(&states, numbered(1), 1)?;
        ScalarValue::try_from_array(&value, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.0.inner.bytes()
    }
}
