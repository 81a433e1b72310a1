//! `JSON_VALUE(text, '$.a[0].b')`, `JSON_QUERY` and `JSON_EXISTS` of standard SQL, as in Flink.
//!
//! A path is a constant: `$`, and behind it `.key`, `['key']` and `[number]`. Of equal keys of an
//! object the first counts.
//!
//! - `JSON_VALUE` is a string, a number or a truth value as text.
//! - `JSON_QUERY` is an object or an array, as text without blanks.
//! - `JSON_EXISTS` says whether the path leads somewhere.
//!
//! Where the path leads to nothing, or to something of another kind, where it leads to `null`, and
//! where the text is no JSON, the first two are NULL; the last is false where the path leads to
//! nothing or the text is no JSON. Texts are read to the depth that `serde_json` allows, 128. A
//! number with a point or beyond 64 bits is a `DOUBLE`.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, StringArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::expr::columnar::over_arrays;

/// All of them.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 3] {
    [Kind::Scalar, Kind::Nested, Kind::Any].map(|kind| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Function { kind, signature }))
    })
}

/// The kind of value that a path is to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// A string, a number or a truth value.
    Scalar,
    /// An object or an array.
    Nested,
    Any,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Scalar => "json_value",
            Kind::Nested => "json_query",
            Kind::Any => "json_exists",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |given: &DataType| given.is_string() || given.is_null();
        match given {
            [text, path] if is_text(text) && is_text(path) => {
                Ok(vec![DataType::Utf8, DataType::Utf8])
            }
            _ => plan_err!("write {}(text, '$.key')", self.name().to_uppercase()),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Any => DataType::Boolean,
            _ => DataType::Utf8,
        })
    }

    /// Looks at the path, too.
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        steps(args.scalar_arguments.get(1).copied().flatten())?;
        Ok(Arc::new(Field::new(self.name(), self.return_type(&[])?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let path = match &args.args[1] {
            ColumnarValue::Scalar(path) => steps(Some(path))?,
            ColumnarValue::Array(_) => steps(None)?,
        };
        over_arrays(&args.args[..1], |arrays| {
            let texts = arrays[0].as_string::<i32>().iter();
            let found = texts.map(|text| Some(found(text?, path.as_deref()?, self.kind)));
            let made: ArrayRef = match self.kind {
                Kind::Any => Arc::new(
                    found.map(|found| found.map(|found| found.is_some())).collect::<BooleanArray>(),
                ),
                _ => Arc::new(found.map(Option::flatten).collect::<StringArray>()),
            };
            Ok(made)
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// The steps of a path; `None` for NULL.
fn steps(path: Option<&ScalarValue>) -> Result<Option<Vec<Step>>> {
    let Some(path) = path.and_then(ScalarValue::try_as_str) else {
        return plan_err!("the path of a JSON function is a constant text, as '$.key[0]'");
    };
    let Some(text) = path else { return Ok(None) };
    match parsed(text) {
        Some(steps) => Ok(Some(steps)),
        None => plan_err!("'{text}' is no path of JSON: write '$.key', '$[0]' or '$[''a key'']'"),
    }
}

fn parsed(path: &str) -> Option<Vec<Step>> {
    // Both modes of the standard: paths of these steps mean the same in them.
    let path = path.trim();
    let path = path.strip_prefix("lax").or(path.strip_prefix("strict")).unwrap_or(path);
    let mut rest = path.trim_start().strip_prefix('$')?;
    let mut steps = vec![];
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(['.', '[']).unwrap_or(behind.len());
            let (key, behind) = behind.split_at(end);
            let is_plain = |letter: char| letter.is_alphanumeric() || "_-$".contains(letter);
            if key.is_empty() || !key.chars().all(is_plain) {
                return None;
            }
            steps.push(Step::Key(key.into()));
            rest = behind;
        } else if let Some(behind) = rest.strip_prefix("['") {
            let (key, behind) = behind.split_once("']")?;
            steps.push(Step::Key(key.into()));
            rest = behind;
        } else {
            let (index, behind) = rest.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Index(index.trim().parse().ok()?));
            rest = behind;
        }
    }
    Some(steps)
}

/// The value that a path leads to in a text.
fn found(text: &str, path: &[Step], kind: Kind) -> Option<String> {
    let mut found = None;
    let mut input = serde_json::Deserializer::from_str(text);
    let search = Search { path, kind, found: &mut found };
    search.deserialize(&mut input).and_then(|()| input.end()).ok()?;
    found
}

/// Follows a path into a value, and reads over the rest.
struct Search<'a> {
    path: &'a [Step],
    kind: Kind,
    found: &'a mut Option<String>,
}

impl Search<'_> {
    fn scalar(self, text: impl FnOnce() -> String) {
        if self.path.is_empty() && self.kind != Kind::Nested {
            *self.found = Some(text());
        }
    }
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.scalar(|| value.to_string());
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.scalar(|| value.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.scalar(|| value.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.scalar(|| double(value));
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.scalar(|| value.into());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        if self.kind == Kind::Any {
            self.scalar(|| "null".into());
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let (step, rest) = match self.path.split_first() {
            Some((Step::Index(index), rest)) => (Some(*index), rest),
            None if self.kind != Kind::Scalar => {
                return Compact(self.found.insert(String::new())).visit_seq(elements);
            }
            _ => (None, self.path),
        };
        let mut at = 0;
        loop {
            let is_there = if step == Some(at) {
                let search = Search { path: rest, kind: self.kind, found: &mut *self.found };
                elements.next_element_seed(search)?.is_some()
            } else {
                elements.next_element::<IgnoredAny>()?.is_some()
            };
            if !is_there {
                return Ok(());
            }
            at += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let (mut step, rest) = match self.path.split_first() {
            Some((Step::Key(key), rest)) => (Some(key.as_str()), rest),
            None if self.kind != Kind::Scalar => {
                return Compact(self.found.insert(String::new())).visit_map(entries);
            }
            _ => (None, self.path),
        };
        while let Some(is_next) = entries.next_key_seed(IsKey(step))? {
            if is_next {
                step = None;
                let search = Search { path: rest, kind: self.kind, found: &mut *self.found };
                entries.next_value_seed(search)?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Whether a key is this one.
struct IsKey<'a>(Option<&'a str>);

impl<'de> DeserializeSeed<'de> for IsKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<bool, D::Error> {
        input.deserialize_str(self)
    }
}

impl Visitor<'_> for IsKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(self.0 == Some(key))
    }
}

/// Writes a value without blanks.
struct Compact<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Compact<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Compact<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        *self.0 += if value { "true" } else { "false" };
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        *self.0 += &value.to_string();
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        *self.0 += &value.to_string();
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        *self.0 += &double(value);
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        *self.0 += &serde_json::Value::from(value).to_string();
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        *self.0 += "null";
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        self.0.push('[');
        while elements.next_element_seed(Compact(self.0))?.is_some() {
            self.0.push(',');
        }
        end(self.0, ']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.push('{');
        while entries.next_key_seed(Compact(self.0))?.is_some() {
            self.0.push(':');
            entries.next_value_seed(Compact(self.0))?;
            self.0.push(',');
        }
        end(self.0, '}');
        Ok(())
    }
}

/// Closes a list whose elements have each a comma behind them.
fn end(written: &mut String, bracket: char) {
    if written.ends_with(',') {
        written.pop();
    }
    written.push(bracket);
}

/// A number with a point or an exponent, as JSON has it.
fn double(value: f64) -> String {
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_keys_and_indices() {
        let key = |key: &str| Step::Key(key.into());
        let known = [
            ("$", vec![]),
            ("$.a.b_1", vec![key("a"), key("b_1")]),
            ("lax $.a[2]['b.c']", vec![key("a"), Step::Index(2), key("b.c")]),
            (" strict $[ 0 ]", vec![Step::Index(0)]),
        ];
        for (path, steps) in known {
            assert_eq!(parsed(path), Some(steps), "{path}");
        }
        for path in ["", "a", "$a", "$.", "$..a", "$[", "$[-1]", "$[a]", "$['a", "$.a b", "$.*"] {
            assert_eq!(parsed(path), None, "{path}");
        }
    }

    #[test]
    fn a_list_that_holds_a_comma_is_closed_once() {
        let text = r#"{"a": [",", [], {}, [1, 2.5]], "b": "x,"}"#;
        let all = found(text, &[], Kind::Nested);
        assert_eq!(all.as_deref(), Some(r#"{"a":[",",[],{},[1,2.5]],"b":"x,"}"#));
    }

    #[test]
    fn a_text_that_is_too_deep_is_none() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for kind in [Kind::Scalar, Kind::Nested, Kind::Any] {
            assert_eq!(found(&deep, &[], kind), None);
        }
    }
}
