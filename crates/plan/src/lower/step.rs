//! Stateless work on a batch, compiled once: filter, then project, in one pass.
//!
//! ```text
//! batch ─▶ predicate ─▶ keep the rows of the columns that outputs read ─▶ shared parts ─▶ outputs
//! ```
//!
//! A column that is only passed on is not copied; a batch of which every row passes is not
//! filtered; an expression that occurs in several outputs is computed once. Parts that are computed
//! only under a condition (`CASE`, `AND`) are not shared, since they may fail where the condition
//! protects them.
//!
//! Two forms that are slow in general have code of their own: predicates over a column of words
//! ([`words`]) and division by a constant ([`quotient`]).

mod blame;
mod compiled;
mod conjuncts;
pub(crate) mod located;
mod quotient;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayData, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::compute::FilterBuilder;
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use dataflow::error::DataflowError;
use dataflow::job::{
    FILTER, FusedColumns, NotFused, Origin, PROJECT, Property, RawBatch, Step, Stepped,
};
use dataflow::located::Blame;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{ColumnarValue, Expr, ExprSchemable, Operator};
use state::recycled::RecycledWords;
use state::{KeyOf, RawRows, recycled, vector};

use crate::explain::{plain, shown_expr};
use crate::expr::conform::same_type;
use crate::text::wording::runtime_message;

use compiled::Compiled;
use conjuncts::Conjuncts;
use quotient::Quotient;
use words::WordPredicate;

/// Compiles a filter and projections over the columns of `input` into a step that gives columns of
/// `schema`, whose types must be those of `outputs`. `None` if the step would change nothing.
/// `names` has what the columns of `input` are for a reader, where their names are ours.
pub(crate) fn compile(
    input: &SchemaRef,
    filter: Option<&Expr>,
    outputs: &[Expr],
    schema: SchemaRef,
    names: &[(String, String)],
) -> DfResult<Option<Arc<dyn Step>>> {
    let mut fused = Fused { names: names.to_vec(), ..Fused::new(input, filter, outputs, schema)? };
    for (_, text) in &mut fused.text {
        *text = plain(text, names);
    }
    let nothing = filter.is_none() && fused.passes_on_all(input);
    Ok((!nothing).then(|| Arc::new(fused) as Arc<dyn Step>))
}

/// The column that an expression merely names, among those of `schema`.
pub(crate) fn column_index(expr: &Expr, schema: &Schema) -> Option<usize> {
    match expr {
        Expr::Column(column) => schema.index_of(&column.name).ok(),
        _ => None,
    }
}

/// Where each column of a schema is; of those of one name, the first.
pub(crate) fn by_name(schema: &Schema) -> HashMap<&str, usize> {
    let fields = schema.fields().iter().enumerate().rev();
    fields.map(|(at, field)| (field.name().as_str(), at)).collect()
}

/// A compiled filter and projection.
struct Fused {
    predicate: Option<Conjuncts>,
    /// The same, where it is of this form.
    words: Option<WordPredicate>,
    /// The columns of the input that are read after the filter.
    read: Vec<usize>,
    /// How many outputs read each of them.
    readers: Vec<usize>,
    /// Schemas of the columns read, then with one more shared part each.
    working: Vec<SchemaRef>,
    /// Parts of several outputs, in the order in which they are computed.
    shared: Vec<Computed>,
    outputs: Vec<Output>,
    schema: SchemaRef,
    text: Vec<Property>,
    /// The filter and the outputs as they were given, for messages.
    given: Vec<Expr>,
    names: Vec<(String, String)>,
}

enum Output {
    /// A column read, or a shared part.
    Column(usize),
    Computed(Computed),
    Quotient(Quotient),
}

/// An expression, with the column of one value that it gave last. The bounds of a window are the
/// same for many batches: a column of them is made once, so that batches that are kept share it.
struct Computed {
    expr: Compiled,
    constant: Mutex<Option<(ScalarValue, ArrayRef)>>,
}

impl Computed {
    fn new(expr: Compiled) -> Self {
        Self { expr, constant: Mutex::new(None) }
    }

