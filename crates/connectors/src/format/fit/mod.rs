//! A value as the type of a column holds it: one rule for all formats.
//!
//! ```text
//! whole numbers, DECIMAL, BOOLEAN   exact, or it does not fit: 1.9 is no BIGINT, 1.0 is 1
//! FLOAT, DOUBLE                     the nearest number; one beyond the range does not fit
//! times and dates                   the tick that has begun: the fraction is cut towards the past
//! ROW, ARRAY, MAP                   each value by itself; one that does not fit takes its row
//! ```
//!
//! Text is read by the same rules, in `text`. The casts of the library cut fractions, wrap
//! nothing but round some decimals, and cut times before 1970 towards the future: they are used
//! only where they lose nothing, or where what they lose is seen here.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericListArray, Int64Array, MapArray, OffsetSizeTrait, StructArray,
    make_array, new_null_array,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields, Float64Type, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;

use dataflow::calendar::writable;

use super::rows::is_text;

mod text;

pub(super) use text::{Number, Texts};

/// A column in another type.
pub(super) struct Fitted {
    pub(super) column: ArrayRef,
    /// The rows whose value the type cannot hold, where there are any.
    pub(super) lost: Option<BooleanBuffer>,
}

impl Fitted {
    fn whole(column: ArrayRef) -> Self {
        Self { column, lost: None }
    }

    fn new(column: ArrayRef, lost: BooleanBuffer) -> Self {
        let any = lost.count_set_bits() > 0;
        Self { column, lost: any.then_some(lost) }
    }

    /// Adds the rows that an earlier step has lost.
    fn and(mut self, earlier: Option<BooleanBuffer>) -> Self {
        self.lost = either(self.lost, earlier);
        self
    }
}

fn either(a: Option<BooleanBuffer>, b: Option<BooleanBuffer>) -> Option<BooleanBuffer> {
    match (a, b) {
        (Some(a), Some(b)) => Some(&a | &b),
        (a, b) => a.or(b),
    }
}

/// `from` in the type `to`. `texts` says what texts may be.
///
/// # Errors
/// When nothing of the one type can become the other.
pub(super) fn fit(from: &ArrayRef, to: &DataType, texts: Texts) -> Result<Fitted, ArrowError> {
    let of = from.data_type();
    if of == to {
        return Ok(Fitted::whole(Arc::clone(from)));
    }
    match (of, to) {
        (DataType::Null, _) => Ok(Fitted::whole(new_null_array(to, from.len()))),
        (DataType::Dictionary(_, value), _) => fit(&cast(from, value)?, to, texts),
        (DataType::Struct(_), DataType::Struct(fields)) => row(from.as_struct(), fields, texts),
        (DataType::Map(..), DataType::Map(entries, ordered)) => {
            map(from.as_map(), entries, *ordered, texts)
        }
        (_, DataType::List(field)) if is_list(of) => list::<i32>(from, field, to, texts),
        (_, DataType::LargeList(field)) if is_list(of) => list::<i64>(from, field, to, texts),
        _ if is_text(of) && !is_text(to) => {
            text::fit(cast(from, &DataType::Utf8)?.as_string(), to, texts)
        }
        _ if is_point(of) && is_point(to) => points(from, to),
        _ if of.is_floating() && to.is_decimal() || of.is_decimal() && to.is_floating() => {
            // By way of the shortest text that is the number: 0.1 is 0.1 then.
            let shown = cast(from, &DataType::Utf8)?;
            text::fit(shown.as_string(), to, Texts::Plain)
        }
        _ if (of.is_floating() || of.is_decimal()) && to.is_temporal() => {
            let ticks = fit(from, &DataType::Int64, texts)?;
            Ok(fit(&ticks.column, to, texts)?.and(ticks.lost))
        }
        _ => number(from, to),
    }
}

/// A cast, and the nulls that it made.
fn cast_safe(from: &ArrayRef, to: &DataType) -> Result<Fitted, ArrowError> {
    let safe = CastOptions { safe: true, format_options: FormatOptions::default() };
    // Arrow panics at some times that have no text.
    let column = if is_text(to) {
        cast_with_options(&writable(from)?, to, &safe)?
    } else {
        cast_with_options(from, to, &safe)?
    };
    if column.logical_null_count() <= from.logical_null_count() {
        return Ok(Fitted::whole(column));
    }
    let lost = &valid(from) & &!&valid(&column);
    Ok(Fitted::new(column, lost))
}

