//! `levenshtein` with a bound: it compares each character of one text with each of the other.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions::string::levenshtein;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// Comparisons of characters that one row may take: two texts of 16 KiB, well below a second.
const ROW_COMPARISONS_MAX: u64 = 1 << 28;

/// DataFusion's function with the bound in front.
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Levenshtein { datafusion: levenshtein() }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Levenshtein {
    datafusion: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Levenshtein {
    fn name(&self) -> &str {
        self.datafusion.name()
    }

    fn aliases(&self) -> &[String] {
        self.datafusion.aliases()
    }

    fn signature(&self) -> &Signature {
        self.datafusion.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.datafusion.return_type(types)
    }

    fn is_strict(&self) -> bool {
        self.datafusion.inner().is_strict()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.datafusion.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let [a, b] = &args.args[..] {
            let constant = matches!((a, b), (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)));
            let rows = if constant { 1 } else { args.number_rows };
            check(&bytes(a, rows)?, &bytes(b, rows)?)?;
        }
        self.datafusion.invoke_with_args(args)
    }
}

/// Bytes of the text of each row, of which a text has at least as many as characters.
fn bytes(text: &ColumnarValue, rows: usize) -> Result<ArrayRef> {
    let once = match text {
        ColumnarValue::Scalar(text) => &text.to_array()?,
        ColumnarValue::Array(texts) => texts,
    };
    let bytes = cast(&length(once)?, &DataType::Int64)?;
    match text {
        ColumnarValue::Scalar(_) => ScalarValue::try_from_array(&bytes, 0)?.to_array_of_size(rows),
        ColumnarValue::Array(_) => Ok(bytes),
    }
}

fn check(a: &dyn Array, b: &dyn Array) -> Result<()> {
    let (a, b) = (a.as_primitive::<Int64Type>(), b.as_primitive::<Int64Type>());
    for (a, b) in a.iter().zip(b) {
        let (Some(a), Some(b)) = (a, b) else { continue };
        let (a, b) = (a.unsigned_abs(), b.unsigned_abs());
        let compared = a.saturating_mul(b);
        if compared > ROW_COMPARISONS_MAX {
            return exec_err!(
                "levenshtein would compare texts of {a} and {b} bytes; the product of both \
                 lengths is at most {ROW_COMPARISONS_MAX}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::{ROW_COMPARISONS_MAX, check};

    #[test]
    fn a_row_has_a_bound() {
        let most = 1_i64 << (ROW_COMPARISONS_MAX.ilog2() / 2);
        let texts = |bytes| Int64Array::from(vec![bytes; 3]);
        check(&texts(most), &texts(most)).unwrap();
        let error = check(&texts(most), &texts(most + 1)).unwrap_err().to_string();
        assert!(error.contains("texts of 16384 and 16385 bytes"), "{error}");
        let nulls = [vec![None, Some(i64::MAX)], vec![Some(9), None]].map(Int64Array::from);
        check(&nulls[0], &nulls[1]).unwrap();
    }
}
