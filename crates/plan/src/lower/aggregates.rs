//! Aggregate functions for streaming state.
//!
//! count, sum, min, max and avg have kernels in [`state::aggregates`], used where their type is
//! DataFusion's. Every other function runs through an adapter: its state columns are what workers
//! exchange. `DISTINCT` and `ORDER BY` within a function are the adapter's, too: the state is the
//! set of values, or the values with what they are ordered by.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, new_empty_array};
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DFSchema;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::{AggregateFunction, NullTreatment, Sort};
use datafusion::logical_expr::{EmitTo, Expr, ExprSchemable, GroupsAccumulator, lit, when};
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{GroupsAccumulatorAdapter, PhysicalExpr, PhysicalSortExpr};
use state::{Accumulator, Aggregate, Groups, Part, StateError};

use crate::expr::failure::message_of;
use crate::text::refusal::Refusal;
use crate::text::wording::runtime_message;

/// An aggregate of a query.
#[derive(Debug, Clone)]
pub(crate) struct AggregateCall {
    /// As the user would write it.
    pub(crate) text: String,
    pub(crate) aggregate: Arc<dyn Aggregate>,
    /// Over the table's columns.
    pub(crate) args: Vec<Expr>,
}

/// Whether rows can be grouped by values of a type.
pub(crate) fn is_key(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_decimal()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Float32
                | DataType::Float64
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
        )
}

/// Makes an aggregate of an aggregate expression whose arguments are over `schema`.
///
/// # Errors
/// Why it cannot be computed row by row and merged.
pub(crate) fn lower(call: &Expr, schema: &DFSchema) -> Result<AggregateCall, Refusal> {
    let Expr::AggregateFunction(function) = call else {
        return Err(Refusal::new(&["GROUP"], format!("'{call}' is no aggregate")));
    };
    let name = function.func.name().to_string();
    let params = &function.params;
    let internal = |error: DataFusionError| {
        let message = runtime_message(&message_of(&error));
        Refusal::new(
            &[&name],
            if message.contains(&name) { message } else { format!("{name}: {message}") },
        )
    };
    let output = call.get_type(schema).map_err(internal)?;
    let text = call.human_display().to_string().replace("count(1)", "count(*)");
    // The least of distinct values is the least of all.
    let distinct = params.distinct && !matches!(name.as_str(), "min" | "max");
    if !distinct
        && let Some((aggregate, args)) = native(function, schema).map_err(internal)?
        && aggregate.output_type() == output
    {
        return Ok(AggregateCall { text, aggregate, args });
    }
    let adapter = Adapter::new(function, schema).map_err(internal)?;
    // Some functions check their arguments only when they begin.
    begins(&adapter.function).map_err(|error| {
        let columns = params.args.iter().flat_map(|arg| arg.column_refs());
        let columns = columns.map(|column| column.name.clone()).collect();
        let types = message_of(&error).contains("type");
        let refused = internal(error).always().reading(columns);
        if types { refused.hint("CAST the argument to another type") } else { refused }
    })?;
    // The function itself orders by the keys of WITHIN GROUP; and `string_agg` is an `array_agg`.
    let sorts = function.func.supports_within_group_clause() || name == "string_agg";
    if adapter.function.order_sensitivity().hard_requires() && !sorts {
        return Err(Refusal::new(&[&name], format!("{name}(… ORDER BY …) does not stream")));
    }
    let args = inputs(function).take(adapter.args.len()).chain(params.filter.as_deref());
    Ok(AggregateCall { text, args: args.cloned().collect(), aggregate: Arc::new(adapter) })
}

/// The inputs of a function: its arguments and its ordering.
fn inputs(function: &AggregateFunction) -> impl Iterator<Item = &Expr> {
    let params = &function.params;
    params.args.iter().chain(params.order_by.iter().map(|order| &order.expr))
}

/// An aggregate with its arguments.
type Native = (Arc<dyn Aggregate>, Vec<Expr>);

