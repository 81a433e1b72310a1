//! Functions that act on every match, as in Flink, where DataFusion's act on the first one.
//!
//! `REGEXP_REPLACE(s, pattern, by)` and `ARRAY_REMOVE(array, element)`. With flags,
//! `REGEXP_REPLACE` does what they say: `g` is all matches. Where the element is NULL,
//! `ARRAY_REMOVE` and its neighbours take the elements out that are NULL; of DataFusion's, the
//! result is NULL there. Elements that are NULL are not common to two arrays for `ARRAY_HAS_ANY`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericListArray, Int64Array, OffsetSizeTrait, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, is_null, take};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::regex::regexp_replace;
use datafusion::functions_nested::array_has::array_has_any_udf;
use datafusion::functions_nested::remove::{array_remove_all_udf, array_remove_n_udf};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// All of them.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let every = |name, which, datafusion: Arc<ScalarUDF>| {
        let aliases = datafusion.aliases().to_vec();
        Every { name, which, aliases, datafusion }
    };
    let functions = [
        Every {
            aliases: vec!["list_remove".into()],
            ..every("array_remove", Which::Remove, array_remove_all_udf())
        },
        every("array_remove_all", Which::Remove, array_remove_all_udf()),
        every("array_remove_n", Which::Remove, array_remove_n_udf()),
        every("array_has_any", Which::HasAny, array_has_any_udf()),
        every("regexp_replace", Which::Replace, regexp_replace()),
    ];
    functions.into_iter().map(|function| Arc::new(ScalarUDF::from(function))).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    Remove,
    HasAny,
    Replace,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Every {
    name: &'static str,
    which: Which,
    aliases: Vec<String>,
    datafusion: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Every {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        self.datafusion.signature()
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        self.datafusion.inner().return_type(args)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.datafusion.return_field_from_args(args)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.which {
            Which::Replace => {
                if args.args.len() == 3 {
                    let flags = ScalarValue::Utf8(Some("g".into()));
                    args.arg_fields.push(Arc::new(Field::new("flags", flags.data_type(), false)));
                    args.args.push(ColumnarValue::Scalar(flags));
                }
                self.datafusion.invoke_with_args(args)
            }
            Which::HasAny => {
                let rows = args.number_rows;
                let array = args.args[0].to_array(rows)?;
                args.args[0] = ColumnarValue::Array(without_nulls(&array, None)?);
                self.datafusion.invoke_with_args(args)
            }
            Which::Remove => {
                let rows = args.number_rows;
                let element = match &args.args[1] {
                    ColumnarValue::Scalar(value) if !value.is_null() => None,
                    element => Some(element.to_array(rows)?).filter(|e| e.null_count() > 0),
                };
                let Some(element) = element else { return self.datafusion.invoke_with_args(args) };
                let array = args.args[0].to_array(rows)?;
                let most = args.args.get(2).map(|most| most.to_array(rows)).transpose()?;
                let most = most.as_ref().map(|most| most.as_primitive::<Int64Type>());
                let others = self.datafusion.invoke_with_args(args)?.to_array(rows)?;
                let without = without_nulls(&array, most)?;
                Ok(ColumnarValue::Array(zip(&is_null(&element)?, &without, &others)?))
            }
        }
    }
}

/// Arrays without their NULL elements; at most `most` of each array are dropped.
fn without_nulls(arrays: &ArrayRef, most: Option<&Int64Array>) -> Result<ArrayRef> {
    match arrays.data_type() {
        DataType::List(of) => without_nulls_of::<i32>(arrays, of, most),
        DataType::LargeList(of) => without_nulls_of::<i64>(arrays, of, most),
        // Arrays of one length may have another one each then.
        DataType::FixedSizeList(of, _) => {
            without_nulls(&cast(arrays, &DataType::List(of.clone()))?, most)
        }
        _ => Ok(arrays.clone()),
    }
}

fn without_nulls_of<O: OffsetSizeTrait>(
    arrays: &ArrayRef,
    of: &FieldRef,
    most: Option<&Int64Array>,
) -> Result<ArrayRef> {
    let arrays = arrays.as_list::<O>();
    let (mut kept, mut lengths) = (vec![], Vec::with_capacity(arrays.len()));
    let mut nulls = arrays.nulls().cloned();
    if let Some(most) = most {
        nulls = NullBuffer::union(nulls.as_ref(), most.nulls());
    }
    for (row, bounds) in arrays.offsets().windows(2).enumerate() {
        let before = kept.len();
        let mut left = most.map_or(i64::MAX, |most| most.value(row));
        if arrays.is_valid(row) {
            for at in bounds[0].as_usize()..bounds[1].as_usize() {
                if left > 0 && arrays.values().is_null(at) {
                    left -= 1;
                } else {
                    kept.push(at as u64);
                }
            }
        }
        lengths.push(kept.len() - before);
    }
    let values = take(arrays.values(), &UInt64Array::from(kept), None)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(GenericListArray::<O>::try_new(of.clone(), offsets, values, nulls)?))
}
