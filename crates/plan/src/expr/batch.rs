//! Scalar functions that the program gives: over whole batches, and without DataFusion's types.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::expr::given::FunctionUsage;
use crate::text::types::sql_name;

/// A function of SQL that the program gives.
///
/// Workers call it at the same time, each with a batch of its own.
pub trait BatchFunction: Send + Sync {
    /// Its name in SQL, in small letters.
    fn name(&self) -> &str;

    /// The types of its arguments; SQL converts what it is given to them.
    fn arguments(&self) -> &[DataType];

    /// The type of its result.
    fn returns(&self) -> &DataType;

    /// The inputs of its result.
    fn volatility(&self) -> FunctionVolatility;

    /// A number that changes with what it does; 0 where nobody knows. A job goes on from a
    /// checkpoint with the same function.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// How it was called in this process.
    fn usage(&self) -> FunctionUsage {
        FunctionUsage::default()
    }

    /// The results of `rows` rows. Each argument has as many values.
    ///
    /// # Errors
    /// A text for the author of the query; it ends the job.
    fn call(&self, args: &[ArrayRef], rows: usize) -> std::result::Result<ArrayRef, String>;
}

/// The inputs on which the result of a function depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionVolatility {
    /// The arguments alone: a call of constants is made once, while the query is planned.
    Immutable,
    /// The arguments, and what does not change while a query runs.
    Stable,
    /// It may be another one at each call.
    Volatile,
}

/// The function for DataFusion.
pub(crate) fn called(function: Arc<dyn BatchFunction>) -> Arc<ScalarUDF> {
    let volatility = match function.volatility() {
        FunctionVolatility::Immutable => Volatility::Immutable,
        FunctionVolatility::Stable => Volatility::Stable,
        FunctionVolatility::Volatile => Volatility::Volatile,
    };
    let signature = match function.arguments() {
        [] => Signature::nullary(volatility),
        _ => Signature::user_defined(volatility),
    };
    Arc::new(ScalarUDF::from(Called { function, signature }))
}

/// The function of the program that one of DataFusion is, if it is one.
pub(crate) fn given(function: &dyn ScalarUDFImpl) -> Option<Arc<dyn BatchFunction>> {
    function.downcast_ref::<Called>().map(|of| Arc::clone(&of.function))
}

/// Whether a value is converted where a function asks for another type: nothing is lost, or the
/// query ends where a number does not fit.
pub(crate) fn fits(given: &DataType, wanted: &DataType) -> bool {
    use DataType::{Date32, Date64, Null, Timestamp};
    let is_text = |of: &DataType| of.is_string();
    let is_whole = |of: &DataType| of.is_integer();
    let is_number = |of: &DataType| of.is_numeric();
    if let (Timestamp(_, given), Timestamp(_, wanted)) = (given, wanted) {
        return given.is_some() == wanted.is_some();
    }
    given == wanted
        || *given == Null
        || (is_text(given) && is_text(wanted))
        || (is_whole(given) && is_number(wanted))
        || (is_number(given) && (wanted.is_floating() || wanted.is_decimal()))
        || matches!((given, wanted), (Date32 | Date64, Timestamp(_, None)))
}

struct Called {
    function: Arc<dyn BatchFunction>,
    signature: Signature,
}

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(…)", self.function.name())
    }
}

/// Two functions are the same when they are one object.
impl PartialEq for Called {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
    }
}

impl Eq for Called {}

impl Hash for Called {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.function).hash(state);
    }
}

impl ScalarUDFImpl for Called {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let wanted = self.function.arguments();
        let fit = given.len() == wanted.len() && given.iter().zip(wanted).all(|(a, b)| fits(a, b));
        if !fit {
            let types: Vec<_> = wanted.iter().map(sql_name).collect();
            return plan_err!("write {}({})", self.function.name(), types.join(", "));
        }
        Ok(wanted.to_vec())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.function.returns().clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (name, rows) = (self.function.name(), args.number_rows);
        let arrays = args.args.into_iter().map(|arg| arg.into_array(rows));
        let made = match self.function.call(&arrays.collect::<Result<Vec<_>>>()?, rows) {
            Ok(made) => made,
            Err(message) => return exec_err!("function '{name}': {message}"),
        };
        let (of, wanted) = (made.data_type(), self.function.returns());
        if made.len() != rows {
            return exec_err!("function '{name}' gave {} values for {rows} rows", made.len());
        }
        if of != wanted {
            return exec_err!("function '{name}' gave {of}, and not {wanted}");
        }
        Ok(ColumnarValue::Array(made))
    }
}