    fn of(&self, batch: &RecordBatch) -> Result<ArrayRef, DataflowError> {
        let column = match self.expr.evaluate(batch)? {
            ColumnarValue::Array(column) => return Ok(column),
            ColumnarValue::Scalar(value) => self.column(value, batch.num_rows()),
        };
        column.map_err(failed)
    }

    /// A column of one value. It is no slice of a far longer one: who keeps it would hold that.
    fn column(&self, value: ScalarValue, rows: usize) -> DfResult<ArrayRef> {
        let mut last = self.constant.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, column)) = &*last
            && (rows..=rows.saturating_mul(2)).contains(&column.len())
            && *of == value
        {
            return Ok(column.slice(0, rows));
        }
        let column = value.to_array_of_size(rows)?;
        *last = Some((value, column.clone()));
        Ok(column)
    }
}

impl Fused {
    fn new(
        input: &SchemaRef,
        filter: Option<&Expr>,
        outputs: &[Expr],
        schema: SchemaRef,
    ) -> DfResult<Self> {
        // Of each column of the input that outputs read, how many do.
        let mut counted: BTreeMap<usize, usize> = BTreeMap::new();
        let places = by_name(input);
        for output in outputs {
            let columns = output.column_refs().into_iter();
            let read = columns.filter_map(|column| places.get(column.name.as_str()));
            read.for_each(|at| *counted.entry(*at).or_default() += 1);
        }
        let (read, readers): (Vec<usize>, Vec<usize>) = counted.into_iter().unzip();
        let mut working = vec![Arc::new(input.project(&read)?)];
        let mut shared = vec![];
        let (parts, rewritten) = share(outputs)?;
        for (name, part) in parts {
            let last = &working[shared.len()];
            let scope = DFSchema::try_from(last.as_ref().clone())?;
            let field = Field::new(name, part.get_type(&scope)?, part.nullable(&scope)?);
            shared.push(Computed::new(Compiled::expression(&part, &scope)?));
            let fields: Vec<_> = last.fields().iter().cloned().chain([Arc::new(field)]).collect();
            working.push(Arc::new(Schema::new(fields)));
        }
        let full = working[shared.len()].clone();
        let scope = DFSchema::try_from(full.as_ref().clone())?;
        let places = by_name(&full);
        let place = |expr: &Expr| match expr {
            Expr::Column(column) => places.get(column.name.as_str()).copied(),
            _ => None,
        };
        let output = |(expr, field): (&Expr, &FieldRef)| {
            let (output, of) = match place(expr) {
                Some(at) => (Output::Column(at), full.field(at).data_type().clone()),
                None => {
                    let computed = Compiled::expression(expr, &scope)?;
                    let of = computed.data_type(&full)?;
                    match Quotient::of(expr, &full) {
                        Some(quotient) => (Output::Quotient(quotient), of),
                        None => (Output::Computed(Computed::new(computed)), of),
                    }
                }
            };
            same_type(field, &of).map(|()| output)
        };
        let outputs_compiled =
            rewritten.iter().zip(schema.fields()).map(output).collect::<DfResult<Vec<_>>>()?;
        Ok(Self {
            predicate: filter.map(|filter| Conjuncts::new(input, filter)).transpose()?,
            words: match filter {
                Some(filter) => WordPredicate::new(input, filter)?,
                None => None,
            },
            read,
            readers,
            working,
            shared,
            outputs: outputs_compiled,
            schema,
            text: describe(filter, outputs),
            given: filter.into_iter().chain(outputs).cloned().collect(),
            names: vec![],
        })
    }

    /// Whether the outputs are all columns of the input, in order and under the same names.
    fn passes_on_all(&self, input: &SchemaRef) -> bool {
        let column =
            |at: usize| matches!(self.outputs[at], Output::Column(c) if self.read[c] == at);
        self.shared.is_empty()
            && self.schema.fields() == input.fields()
            && (0..self.outputs.len()).all(column)
    }

    /// An output as it was given.
    fn output(&self, output: usize) -> Option<&Expr> {
        self.given.get(self.given.len() - self.outputs.len() + output)
    }

    /// Where a column is among those of the input.
    fn column(&self, column: &Column) -> Option<usize> {
        let at = self.working.first()?.index_of(&column.name).ok()?;
        self.read.get(at).copied()
    }

