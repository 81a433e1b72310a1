//! Errors of DataFusion and Arrow in the words of SQL.
//!
//! A message that is known is said in ours, with a hint and the words at which it may stand; of any
//! other, types and literals are written as SQL has them.

use arrow::datatypes::DataType;

use crate::text::names::plain;
use crate::text::types::sql_name;

/// A message: theirs and ours, a hint, and the words of the statement that it is about.
struct Phrase {
    /// Each `{}` is any text.
    theirs: &'static str,
    /// `{0}` is the first of these texts.
    ours: &'static str,
    hint: &'static str,
    words: &'static [&'static str],
}

const fn phrase(
    theirs: &'static str,
    ours: &'static str,
    hint: &'static str,
    words: &'static [&'static str],
) -> Phrase {
    Phrase { theirs, ours, hint, words }
}

const ONE_TYPE: &str = "CAST one of both";
const COMPARE: &str = "compare it with something: … <> 0";
const OR_NULL: &str = "TRY_CAST gives NULL in its place";
const OR_WIDER: &str = "CAST the number to a wider type first";
const REGULAR: &str = "the pattern is no regular expression: {1}";

const PHRASES: &[Phrase] = &[
    phrase("Cannot cast string '{}' to value of {} type", "'{0}' is no {1}", OR_NULL, &[]),
    phrase("Can't cast value {} to type {}", "{0} does not fit {1}", OR_NULL, &["CAST"]),
    phrase("Error parsing timestamp from '{}': {}", "'{0}' is no TIMESTAMP", OR_NULL, &[]),
    phrase(
        "Unable to cast to Date32 for converting from i64 to i32 failed",
        "a text is no DATE",
        "",
        &["TO_DATE", "DATE"],
    ),
    phrase(
        "Invalid input syntax for type interval: \"{}\"",
        "'{0}' is no INTERVAL",
        "",
        &["INTERVAL"],
    ),
    phrase(
        "There is only support Literal types for field at idx: {} in Window Function",
        "this argument of a function with OVER is a constant",
        "",
        &[],
    ),
    phrase("Invalid timezone \"{}\": {}", "there is no time zone '{0}'", "", &["ZONE"]),
    phrase(
        "{} is too large to store in a Decimal{} of precision {}. Max is {}",
        "{0} does not fit a DECIMAL of {2} digits, whose greatest value is {3}",
        OR_NULL,
        &["CAST"],
    ),
    phrase(
        "{} is too small to store in a Decimal{} of precision {}. Min is {}",
        "{0} does not fit a DECIMAL of {2} digits, whose least value is {3}",
        OR_NULL,
        &["CAST"],
    ),
    phrase("{}Array overflow on abs({})", "abs({1}) does not fit {0}", OR_WIDER, &["ABS"]),
    phrase("Divide by zero", "division by zero", "x / NULLIF(y, 0) is NULL there", &["/", "%"]),
    phrase("regex parse error:{}\nerror: {}", REGULAR, "", &["SIMILAR"]),
    phrase("failed to call 'regex_match_dyn_scalar'{}\nerror: {}", REGULAR, "", &["SIMILAR", "~"]),
    phrase(
        "Cannot coerce arithmetic expression {} to valid types",
        "there is no operation {0}",
        ONE_TYPE,
        &[],
    ),
    phrase(
        "Cannot get result type for temporal operation {}: {}",
        "there is no operation {0}",
        "",
        &[],
    ),
    phrase(
        "COUNT DISTINCT with multiple arguments",
        "count(DISTINCT …) takes one argument",
        "count(DISTINCT (a, b)) counts rows of both",
        &["COUNT"],
    ),
    phrase(
        "Unsupported Interval Expression with last_field {}",
        "an INTERVAL has one unit",
        "write INTERVAL '14' MONTH",
        &["INTERVAL"],
    ),
    phrase(
        "Cannot get result type for arithmetic operation {}: {}",
        "there is no operation {0}",
        ONE_TYPE,
        &[],
    ),
    phrase(
        "Cannot infer common argument type for comparison operation {}",
        "there is no comparison {0}",
        ONE_TYPE,
        &["INTERSECT", "EXCEPT", "IS"],
    ),
    phrase(
        "There isn't a common type to coerce {} and {} in {} expression",
        "{2} compares texts, and these are {0} and {1}",
        "CAST to STRING",
        &["LIKE", "ILIKE", "SIMILAR"],
    ),
    phrase(
        "Failed to coerce types {} and {} in BETWEEN expression",
        "BETWEEN compares what has a type in common, and these are {0} and {1}",
        "CAST them to one type",
        &["BETWEEN"],
    ),
    phrase(
        "expr type {} can't cast to {} in InSubquery",
        "{0} is compared with values of a subquery that are {1}",
        ONE_TYPE,
        &["IN"],
    ),
    phrase(
        "Failed to coerce then ({}) and else ({}) to common types in CASE WHEN expression",
        "the branches of CASE have no type in common: {0}, {1}",
        "CAST them to one type",
        &["CASE"],
    ),
    phrase(
        "Failed to coerce case ({}) and when ({}) to common types in CASE WHEN expression",
        "CASE has no type in common with what it is compared with: {0}, {1}",
        "CAST them to one type",
        &["CASE"],
    ),
    phrase(
        "Cannot create filter with non-boolean predicate '{}' returning {}",
        "a condition is BOOLEAN, and this is {1}",
        COMPARE,
        &["WHERE"],
    ),
    phrase(
        "join condition must be boolean type, but got {}",
        "a condition is BOOLEAN, and this is {0}",
        COMPARE,
        &["ON"],
    ),
    phrase(
        "Cannot infer common argument type for logical boolean operation {} AND {}",
        "AND takes conditions, which are BOOLEAN, and these are {0} and {1}",
        COMPARE,
        &["AND"],
    ),
    phrase(
        "Cannot infer common argument type for logical boolean operation {} OR {}",
        "OR takes conditions, which are BOOLEAN, and these are {0} and {1}",
        COMPARE,
        &["OR"],
    ),
    phrase("Unsupported CAST from {} to {}", "{0} cannot be CAST to {1}", "", &["CAST", "::"]),
    phrase("Casting from {} to {} not supported", "{0} cannot be CAST to {1}", "", &["CAST"]),
    phrase("Cannot automatically convert {} to {}", "{0} is no {1}, which this takes", "", &[]),
    phrase("Unary operator '-' {}", "'-' takes a number or an INTERVAL", "", &["-"]),
    phrase(
        "Unary operator 'NOT' {}, got {}",
        "a condition is BOOLEAN, and this is {1}",
        COMPARE,
        &["NOT"],
    ),
    phrase(
        "Aggregate functions are not allowed in the WHERE clause. Consider using HAVING instead",
        "an aggregate cannot stand in WHERE: there are no groups yet",
        "write it in HAVING",
        &["WHERE"],
    ),
    phrase(
        "HAVING clause references: {} must appear in the GROUP BY clause or be used in an \
         aggregate function",
        "HAVING looks at what is neither grouped by nor aggregated: {0}",
        "write it in WHERE, or GROUP BY it too",
        &["HAVING"],
    ),
    phrase(
        "Order by column out of bounds, specified: {}, max: {}",
        "ORDER BY {0}: there is no column of that number, but 1 to {1}",
        "",
        &["ORDER"],
    ),
    phrase(
        "Cannot find column with position {} in SELECT clause. Valid columns: 1 to {}",
        "GROUP BY {0}: there is no column of that number, but 1 to {1}",
        "",
        &["GROUP"],
    ),
    phrase(
        "Expected LIMIT to be an integer or null, but got {}",
        "LIMIT takes a number of rows, and this is {0}",
        "",
        &["LIMIT"],
    ),
    phrase(
        "LIMIT must be >= 0, '{}' was provided",
        "LIMIT takes a number from 0, not {0}",
        "",
        &["LIMIT"],
    ),
    phrase(
        "OFFSET must be >=0, '{}' was provided",
        "OFFSET takes a number from 0, not {0}",
        "",
        &["OFFSET"],
    ),
    phrase(
        "{} queries have different number of columns",
        "the two sides of {0} have different numbers of columns",
        "",
        &["UNION", "EXCEPT", "INTERSECT"],
    ),
    phrase(
        "Scalar subquery returned more than one row",
        "a subquery that stands for a value has more than one row",
        "",
        &[],
    ),
    phrase(
        "Inconsistent data length across values list: got {} values in row {} but expected {}",
        "a row of VALUES has {0} values, and the first has {2}",
        "",
        &["VALUES"],
    ),
    phrase(
        "Source table contains {} columns but only {} names given as column alias",
        "names are given to {1} of {0} columns",
        "",
        &["AS"],
    ),
    phrase(
        "The window {} is not defined!",
        "there is no window '{0}'",
        "define it: … FROM t WINDOW w AS (ORDER BY …)",
        &["OVER"],
    ),
    phrase(
        "SELECT list is empty after resolving * expressions{}",
        "no column is left of the star",
        "leave out fewer",
        &["EXCLUDE", "EXCEPT"],
    ),
    phrase(
        "Cannot infer common argument type for logical boolean operation {}",
        "AND and OR take BOOLEAN values",
        "compare it with something",
        &["AND", "OR"],
    ),
    phrase(
        "aggregate function calls cannot be nested: '{}' is nested inside '{}'",
        "an aggregate cannot stand within another one",
        "compute the inner one in a subquery",
        &[],
    ),
    phrase("Function '{}' expects {} but received {}", "{0} takes {1}, and this is {2}", "", &[]),
    phrase(
        "Function '{}' requires {}, but received {} (",
        "{0} takes {1}, and this is {2}",
        "",
        &[],
    ),
    phrase(
        "Cannot get result type for temporal operation {}: {}",
        "there is no operation {0}",
        "",
        &[],
    ),
    phrase(
        "Can not find compatible types to compare {} with {}",
        "IN compares with values of one type, and these are {0} and {1}",
        "CAST them to one type",
        &["IN"],
    ),
    phrase(
        "Incompatible inputs for Union: Previous inputs were of type {}, but got incompatible type \
         {} on column '{}'",
        "the sides of UNION have no type in common: {0}, and {1} in column '{2}'",
        "CAST them to one type",
        &["UNION"],
    ),
    phrase(
        "Invalid comparison operation: {} == {}",
        "there is no comparison {0} = {1}",
        "a key of a MAP is looked up by a value of its type",
        &["["],
    ),
    phrase(
        "Granularity of `date_trunc` must be non-null scalar {}",
        "the unit of DATE_TRUNC is a constant: 'hour', 'day', …",
        "",
        &["DATE_TRUNC"],
    ),
    phrase(
        "First argument of `DATE_PART` must be non-null scalar {}",
        "the part of DATE_PART is a constant: 'hour', 'year', …",
        "",
        &["DATE_PART"],
    ),
    phrase("Field {} not found in struct", "there is no field '{0}'", "", &[]),
    phrase("Invalid qualifier {}", "unknown table '{0}' in this query", "", &[]),
    phrase(
        "Invalid identifier in USING clause. Expected single identifier, got {}",
        "USING takes names of columns, without a table",
        "write USING (k)",
        &["USING"],
    ),
    phrase(
        "Cannot access field at argument 1: type {} is not Struct, Map, or Null",
        "{0} has no fields",
        "a column hides a table of its name: give the table another one with AS",
        &[],
    ),
    phrase(
        "unnest() can only be applied to array, struct and null",
        "UNNEST takes an ARRAY",
        "",
        &["UNNEST"],
    ),
    phrase("Expected an integer value", "LAG and LEAD take a number of rows", "", &["LAG", "LEAD"]),
    phrase("variable [\"{}\"] has no type information", "there is no variable '{0}'", "", &[]),
    phrase(
        "Placeholder '{}' was not provided a value for execution",
        "'{0}' stands for a value, and none is given",
        "",
        &[],
    ),
    phrase(
        "substring without for/from is not valid {}",
        "SUBSTRING takes where it begins",
        "substring(s, 1, 3), or substring(s FROM 1 FOR 3)",
        &["SUBSTRING"],
    ),
    phrase("Date part '{}' not supported", "a time has no part '{0}'", "", &["EXTRACT"]),
    phrase(
        "Min/Max accumulator not implemented for type {}",
        "min and max do not take {0}",
        "",
        &["MIN", "MAX"],
    ),
    phrase(
        "[return_type] SUM not supported for {}",
        "sum does not take {0} without a type",
        "CAST it",
        &["SUM"],
    ),
    phrase("avgAccumulator for ({} --> {})", "avg does not take {0}", "CAST it", &["AVG"]),
    phrase(
        "Support for 'approx_distinct' for data type {} is not implemented",
        "approx_distinct does not take {0}",
        "CAST it to STRING or DECIMAL",
        &["APPROX_DISTINCT"],
    ),
    phrase(
        "Unsupported date_trunc granularity: '{}'. Supported values are: {}",
        "DATE_TRUNC has no unit '{0}': there are {1}",
        "",
        &["DATE_TRUNC"],
    ),
    phrase(
        "RANGE requires exactly one ORDER BY column",
        "RANGE with a distance takes an ORDER BY of one expression",
        "",
        &["RANGE"],
    ),
];

