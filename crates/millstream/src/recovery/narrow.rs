//! Columns of numbers in as few bytes as they need: saved groups are mostly keys that lie close
//! together and counts that are small, and each byte is summed, written and brought to a disk.
//!
//! A field tells in its metadata how its column is kept; [`FORM`] is followed by the type, a value
//! that none is less than, and whether values may be missing:
//!
//! ```text
//! same int64 1735689600000 required    one value: a column of Null
//! run int64 4096 required              consecutive numbers from that value on: a column of Null
//! from int64 -7 nullable               distances from that value: a column of UInt8, 16 or 32
//! ```
//!
//! The form is that of checkpoints alone: rows that travel have their own.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, NullArray, PrimitiveArray, make_array,
};
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, Schema, TimeUnit, UInt8Type, UInt16Type, UInt32Type,
};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

/// The name of the metadata.
const FORM: &str = "millstream.narrow";
/// Rows of a batch that is narrowed at most: a column without bytes does not bound them.
const ROWS_MAX: usize = 1 << 20;

/// The types of columns that are narrowed, by the names that they have in the metadata. Each has 8
/// bytes.
const TYPES: [(&str, DataType); 6] = [
    ("int64", DataType::Int64),
    ("uint64", DataType::UInt64),
    ("timestamp[s]", DataType::Timestamp(TimeUnit::Second, None)),
    ("timestamp[ms]", DataType::Timestamp(TimeUnit::Millisecond, None)),
    ("timestamp[us]", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("timestamp[ns]", DataType::Timestamp(TimeUnit::Nanosecond, None)),
];

/// Narrows the columns of a batch that can be.
///
/// # Errors
/// Arrow's, for a column that cannot be built.
pub(super) fn narrow(rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if rows.num_rows() > ROWS_MAX {
        return Ok(rows.clone());
    }
    let schema = rows.schema();
    let all = schema.fields().iter().zip(rows.columns());
    let all = all.map(|(field, column)| {
        let narrow = narrow_column(field, column)?;
        Ok(narrow.unwrap_or_else(|| (field.clone(), column.clone())))
    });
    let (fields, columns) = all.collect::<Result<(Vec<FieldRef>, Vec<ArrayRef>), ArrowError>>()?;
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)
}

/// The inverse of [`narrow`]; a batch that was not narrowed is given as it is.
///
/// # Errors
/// When the metadata do not fit their columns: the rows are not those that were written.
pub(super) fn widen(rows: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = rows.schema();
    if schema.fields().iter().all(|field| !field.metadata().contains_key(FORM)) {
        return Ok(rows);
    }
    let all = schema.fields().iter().zip(rows.columns());
    let all = all.map(|(field, column)| match field.metadata().get(FORM) {
        Some(form) => widen_column(field, form, column),
        None => Ok((field.clone(), column.clone())),
    });
    let (fields, columns) = all.collect::<Result<(Vec<FieldRef>, Vec<ArrayRef>), ArrowError>>()?;
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)
}

/// The same bits as another type of 8 bytes.
fn reinterpret(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    Ok(make_array(column.to_data().into_builder().data_type(data_type.clone()).build()?))
}

/// A column with its field, narrowed; `None` where it is no narrower.
fn narrow_column(
    field: &FieldRef,
    column: &ArrayRef,
) -> Result<Option<(FieldRef, ArrayRef)>, ArrowError> {
    let Some((name, _)) = TYPES.iter().find(|(_, wide)| wide == column.data_type()) else {
        return Ok(None);
    };
    let words = reinterpret(column, &DataType::Int64)?;
    let words: &Int64Array = words.as_primitive();
    let Some(&first) = words.values().first() else { return Ok(None) };
    let is_whole = words.null_count() == 0;
    let varies = words.values().iter().fold(0, |varies, word| varies | (word ^ first));
    let (form, least) = match () {
        () if is_whole && varies == 0 => ("same", first),
        () if is_whole && is_run(words.values()) => ("run", first),
        () => ("from", least_of(words, varies)),
    };
    let far = |word: i64| word.wrapping_sub(least).cast_unsigned();
    // With the bits that vary alone no distance is greater than all of them.
    let most = match varies.cast_unsigned() >> 32 {
        0 => u64::MAX >> varies.leading_zeros().min(63),
        _ => words.values().iter().fold(0, |most, word| most.max(far(*word))),
    };
    let narrow: ArrayRef = match most {
        _ if form != "from" => Arc::new(NullArray::new(words.len())),
        0..=0xFF => Arc::new(words.unary::<_, UInt8Type>(|word| far(word) as u8)),
        0x100..=0xFFFF => Arc::new(words.unary::<_, UInt16Type>(|word| far(word) as u16)),
        0x1_0000..=0xFFFF_FFFF => Arc::new(words.unary::<_, UInt32Type>(|word| far(word) as u32)),
        _ => return Ok(None),
    };
    let missing = if field.is_nullable() { "nullable" } else { "required" };
    let mut metadata = field.metadata().clone();
    metadata.insert(FORM.into(), format!("{form} {name} {least} {missing}"));
    let is_nullable = field.is_nullable() || form != "from";
    let field = Field::new(field.name(), narrow.data_type().clone(), is_nullable);
    Ok(Some((Arc::new(field.with_metadata(metadata)), narrow)))
}