    /// The rows that pass; `None` if all do.
    fn mask(&self, batch: &RecordBatch) -> Result<Option<BooleanArray>, DataflowError> {
        let Some(predicate) = &self.predicate else { return Ok(None) };
        if let Some(mask) = self.words.as_ref().and_then(|words| words.mask(batch)) {
            return Ok((mask.true_count() < mask.len()).then_some(mask));
        }
        let mask = predicate.mask(batch)?;
        Ok((mask.true_count() < mask.len()).then_some(mask))
    }

    /// The same as bits.
    fn bits(&self, batch: &RecordBatch) -> Result<Option<RecycledWords>, DataflowError> {
        let mut bits = RecycledWords::default();
        if !self.words.as_ref().is_some_and(|words| words.bits(batch, &mut bits)) {
            let Some(mask) = self.mask(batch)? else { return Ok(None) };
            bits.extend(mask.values().bit_chunks().iter_padded());
            bits.truncate(batch.num_rows().div_ceil(64));
            return Ok(Some(bits));
        }
        let passing = bits.iter().map(|bits| bits.count_ones() as usize).sum::<usize>();
        Ok((passing < batch.num_rows()).then_some(bits))
    }

    /// The columns that outputs read, of the rows that pass. One that only the output `unread`
    /// reads is not filtered: it has the length and nothing else.
    fn keep(
        &self,
        batch: &RecordBatch,
        kept: Option<&BooleanArray>,
        unread: Option<usize>,
    ) -> Result<(Vec<ArrayRef>, usize), DataflowError> {
        let read = self.read.iter().map(|&at| batch.column(at));
        let Some(mask) = kept else { return Ok((read.cloned().collect(), batch.num_rows())) };
        let unread = match unread.and_then(|output| self.outputs.get(output)) {
            Some(&Output::Column(at)) if self.readers.get(at) == Some(&1) => Some(at),
            _ => None,
        };
        let rows = mask.true_count();
        let others = read.clone().enumerate();
        let others = others.filter(|(at, column)| unread != Some(*at) && !is_plain(column)).count();
        let filter = match others {
            0 | 1 => FilterBuilder::new(mask).build(),
            _ => FilterBuilder::new(mask).optimize().build(),
        };
        let columns = read.enumerate().map(|(at, column)| match unread {
            Some(unread) if unread == at => Ok(column.slice(0, rows)),
            _ if is_plain(column) => passing(column, mask),
            _ => filter.filter(column),
        });
        Ok((columns.collect::<Result<_, _>>()?, rows))
    }
}