fn valid(array: &ArrayRef) -> BooleanBuffer {
    match array.logical_nulls() {
        Some(nulls) => nulls.inner().clone(),
        None => BooleanBuffer::new_set(array.len()),
    }
}

/// A cast of single values whose loss is seen by casting back.
fn number(from: &ArrayRef, to: &DataType) -> Result<Fitted, ArrowError> {
    let of = from.data_type();
    let fitted = cast_safe(from, to)?;
    let column = &fitted.column;
    if of.is_floating() && to.is_floating() {
        let [was, is] = [doubles(from)?, doubles(column)?];
        let beyond = BooleanBuffer::collect_bool(from.len(), |row| {
            column.is_valid(row) && values(&is)[row].is_infinite() && values(&was)[row].is_finite()
        });
        return Ok(Fitted::new(Arc::clone(column), beyond).and(fitted.lost));
    }
    let is_exact = to.is_integer() || to.is_decimal() || *to == DataType::Boolean;
    if !is_exact || *of == DataType::Boolean || (of.is_integer() && to.is_integer()) {
        return Ok(fitted);
    }
    let back = match of {
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => return Ok(fitted),
        _ => cast_safe(column, of)?.column,
    };
    let changed = if of.is_floating() {
        let [was, is] = [doubles(from)?, doubles(&back)?];
        BooleanBuffer::collect_bool(from.len(), |row| {
            column.is_valid(row) && values(&was)[row] != values(&is)[row]
        })
    } else {
        &valid(column) & distinct(from, &back)?.values()
    };
    Ok(Fitted::new(Arc::clone(column), changed).and(fitted.lost))
}

fn doubles(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    cast(array, &DataType::Float64)
}

fn values(array: &ArrayRef) -> &[f64] {
    array.as_primitive::<Float64Type>().values()
}