/// The kernel of a function, if there is one for its type. A filter becomes part of the argument.
fn native(
    function: &AggregateFunction,
    schema: &DFSchema,
) -> Result<Option<Native>, DataFusionError> {
    let params = &function.params;
    let [arg] = &params.args[..] else { return Ok(None) };
    if params.null_treatment == Some(NullTreatment::RespectNulls) {
        return Ok(None);
    }
    let filtered = |value: Expr| match &params.filter {
        Some(filter) => when(filter.as_ref().clone(), value).end(),
        None => Ok(value),
    };
    if function.func.name() == "count" {
        let constant = matches!(arg, Expr::Literal(value, _) if !value.is_null());
        let any = constant || !arg.nullable(schema)?;
        return Ok(Some(match (any, &params.filter) {
            (true, None) => (state::aggregates::count(), vec![]),
            (true, Some(_)) => {
                (state::aggregates::count_of(&DataType::Boolean), vec![filtered(lit(true))?])
            }
            (false, _) => {
                let of = arg.get_type(schema)?;
                (state::aggregates::count_of(&of), vec![filtered(arg.clone())?])
            }
        }));
    }
    let arg = before_widening(function.func.name(), arg, schema)?;
    let of = arg.get_type(schema)?;
    let aggregate = match function.func.name() {
        "sum" => state::aggregates::sum(&of),
        "min" => state::aggregates::min(&of),
        "max" => state::aggregates::max(&of),
        "avg" => state::aggregates::avg(&of),
        _ => None,
    };
    aggregate.map(|aggregate| Ok((aggregate, vec![filtered(arg.clone())?]))).transpose()
}

/// The kernels of sum and avg widen integers and floats as they go: DataFusion's cast is not
/// needed.
fn before_widening<'a>(
    name: &str,
    arg: &'a Expr,
    schema: &DFSchema,
) -> Result<&'a Expr, DataFusionError> {
    let Expr::Cast(cast) = arg else { return Ok(arg) };
    let (from, to) = (cast.expr.get_type(schema)?, cast.field.data_type());
    let is_exact_cast = match (name, to) {
        ("avg", DataType::Float64) => from.is_integer() || from == DataType::Float32,
        ("sum", DataType::Int64) => from.is_signed_integer(),
        ("sum", DataType::UInt64) => from.is_unsigned_integer(),
        ("sum", DataType::Float64) => from == DataType::Float32,
        _ => false,
    };
    Ok(if is_exact_cast { cast.expr.as_ref() } else { arg })
}

/// A function of DataFusion as an [`Aggregate`].
struct Adapter {
    function: AggregateFunctionExpr,
    args: Vec<DataType>,
    filtered: bool,
    state: Vec<DataType>,
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.function.name())
    }
}

impl Adapter {
    fn new(function: &AggregateFunction, schema: &DFSchema) -> Result<Self, DataFusionError> {
        let params = &function.params;
        let mut fields = vec![];
        let mut exprs: Vec<Arc<dyn PhysicalExpr>> = vec![];
        for (at, input) in inputs(function).enumerate() {
            let name = format!("arg_{at}");
            fields.push(Field::new(&name, input.get_type(schema)?, input.nullable(schema)?));
            // Of what orders, DISTINCT asks whether it is an argument.
            let argument = params.args.iter().position(|arg| arg == input).filter(|&arg| arg < at);
            exprs.push(match (input, argument) {
                (_, Some(argument)) if at >= params.args.len() => exprs[argument].clone(),
                (Expr::Literal(value, _), _) if at < params.args.len() => {
                    Arc::new(Literal::new(value.clone()))
                }
                _ => Arc::new(Column::new(&name, at)),
            });
        }
        let mut args: Vec<DataType> = fields.iter().map(|f| f.data_type().clone()).collect();
        let order = exprs.split_off(params.args.len()).into_iter().zip(&params.order_by);
        let order = order.map(|(expr, Sort { asc, nulls_first, .. })| {
            let options = SortOptions { descending: !asc, nulls_first: *nulls_first };
            PhysicalSortExpr::new(expr, options)
        });
        let built = AggregateExprBuilder::new(function.func.clone(), exprs)
            .schema(Arc::new(Schema::new(fields)))
            .alias(function.func.name())
            .with_ignore_nulls(params.null_treatment == Some(NullTreatment::IgnoreNulls))
            .with_distinct(params.distinct)
            .order_by(order.collect())
            .build()?;
        // A function that any order is good for is not given what orders.
        args.truncate(params.args.len() + built.order_bys().len());
        let state = built.state_fields()?.iter().map(|field| field.data_type().clone()).collect();
        Ok(Self { function: built, args, filtered: params.filter.is_some(), state })
    }
}