/// The kinds of errors that stand in front of a message.
const KINDS: &[&str] = &[
    "Cast error: ",
    "Parser error: ",
    "Compute error: ",
    "Invalid argument error: ",
    "Execution error: ",
    "Internal error: ",
    "Error during planning: ",
];

/// DataFusion's names of kinds of types, in its signatures.
const KINDS_OF_TYPES: &[(&str, &str)] = &[
    ("NullAry()", ""),
    ("Numeric", "a number"),
    ("Decimal", "DECIMAL"),
    ("Integer", "INT"),
    ("String", "STRING"),
    ("Timestamp", "TIMESTAMP"),
    ("Time", "TIME"),
    ("Duration", "INTERVAL"),
    ("Interval", "INTERVAL"),
    ("Float", "FLOAT"),
    ("Null", "NULL"),
    ("array", "ARRAY"),
];

/// A message of DataFusion, reworded.
pub(crate) struct Reworded {
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
    pub(crate) words: &'static [&'static str],
    /// The names in it.
    pub(crate) texts: Vec<String>,
}

/// A message in our words, if it is known.
pub(crate) fn reworded(message: &str) -> Option<Reworded> {
    let bare = without_kind(message);
    PHRASES.iter().find_map(|phrase| {
        let texts = texts_of(phrase.theirs, bare)?;
        let mut message = phrase.ours.to_owned();
        for (at, text) in texts.iter().enumerate() {
            let line = text.trim().lines().next().unwrap_or_default();
            let text = match KINDS_OF_TYPES.iter().find(|(theirs, _)| *theirs == line) {
                Some((_, ours)) if phrase.theirs.starts_with("Function ") => (*ours).to_owned(),
                _ => in_sql(line.trim_end_matches('.')),
            };
            message = message.replace(&format!("{{{at}}}"), &text);
        }
        let hint = Some(phrase.hint).filter(|hint| !hint.is_empty());
        let texts = texts.into_iter().map(str::to_owned).collect();
        Some(Reworded { message, hint, words: phrase.words, texts })
    })
}