impl Step for Fused {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(
        &self,
        batch: &RecordBatch,
        unread: Option<usize>,
    ) -> Result<Stepped, DataflowError> {
        let kept = self.mask(batch)?;
        let (mut columns, rows) = self.keep(batch, kept.as_ref(), unread)?;
        if rows == 0 {
            let batch = RecordBatch::new_empty(self.schema.clone());
            return Ok(Stepped { batch, origin: origin(kept) });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let scope = |columns: &[ArrayRef], schema: &SchemaRef| {
            RecordBatch::try_new_with_options(schema.clone(), columns.to_vec(), &options)
        };
        for (part, schema) in self.shared.iter().zip(&self.working) {
            let computed = part.of(&scope(&columns, schema)?)?;
            columns.push(computed);
        }
        let computes = self.outputs.iter().any(|output| matches!(output, Output::Computed(_)));
        let working = match self.working.last() {
            Some(schema) if computes => Some(scope(&columns, schema)?),
            _ => None,
        };
        let outputs = self.outputs.iter().map(|output| match (output, &working) {
            (Output::Column(at), _) => Ok(columns[*at].clone()),
            (Output::Quotient(quotient), _) => quotient.evaluate(&columns).ok_or_else(|| {
                DataflowError::Expression("a column is not of its declared type".into())
            }),
            (Output::Computed(computed), Some(working)) => computed.of(working),
            (Output::Computed(computed), None) => {
                Err(DataflowError::Expression(computed.expr.to_string()))
            }
        });
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), outputs, &options)?;
        Ok(Stepped { batch, origin: origin(kept) })
    }

    fn fused(&self, key: usize, arg: Option<usize>) -> Result<FusedColumns, NotFused> {
        let column = |at: usize| self.read.get(at).copied();
        let (key, divided) = match self.outputs.get(key) {
            Some(Output::Column(at)) => (column(*at), false),
            Some(Output::Quotient(Quotient { column: at, scale: Some(_), .. })) => {
                (column(*at), true)
            }
            _ => return Err(NotFused::KeyExpression),
        };
        // The loop has no columns that several outputs share.
        let key = key.ok_or(NotFused::KeyExpression)?;
        match arg.map(|arg| self.outputs.get(arg)) {
            None => {}
            Some(Some(&Output::Column(at))) if column(at).is_some() => {}
            Some(_) => return Err(NotFused::ArgExpression),
        }
        Ok(FusedColumns { key, divided, filtered: self.predicate.is_some() })
    }

    fn raw(
        &self,
        batch: &RecordBatch,
        key: usize,
        arg: Option<usize>,
    ) -> Result<Option<RawBatch>, DataflowError> {
        let column = |at: usize| self.read.get(at).map(|&at| batch.column(at).clone());
        let (key, by) = match self.outputs.get(key) {
            Some(Output::Column(at)) => (column(*at), KeyOf::Word),
            Some(Output::Quotient(Quotient { column: at, scale: Some(scale), .. })) => {
                (column(*at), KeyOf::Scaled(*scale))
            }
            _ => return Ok(None),
        };
        // Without a kernel that takes it, the filter would be computed for nothing.
        let Some(key) = key.filter(|key| RawRows::of_column(key).is_some()) else {
            return Ok(None);
        };
        let arg = match arg.map(|arg| self.outputs.get(arg)) {
            None => None,
            Some(Some(Output::Column(at))) => column(*at),
            Some(_) => return Ok(None),
        };
        Ok(Some(RawBatch { passes: self.bits(batch)?, key, by, arg }))
    }

    fn keeps_rows(&self) -> bool {
        self.predicate.is_none()
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        match self.outputs.get(output)? {
            Output::Column(at) => self.read.get(*at).copied(),
            _ => None,
        }
    }

    fn first_of(&self, output: usize) -> Option<Vec<usize>> {
        let mut columns = vec![];
        first_of(self.output(output)?, &mut columns)?;
        columns.into_iter().map(|column| self.column(column)).collect()
    }

    fn cast_of(&self, output: usize) -> Option<usize> {
        let mut of = self.output(output)?;
        while let Expr::Cast(cast) = of {
            of = &cast.expr;
        }
        match of {
            Expr::Column(column) => {
                // Floats that are equal may have different texts.
                let read = self.working.first()?.field_with_name(&column.name).ok()?;
                self.column(column).filter(|_| !state::has_floats(read.data_type()))
            }
            _ => None,
        }
    }

    fn blame(&self, row: &RecordBatch) -> Option<Blame> {
        blame::of(&self.given, row, &self.names)
    }

    fn describe(&self) -> Vec<Property> {
        self.text.clone()
    }
}

fn origin(kept: Option<BooleanArray>) -> Origin {
    kept.map_or(Origin::All, Origin::Mask)
}

/// Appends the columns of which an expression is the first that is not NULL, if it is that.
pub(crate) fn first_of<'e>(expr: &'e Expr, columns: &mut Vec<&'e Column>) -> Option<()> {
    match expr {
        Expr::Column(column) => columns.push(column),
        Expr::ScalarFunction(call) if call.func.name() == "coalesce" => {
            call.args.iter().try_for_each(|arg| first_of(arg, columns))?;
        }
        // The optimizer makes this of it.
        Expr::Case(case) if case.expr.is_none() => {
            for (when, then) in &case.when_then_expr {
                match &**when {
                    Expr::IsNotNull(of) if of == then => first_of(then, columns)?,
                    _ => return None,
                }
            }
            first_of(case.else_expr.as_ref()?, columns)?;
        }
        _ => return None,
    }
    Some(())
}