/// Whether a function can be asked at all.
fn begins(function: &AggregateFunctionExpr) -> Result<(), DataFusionError> {
    if function.groups_accumulator_supported() {
        function.create_groups_accumulator().map(drop)
    } else {
        function.create_accumulator().map(drop)
    }
}

/// A function over no rows. One that knows a group at a time is asked for each; and so is one whose
/// state for groups is not what it says, as that of `bit_xor(DISTINCT …)`, which forgets which
/// values there were.
fn fresh(function: &AggregateFunctionExpr) -> Result<Box<dyn GroupsAccumulator>, DataFusionError> {
    if function.groups_accumulator_supported() {
        let mut groups = function.create_groups_accumulator()?;
        if !function.is_distinct() || has_state_of(groups.as_mut(), function)? {
            return Ok(groups);
        }
    }
    let function = function.clone();
    Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
}

/// Whether the state of groups, of which there are none, is of the types that the function tells.
fn has_state_of(
    groups: &mut dyn GroupsAccumulator,
    function: &AggregateFunctionExpr,
) -> Result<bool, DataFusionError> {
    let (state, fields) = (groups.state(EmitTo::All)?, function.state_fields()?);
    let mut pairs = state.iter().zip(&fields);
    Ok(state.len() == fields.len()
        && pairs
            .all(|(column, field)| column.data_type().is_nested() == field.data_type().is_nested()))
}

impl Aggregate for Adapter {
    fn state_types(&self) -> Vec<DataType> {
        self.state.clone()
    }

    fn output_type(&self) -> DataType {
        self.function.field().data_type().clone()
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Adapted {
            inner: fresh(&self.function),
            args: self.args.clone(),
            state: self.state.clone(),
            filtered: self.filtered,
            function: self.function.clone(),
            ids: vec![],
            groups: 0,
            read: None,
        })
    }
}

/// A `GroupsAccumulator` as an [`Accumulator`].
struct Adapted {
    function: AggregateFunctionExpr,
    inner: Result<Box<dyn GroupsAccumulator>, DataFusionError>,
    args: Vec<DataType>,
    state: Vec<DataType>,
    filtered: bool,
    /// Kept for its memory.
    ids: Vec<usize>,
    /// Groups that `inner` knows.
    groups: usize,
    read: Option<Read>,
}

/// The state read of all groups at once: a `GroupsAccumulator` gives groups away from the front
/// only, and each time moves the rest.
enum Read {
    /// The states, which are not in the accumulator any more.
    States(Vec<ArrayRef>),
    /// The results, of which no state is left.
    Values(ArrayRef),
}

fn slice_of(column: &ArrayRef, part: &Part) -> ArrayRef {
    column.slice(part.ids().start, part.ids().len())
}

impl Adapted {
    fn inner(&mut self) -> Result<&mut Box<dyn GroupsAccumulator>, StateError> {
        self.inner
            .as_mut()
            .map_err(|error| StateError::Aggregate(runtime_message(&message_of(error)).into()))
    }

    fn take_ids(&mut self, groups: &Groups) -> Vec<usize> {
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        ids.extend(groups.iter().map(|id| id as usize));
        ids
    }

