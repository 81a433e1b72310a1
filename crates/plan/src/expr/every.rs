//! Functions that act on every match, as in Flink, where DataFusion's act on the first one.
//!
//! `REGEXP_REPLACE(s, pattern, by)` and `ARRAY_REMOVE(array, element)`. With flags,
//! `REGEXP_REPLACE` does what they say: `g` is all matches.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::regex::regexp_replace;
use datafusion::functions_nested::remove::array_remove_all_udf;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// All of them.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 2] {
    let removing = Every {
        name: "array_remove",
        aliases: vec!["list_remove".into()],
        datafusion: array_remove_all_udf(),
    };
    let replacing = Every { name: "regexp_replace", aliases: vec![], datafusion: regexp_replace() };
    [removing, replacing].map(|function| Arc::new(ScalarUDF::from(function)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Every {
    name: &'static str,
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
        if self.name == "regexp_replace" && args.args.len() == 3 {
            let flags = ScalarValue::Utf8(Some("g".into()));
            args.arg_fields.push(Arc::new(Field::new("flags", flags.data_type(), false)));
            args.args.push(ColumnarValue::Scalar(flags));
        }
        self.datafusion.invoke_with_args(args)
    }
}