/// The message of a failure at run time, in the words of this engine where it has some.
pub(crate) fn runtime_message(message: &str) -> String {
    reworded(message).map_or_else(|| in_sql(without_kind(message)), |reworded| reworded.message)
}

/// A message without the kinds of errors in front of it.
fn without_kind(message: &str) -> &str {
    let mut bare = message;
    while let Some(behind) = KINDS.iter().find_map(|kind| bare.strip_prefix(kind)) {
        bare = behind;
    }
    bare
}

/// The texts that stand for each `{}` of a pattern with which a message begins.
fn texts_of<'a>(pattern: &str, message: &'a str) -> Option<Vec<&'a str>> {
    let mut pieces = pattern.split("{}");
    let start = pieces.next()?;
    let begins = message.get(..start.len())?.eq_ignore_ascii_case(start);
    let mut rest = begins.then(|| &message[start.len()..])?;
    let mut texts = vec![];
    for piece in pieces {
        let at = if piece.is_empty() { rest.len() } else { rest.find(piece)? };
        texts.push(&rest[..at]);
        rest = &rest[at + piece.len()..];
    }
    Some(texts)
}

/// A message with literals and types as SQL has them.
pub(crate) fn in_sql(message: &str) -> String {
    let text = plain(message);
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(start) = rest.find(is_of_word) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let whole = end + closed(&rest[end..]);
        let of = |to: usize| Some((rest[..to].parse::<DataType>().ok()?, to));
        // A number may only be a part of a type's name.
        let named = rest.starts_with(|c: char| c.is_ascii_uppercase());
        match named.then(|| of(whole).or_else(|| of(end))).flatten() {
            Some((of, to)) => {
                out.push_str(&sql_name(&of));
                rest = &rest[to..];
            }
            None => {
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
        }
    }
    out + rest
}