/// A word that none of these is less than, of which the bits `varies` are not the same in all.
/// Where these bits are few it is found without comparisons, which processors do one by one: the
/// words with zeros in their place.
fn least_of(words: &Int64Array, varies: i64) -> i64 {
    match varies.leading_zeros() {
        0..32 => words.values().iter().copied().min().unwrap_or(0),
        zeros => {
            let bits = (u64::MAX >> zeros.min(63)).cast_signed();
            words.values().first().copied().unwrap_or(0) & !bits
        }
    }
}

/// Whether words are consecutive numbers.
fn is_run(words: &[i64]) -> bool {
    let Some((&first, &last)) = words.first().zip(words.last()) else { return false };
    if first.checked_add(words.len() as i64 - 1) != Some(last) {
        return false;
    }
    let wanted = (0..words.len() as i64).map(|at| first.wrapping_add(at));
    words.iter().zip(wanted).fold(0, |unlike, (word, wanted)| unlike | (word ^ wanted)) == 0
}

/// The column and the field that were narrowed.
fn widen_column(
    field: &FieldRef,
    form: &str,
    column: &ArrayRef,
) -> Result<(FieldRef, ArrayRef), ArrowError> {
    let unlike = || {
        let (name, data_type) = (field.name(), column.data_type());
        ArrowError::ParseError(format!("column '{name}' of {data_type} is no '{form}'"))
    };
    let words: Vec<&str> = form.split(' ').collect();
    let [form, name, least, missing] = words[..] else { return Err(unlike()) };
    let (_, wide) = TYPES.iter().find(|(of, _)| *of == name).ok_or_else(unlike)?;
    let least: i64 = least.parse().map_err(|_| unlike())?;
    let rows = column.len();
    let of = |distance: u32| least.wrapping_add(i64::from(distance));
    let words: Int64Array = match (form, column.data_type()) {
        ("same", DataType::Null) if rows <= ROWS_MAX => Int64Array::from_value(least, rows),
        ("run", DataType::Null) if rows <= ROWS_MAX => {
            Int64Array::from_iter_values((0..rows as u32).map(of))
        }
        ("from", DataType::UInt8) => far::<UInt8Type>(column, |far| of(far.into())),
        ("from", DataType::UInt16) => far::<UInt16Type>(column, |far| of(far.into())),
        ("from", DataType::UInt32) => far::<UInt32Type>(column, of),
        _ => return Err(unlike()),
    };
    let is_nullable = match missing {
        "nullable" => true,
        "required" => false,
        _ => return Err(unlike()),
    };
    let mut metadata = field.metadata().clone();
    metadata.remove(FORM);
    let field = Field::new(field.name(), wide.clone(), is_nullable).with_metadata(metadata);
    Ok((Arc::new(field), reinterpret(&(Arc::new(words) as ArrayRef), wide)?))
}