    /// Gives `inner` back the states that were read of it.
    fn restore(&mut self) -> Result<(), StateError> {
        if let Some(Read::States(states)) = self.read.take() {
            let groups = states.first().map_or(0, |state| state.len());
            let ids: Vec<usize> = (0..groups).collect();
            self.inner()?.merge_batch(&states, &ids, groups).map_err(failed)?;
            self.groups = groups;
        }
        Ok(())
    }

    /// Lets `inner` know all groups, also those that no row of this aggregate has met. DataFusion
    /// takes it that a batch without a filter and without nulls has a value for each new group; a
    /// filter of no rows says that there was none.
    fn grow(&mut self, total: usize) -> Result<(), StateError> {
        if self.groups < total {
            let none: Vec<ArrayRef> = self.args.iter().map(new_empty_array).collect();
            let nobody = BooleanArray::from(Vec::<bool>::new());
            self.inner()?.update_batch(&none, &[], Some(&nobody), total).map_err(failed)?;
            self.groups = total;
        }
        Ok(())
    }
}

fn failed(error: DataFusionError) -> StateError {
    StateError::Aggregate(runtime_message(&message_of(&error)).into())
}

impl Accumulator for Adapted {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let values = args.get(..self.args.len()).ok_or(StateError::Shape {
            what: "arguments",
            expected: self.args.len(),
            got: args.len(),
        })?;
        let filter = match (self.filtered, args.get(self.args.len())) {
            (true, Some(column)) => column.as_boolean_opt(),
            _ => None,
        };
        self.restore()?;
        if groups.rows() == 0 {
            return self.grow(total);
        }
        let ids = self.take_ids(groups);
        let done = self.inner()?.update_batch(values, &ids, filter, total).map_err(failed);
        self.ids = ids;
        self.groups = self.groups.max(total);
        done
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        if states.len() != self.state.len() {
            let (expected, got) = (self.state.len(), states.len());
            return Err(StateError::Shape { what: "state columns", expected, got });
        }
        self.restore()?;
        if groups.rows() == 0 {
            return self.grow(total);
        }
        let ids = self.take_ids(groups);
        let done = self.inner()?.merge_batch(states, &ids, total).map_err(failed);
        self.ids = ids;
        self.groups = self.groups.max(total);
        done
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        if !matches!(self.read, Some(Read::States(_))) {
            self.grow(part.total())?;
            self.groups = 0;
            let states = match part.total() {
                0 => self.state.iter().map(new_empty_array).collect(),
                _ => self.inner()?.state(EmitTo::All).map_err(failed)?,
            };
            // The fields within lists are named as the types say that travel.
            let typed = states.iter().zip(&self.state).map(|(state, of)| cast(state, of));
            let typed = typed.collect::<Result<_, _>>().map_err(|error| failed(error.into()))?;
            self.read = Some(Read::States(typed));
        }
        let Some(Read::States(states)) = &self.read else { return Ok(vec![]) };
        Ok(states.iter().map(|state| slice_of(state, part)).collect())
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        if let Some(Read::Values(values)) = &self.read {
            return Ok(slice_of(values, part));
        }
        self.restore()?;
        self.grow(part.total())?;
        self.groups = 0;
        let values = match part.total() {
            0 => new_empty_array(self.function.field().data_type()),
            _ => self.inner()?.evaluate(EmitTo::All).map_err(failed)?,
        };
        let read = slice_of(&values, part);
        self.read = Some(Read::Values(values));
        Ok(read)
    }

    fn clear(&mut self, _total: usize) {
        // `inner` has given away the state that was read; otherwise it starts anew.
        if self.read.take().is_none() {
            self.inner = fresh(&self.function);
        }
        self.groups = 0;
    }

    fn bytes(&self) -> usize {
        let read = match &self.read {
            Some(Read::States(states)) => states.iter().map(|s| s.get_array_memory_size()).sum(),
            Some(Read::Values(values)) => values.get_array_memory_size(),
            None => 0,
        };
        self.inner.as_ref().map_or(0, |inner| inner.size()) + self.ids.capacity() * 8 + read
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