/// Points in time: days, or ticks of some length.
fn is_point(of: &DataType) -> bool {
    matches!(of, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

fn ticks_a_day(of: &DataType) -> i128 {
    const DAY_S: i128 = 86_400;
    match of {
        DataType::Date32 => 1,
        DataType::Timestamp(TimeUnit::Second, _) => DAY_S,
        DataType::Timestamp(TimeUnit::Microsecond, _) => DAY_S * 1_000_000,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => DAY_S * 1_000_000_000,
        _ => DAY_S * 1_000,
    }
}

/// Points in time by other ticks: the last one that has begun.
fn points(from: &ArrayRef, to: &DataType) -> Result<Fitted, ArrowError> {
    let of = from.data_type();
    let zone = |of: &DataType| match of {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    // The library converts points in time between zones.
    if zone(of) != zone(to) {
        let same = match (of, to) {
            (DataType::Timestamp(_, zone), DataType::Timestamp(unit, _)) => {
                DataType::Timestamp(*unit, zone.clone())
            }
            (_, DataType::Timestamp(unit, _)) => DataType::Timestamp(*unit, None),
            _ => return cast_safe(from, to),
        };
        let ticks = points(from, &same)?;
        return Ok(cast_safe(&ticks.column, to)?.and(ticks.lost));
    }
    let (a_day, of_day) = (ticks_a_day(to), ticks_a_day(of));
    let days = *to == DataType::Date32;
    let tick = |ticks: i64| {
        let ticks = (i128::from(ticks) * a_day).div_euclid(of_day);
        i64::try_from(ticks).ok().filter(|ticks| !days || i32::try_from(*ticks).is_ok())
    };
    let ticks = cast(from, &DataType::Int64)?;
    let ticks: Int64Array =
        ticks.as_primitive::<Int64Type>().iter().map(|ticks| ticks.and_then(tick)).collect();
    let ticks: ArrayRef = Arc::new(ticks);
    let lost = &valid(from) & &!&valid(&ticks);
    Ok(Fitted::new(cast(&ticks, to)?, lost))
}

fn is_list(of: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView};
    matches!(of, List(_) | LargeList(_) | FixedSizeList(..) | ListView(_) | LargeListView(_))
}

/// A part of a value: a NULL where the type has none takes its row, and any value stands for it.
fn part(fitted: Fitted, field: &FieldRef) -> Result<Fitted, ArrowError> {
    if field.is_nullable() || fitted.column.null_count() == 0 {
        return Ok(fitted);
    }
    let nulls = !&valid(&fitted.column);
    let filled = fitted.column.to_data().into_builder().nulls(None).build()?;
    Ok(Fitted::new(make_array(filled), nulls).and(fitted.lost))
}

/// Lists with elements of another type.
fn list<O: OffsetSizeTrait>(
    from: &ArrayRef,
    field: &FieldRef,
    to: &DataType,
    texts: Texts,
) -> Result<Fitted, ArrowError> {
    use DataType::{FixedSizeList, LargeList, LargeListView, List, ListView};
    let (List(element)
    | LargeList(element)
    | ListView(element)
    | LargeListView(element)
    | FixedSizeList(element, _)) = from.data_type()
    else {
        return cast_safe(from, to);
    };
    let alike = match to {
        LargeList(_) => LargeList(Arc::clone(element)),
        _ => List(Arc::clone(element)),
    };
    let from = cast(from, &alike)?;
    let from = from.as_list::<O>();
    let elements = part(fit(from.values(), field.data_type(), texts)?, field)?;
    let lost = elements.lost.map(|lost| of_rows(&lost, from.offsets(), from));
    let (field, offsets) = (Arc::clone(field), from.offsets().clone());
    let column =
        GenericListArray::<O>::try_new(field, offsets, elements.column, from.nulls().cloned())?;
    Ok(Fitted { column: Arc::new(column), lost })
}

/// The rows that have one of the elements.
fn of_rows<O: OffsetSizeTrait>(
    elements: &BooleanBuffer,
    offsets: &[O],
    rows: &dyn Array,
) -> BooleanBuffer {
    BooleanBuffer::collect_bool(rows.len(), |row| {
        let (from, to) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        rows.is_valid(row) && elements.slice(from, to - from).count_set_bits() > 0
    })
}

fn map(
    from: &MapArray,
    entries: &FieldRef,
    ordered: bool,
    texts: Texts,
) -> Result<Fitted, ArrowError> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(ArrowError::CastError("a MAP without keys and values".into()));
    };
    let mut lost = None;
    let mut columns = Vec::with_capacity(fields.len());
    for (field, column) in fields.iter().zip(from.entries().columns()) {
        let fitted = part(fit(column, field.data_type(), texts)?, field)?;
        lost = either(lost, fitted.lost);
        columns.push(fitted.column);
    }
    let lost = lost.map(|lost| of_rows(&lost, from.offsets(), from));
    let of = StructArray::try_new(fields.clone(), columns, from.entries().nulls().cloned())?;
    let (entries, offsets) = (Arc::clone(entries), from.offsets().clone());
    let column = MapArray::try_new(entries, offsets, of, from.nulls().cloned(), ordered)?;
    Ok(Fitted { column: Arc::new(column), lost })
}

/// Rows within rows: fields are found by name, and one that is not there is NULL.
fn row(from: &StructArray, fields: &Fields, texts: Texts) -> Result<Fitted, ArrowError> {
    let names = from.column_names();
    let mut lost: Option<BooleanBuffer> = None;
    let mut columns = Vec::with_capacity(fields.len());
    for field in fields {
        let found = names.iter().position(|name| name == field.name());
        let by_letters = || names.iter().position(|name| name.eq_ignore_ascii_case(field.name()));
        let Some(index) = found.or_else(by_letters) else {
            let absent = Fitted::whole(new_null_array(field.data_type(), from.len()));
            let absent = part(absent, field)?;
            lost = either(lost, absent.lost);
            columns.push(absent.column);
            continue;
        };
        let fitted = part(fit(from.column(index), field.data_type(), texts)?, field)?;
        lost = either(lost, fitted.lost);
        columns.push(fitted.column);
    }
    if let (Some(values), Some(nulls)) = (&mut lost, from.nulls()) {
        *values = &*values & nulls.inner();
    }
    let nulls = from.nulls().cloned();
    let column = StructArray::try_new_with_length(fields.clone(), columns, nulls, from.len())?;
    Ok(Fitted { column: Arc::new(column), lost })
}

#[cfg(test)]
mod tests;