fn failed(e: DataFusionError) -> DataflowError {
    DataflowError::Expression(runtime_message(&crate::expr::failure::message_of(&e)))
}

/// Parts by name, and expressions that use them.
type Shared = (Vec<(String, Expr)>, Vec<Expr>);

/// Takes parts that occur more than once out of `exprs`. Each part may use those before it, by
/// name.
fn share(exprs: &[Expr]) -> DfResult<Shared> {
    let mut seen: HashMap<&Expr, usize> = HashMap::new();
    for expr in exprs {
        count(expr, &mut seen);
    }
    let mut parts: Vec<(usize, &Expr)> = seen
        .into_iter()
        .filter(|(part, times)| *times > 1 && !part.is_volatile())
        .map(|(part, _)| (size(part), part))
        .collect();
    // A part is larger than the parts of it; the text makes the order the same on every node.
    parts.sort_by_cached_key(|(size, part)| (*size, part.to_string()));
    let mut names: HashMap<Expr, String> = HashMap::new();
    let mut named = vec![];
    for (at, (_, part)) in parts.into_iter().enumerate() {
        let name = format!("__shared_{at}");
        named.push((name.clone(), replace(part.clone(), &names)?));
        names.insert(part.clone(), name);
    }
    let rewritten =
        exprs.iter().map(|expr| replace(expr.clone(), &names)).collect::<DfResult<Vec<_>>>()?;
    Ok((named, rewritten))
}

fn replace(expr: Expr, names: &HashMap<Expr, String>) -> DfResult<Expr> {
    let replaced = expr.transform_down(|node| {
        Ok(match names.get(&node) {
            Some(name) => {
                let column = Expr::Column(Column::new_unqualified(name.clone()));
                Transformed::new(column, true, TreeNodeRecursion::Jump)
            }
            None => Transformed::no(node),
        })
    })?;
    Ok(replaced.data)
}

/// Counts the parts of an expression that are computed for every row. What was seen before is not
/// entered again.
fn count<'a>(expr: &'a Expr, seen: &mut HashMap<&'a Expr, usize>) {
    if matches!(expr, Expr::Column(_) | Expr::Literal(..)) {
        return;
    }
    let times = seen.entry(expr).or_default();
    *times += 1;
    if *times > 1 {
        return;
    }
    match expr {
        Expr::BinaryExpr(binary) if matches!(binary.op, Operator::And | Operator::Or) => {
            count(&binary.left, seen);
        }
        Expr::Case(case) => {
            case.expr.iter().for_each(|operand| count(operand, seen));
        }
        Expr::ScalarFunction(call) if call.func.short_circuits() => {}
        other => {
            // The closure never fails, so neither does the walk.
            let _ = other.apply_children(|child| {
                count(child, seen);
                Ok(TreeNodeRecursion::Continue)
            });
        }
    }
}

/// How many nodes an expression has.
fn size(expr: &Expr) -> usize {
    let mut nodes = 0;
    let _ = expr.apply(|_| {
        nodes += 1;
        Ok(TreeNodeRecursion::Continue)
    });
    nodes
}

/// Whether a column has values of eight bytes and no nulls.
fn is_plain(column: &ArrayRef) -> bool {
    column.null_count() == 0 && column.data_type().primitive_width() == Some(8)
}

/// The values of such a column that pass.
fn passing(column: &ArrayRef, mask: &BooleanArray) -> Result<ArrayRef, ArrowError> {
    let data = column.to_data();
    let values = &data.buffer::<u64>(0)[..column.len()];
    let mut kept = recycled::take();
    vector::filter(values, mask.values(), &mut kept);
    let data = ArrayData::builder(column.data_type().clone()).len(kept.len());
    Ok(make_array(data.add_buffer(recycled::into_buffer(kept)).build()?))
}

fn describe(filter: Option<&Expr>, outputs: &[Expr]) -> Vec<Property> {
    let outputs: Vec<String> = outputs.iter().map(shown_expr).collect();
    let filter = filter.map(|filter| (FILTER, shown_expr(filter)));
    filter.into_iter().chain([(PROJECT, outputs.join(", "))]).collect()
}

#[cfg(test)]
mod tests;