/// How long the parentheses are with which a text begins.
fn closed(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if c == ')' { at + 1 } else { 0 };
        }
    }
    0
}

/// The arguments that a function takes, of which DataFusion tells the signatures; none where it
/// tells nothing that one can read.
pub(crate) fn signatures(list: &str) -> Option<String> {
    if ["UserDefined", "Comparable", "Any(", "Variadic"].iter().any(|word| list.contains(word)) {
        return None;
    }
    let mut known: Vec<String> = vec![];
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, args) = line.split_once('(').unwrap_or((line, ""));
        let mut args = in_sql(args);
        args = args.replace("Numeric(1)", "number");
        for (theirs, ours) in KINDS_OF_TYPES {
            args = replaced(&args, theirs, ours);
        }
        let line = format!("{name}({args}");
        if !known.contains(&line) {
            known.push(line);
        }
    }
    (!known.is_empty()).then(|| known.join(", "))
}

/// A text with one word in place of another.
fn replaced(text: &str, theirs: &str, ours: &str) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(theirs) {
        let (before, after) = (&rest[..at], &rest[at + theirs.len()..]);
        let alone = !before.ends_with(is_of_word) && !after.starts_with(is_of_word);
        out.push_str(before);
        out.push_str(if alone { ours } else { theirs });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_said_in_the_words_of_sql() {
        let cases = [
            ("Cast error: Cannot cast string 'a' to value of Int32 type", "'a' is no INT"),
            (
                "There is only support Literal types for field at idx: 1 in Window Function",
                "this argument of a function with OVER is a constant",
            ),
            ("Divide by zero error", "division by zero"),
            (
                "Invalid argument error: 1000.0 is too large to store in a Decimal128 of precision \
                 3. Max is 99.9",
                "1000.0 does not fit a DECIMAL of 3 digits, whose greatest value is 99.9",
            ),
            ("Compute error: no such Utf8", "no such STRING"),
            ("Compute error: Int64Array overflow on abs(-9)", "abs(-9) does not fit BIGINT"),
            (
                "Cannot coerce arithmetic expression Utf8 + Int64 to valid types",
                "there is no operation STRING + BIGINT",
            ),
            (
                "Internal error: failed to call 'regex_match_dyn_scalar' Compute error: x\nerror: \
                 unclosed group\n~~~",
                "the pattern is no regular expression: unclosed group",
            ),
        ];
        for (theirs, ours) in cases {
            assert_eq!(runtime_message(theirs), ours);
        }
        assert_eq!(runtime_message("Of List(Int64) and Int8x, 8"), "Of ARRAY<BIGINT> and Int8x, 8");
        assert_eq!(
            in_sql("Struct(\"c0\": Int64) = Timestamp(µs)"),
            "ROW<c0 BIGINT> = TIMESTAMP(6)"
        );
    }

    #[test]
    fn a_pattern_takes_what_stands_between_its_words() {
        assert_eq!(texts_of("a {} c {}", "a b c d e"), Some(vec!["b", "d e"]));
        assert_eq!(texts_of("a {} c", "A b d"), None);
        assert_eq!(texts_of("ä{}", "a"), None);
    }

    #[test]
    fn signatures_are_types() {
        let list = "rank(NullAry())\nf(expr: Float, Utf8)\nf(expr: Float, Utf8)\n";
        assert_eq!(signatures(list).as_deref(), Some("rank(), f(expr: FLOAT, STRING)"));
        assert_eq!(signatures("coalesce(UserDefined)"), None);
    }
}