/// The words of distances.
fn far<T: ArrowPrimitiveType>(
    column: &ArrayRef,
    of: impl Fn(T::Native) -> i64,
) -> PrimitiveArray<Int64Type> {
    column.as_primitive::<T>().unary(of)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Float64Array, StringArray, TimestampMillisecondArray, UInt64Array};
    use proptest::prelude::*;

    use super::*;

    /// Columns as fields say; what is missing is not required.
    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        let field = |(at, column): (usize, &ArrayRef)| {
            let field = Field::new(format!("{at}"), column.data_type().clone(), at % 2 == 1);
            field.with_metadata(HashMap::from([("other".into(), at.to_string())]))
        };
        let fields: Vec<Field> = columns.iter().enumerate().map(field).collect();
        let of = HashMap::from([("of".into(), "groups".into())]);
        RecordBatch::try_new(Arc::new(Schema::new_with_metadata(fields, of)), columns).unwrap()
    }

    fn there_and_back(columns: Vec<ArrayRef>) -> RecordBatch {
        let rows = batch(columns);
        let narrow = narrow(&rows).unwrap();
        let back = widen(narrow.clone()).unwrap();
        assert_eq!((back.schema(), &back), (rows.schema(), &rows));
        narrow
    }

    #[test]
    fn groups_are_kept_in_few_bytes() {
        let numbers = |of: Vec<i64>| Arc::new(Int64Array::from(of)) as ArrayRef;
        let some = |of: Vec<Option<i64>>| Arc::new(Int64Array::from(of)) as ArrayRef;
        let narrow = there_and_back(vec![
            numbers(vec![1 << 60; 3]),
            numbers(vec![i64::MAX - 2, i64::MAX - 1, i64::MAX]),
            numbers(vec![3, 2, 1]),
            some(vec![Some(-1), None, Some(255)]),
            numbers(vec![0, 1 << 32, 1]),
            some(vec![None; 3]),
            numbers(vec![-70_000, 0, 5]),
            numbers(vec![i64::MAX, i64::MIN, 0]),
            Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1, u64::MAX])),
            Arc::new(TimestampMillisecondArray::from(vec![5, 300, 6])),
            Arc::new(Float64Array::from(vec![1.0; 3])),
            Arc::new(StringArray::from(vec!["a"; 3])),
        ]);
        let types: Vec<String> =
            narrow.columns().iter().map(|column| column.data_type().to_string()).collect();
        let (null, kept) = ("Null", "Int64");
        let expected = [
            [null, null, "UInt8", "UInt16", kept, "UInt8"],
            ["UInt32", kept, "UInt8", "UInt16", "Float64", "Utf8"],
        ];
        assert_eq!(types, expected.concat());
        let narrow = there_and_back(vec![numbers(vec![7])]);
        assert_eq!(narrow.column(0).data_type(), &DataType::Null);
        let narrow = there_and_back(vec![numbers(Vec::new())]);
        assert_eq!(narrow.column(0).data_type(), &DataType::Int64);
    }

    #[test]
    fn metadata_that_do_not_fit_are_refused() {
        let kept = |form: &str, column: ArrayRef| {
            let field = Field::new("n", column.data_type().clone(), true);
            let field = field.with_metadata(HashMap::from([(FORM.into(), form.into())]));
            let options = RecordBatchOptions::new().with_row_count(Some(column.len()));
            let schema = Arc::new(Schema::new(vec![field]));
            RecordBatch::try_new_with_options(schema, vec![column], &options).unwrap()
        };
        let null = |rows| Arc::new(NullArray::new(rows)) as ArrayRef;
        widen(kept("same int64 7 required", null(ROWS_MAX))).unwrap();
        for form in ["same int64 7 required", "run int64 7 nullable"] {
            let error = widen(kept(form, null(usize::MAX >> 1))).unwrap_err().to_string();
            assert!(error.contains(form), "{error}");
        }
        let bytes = || Arc::new(arrow::array::UInt8Array::from(vec![1])) as ArrayRef;
        for form in [
            "",
            "from int64 7",
            "from int64 x required",
            "from int64 9223372036854775808 required",
            "from utf8 7 required",
            "from int64 7 perhaps",
            "same int64 7 required",
            "far int64 7 required",
            "from int64 7 required more",
        ] {
            widen(kept(form, bytes())).unwrap_err();
        }
        // A value that is missing where none may be.
        let missing = Arc::new(arrow::array::UInt8Array::from(vec![None, Some(1)]));
        widen(kept("from int64 7 required", missing)).unwrap_err();
    }

    proptest! {
        #[test]
        fn numbers_come_back(
            least in any::<i64>(),
            far in prop::collection::vec(prop::option::of(any::<u64>()), 1..50),
            shift in 0u32..65,
            step in 0i64..3,
        ) {
            let shifted = |far: u64| far.checked_shr(shift).unwrap_or(0).cast_signed();
            let at = |far: u64| least.wrapping_add(shifted(far));
            let some: Int64Array = far.iter().map(|far| far.map(at)).collect();
            let all = far.iter().map(|far| at(far.unwrap_or(0)));
            let unsigned = UInt64Array::from_iter_values(all.clone().map(i64::cast_unsigned));
            let steps = (0..far.len() as i64).map(|nth| least.wrapping_add(step * nth));
            there_and_back(vec![
                Arc::new(Int64Array::from_iter_values(all)),
                Arc::new(some),
                Arc::new(unsigned),
                Arc::new(Int64Array::from_iter_values(steps)),
            ]);
        }
    }
}
