//! Names of result columns that nobody named.
//!
//! DataFusion names a column after its expression, with the type of each literal and the table of
//! each column: `Int64(1)`, `t.v + Int64(1)`, `Utf8("a")`. Who reads rows expects the literal as it
//! was written, and the table only where it tells two columns apart.

use std::collections::{BTreeSet, HashMap, HashSet};

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::LogicalPlan;

/// The table of merged columns, which nobody names: a column needs one to stand beside others in
/// the condition of a join.
pub(crate) const MERGED: &str = "__merged";

/// Types that DataFusion puts around a literal.
const TYPES: [&str; 13] = [
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "Float32",
    "Float64",
    "Boolean",
    "Utf8",
    "LargeUtf8",
];

/// The type that DataFusion puts around an interval, whose fields it shows.
const INTERVAL: &str = "IntervalMonthDayNano";

/// Units of an interval that has no months and days, in nanoseconds.
const UNITS: [(i64, &str); 3] =
    [(3_600_000_000_000, "HOUR"), (60_000_000_000, "MINUTE"), (1_000_000_000, "SECOND")];

/// The columns of `schema`, which `plan` gives out, with plain names; as they were where two would
/// have the same.
pub(crate) fn with_plain_names(schema: &SchemaRef, plan: &LogicalPlan) -> SchemaRef {
    named_plainly(schema, &tables(plan))
}

/// The names of the tables whose columns a plan speaks of.
fn tables(plan: &LogicalPlan) -> BTreeSet<String> {
    let mut tables = BTreeSet::new();
    // The closure never fails.
    let _ = plan.apply(|node| {
        let qualifiers = node.schema().iter().filter_map(|(qualifier, _)| qualifier);
        tables.extend(qualifiers.map(|qualifier| qualifier.table().to_owned()));
        Ok(TreeNodeRecursion::Continue)
    });
    tables
}

fn named_plainly(schema: &SchemaRef, tables: &BTreeSet<String>) -> SchemaRef {
    // A column that joins merge has no table that anybody named.
    let merged = format!("{MERGED}.");
    let names = schema.fields().iter().map(|field| plain(field.name()).replace(&merged, ""));
    let names: Vec<String> = names.collect();
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        return schema.clone();
    }
    let short: Vec<String> = names.iter().map(|name| without_tables(name, tables)).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (name, short) in names.iter().zip(&short) {
        *counts.entry(short).or_default() += 1;
        // A column whose short name is its name is counted once.
        *counts.entry(name).or_default() += usize::from(name != short);
    }
    let alone = |at: usize| counts[short[at].as_str()] == 1;
    let chosen = (0..names.len()).map(|at| if alone(at) { &short[at] } else { &names[at] });
    let names: Vec<String> = chosen.cloned().collect();
    let fields = schema.fields().iter().zip(names);
    let fields: Vec<_> =
        fields.map(|(field, name)| field.as_ref().clone().with_name(name)).collect();
    Schema::new(fields).into()
}

/// A name without the types of literals.
pub(crate) fn plain(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(open) = rest.find('(') {
        let before = |c: char| !c.is_alphanumeric() && c != '_';
        let word = rest[..open].trim_end_matches(|c| !before(c)).len();
        let literal = match &rest[word..open] {
            INTERVAL => interval(&rest[open + 1..]),
            name if TYPES.contains(&name) => literal(&rest[open + 1..]),
            _ => None,
        };
        match literal {
            Some((text, after)) => {
                out.push_str(&rest[..word]);
                out.push_str(&text);
                rest = after;
            }
            None => {
                out.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
            }
        }
    }
    out + rest
}

/// A name without the tables of columns. Literals stay as they are.
fn without_tables(name: &str, tables: &BTreeSet<String>) -> String {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    // A name that is a word with points may be one of the data.
    if name.chars().all(|c| is_of_word(c) || c == '.') {
        return name.to_owned();
    }
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            c if is_of_word(c) => rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (piece, after) = rest.split_at(length);
        let column = after.strip_prefix('.').filter(|column| column.starts_with(is_of_word));
        match column.filter(|_| tables.contains(piece) && !out.ends_with('.')) {
            Some(column) => rest = column,
            None => {
                out.push_str(piece);
                rest = after;
            }
        }
    }
    out
}

/// The literal at the beginning of `text`, and what follows its closing bracket.
fn literal(text: &str) -> Option<(String, &str)> {
    match text.strip_prefix('"') {
        Some(quoted) => {
            let (inner, after) = quoted.split_once("\")")?;
            Some((format!("'{inner}'"), after))
        }
        None => text.split_once(')').map(|(inner, after)| (inner.to_owned(), after)),
    }
}

/// The same of an interval of one unit.
fn interval(text: &str) -> Option<(String, &str)> {
    let (inner, after) = text.strip_prefix('"')?.split_once("\")")?;
    let fields = inner.strip_prefix(INTERVAL)?.strip_prefix(" { ")?.strip_suffix(" }")?;
    let mut fields = fields.split(", ");
    let mut field = |name: &str| -> Option<i64> {
        fields.next()?.strip_prefix(name)?.strip_prefix(": ")?.parse().ok()
    };
    let (length, unit) = match (field("months")?, field("days")?, field("nanoseconds")?) {
        (months, 0, 0) if months != 0 => (months.to_string(), "MONTH"),
        (0, days, 0) if days != 0 => (days.to_string(), "DAY"),
        (0, 0, ns) => match UNITS.iter().find(|(of, _)| ns % of == 0) {
            Some((of, unit)) => ((ns / of).to_string(), *unit),
            None => {
                let (sign, ns) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
                let fraction = format!("{:09}", ns % 1_000_000_000);
                let fraction = fraction.trim_end_matches('0');
                (format!("{sign}{}.{fraction}", ns / 1_000_000_000), "SECOND")
            }
        },
        _ => return None,
    };
    Some((format!("INTERVAL '{length}' {unit}"), after))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn literals_stand_as_they_were_written() {
        for (name, expected) in [
            ("Int64(1)", "1"),
            ("t.v + Int64(1)", "t.v + 1"),
            ("sum(t.v * Float64(1.5))", "sum(t.v * 1.5)"),
            ("Utf8(\"a (b)\") || größe", "'a (b)' || größe"),
            ("größeInt64(x)", "größeInt64(x)"),
            ("count(*)", "count(*)"),
            ("NULL", "NULL"),
            ("myInt64(x)", "myInt64(x)"),
            ("Int64(", "Int64("),
            (
                "ts + IntervalMonthDayNano(\"IntervalMonthDayNano { months: 0, days: 0, \
                 nanoseconds: 300000000000 }\") + Int64(1)",
                "ts + INTERVAL '5' MINUTE + 1",
            ),
            (
                "IntervalMonthDayNano(\"IntervalMonthDayNano { months: -14, days: 0, nanoseconds: \
                 0 }\")",
                "INTERVAL '-14' MONTH",
            ),
            (
                "IntervalMonthDayNano(\"IntervalMonthDayNano { months: 0, days: 7, nanoseconds: 0 \
                 }\")",
                "INTERVAL '7' DAY",
            ),
            (
                "IntervalMonthDayNano(\"IntervalMonthDayNano { months: 0, days: 0, nanoseconds: \
                 -1500000000 }\")",
                "INTERVAL '-1.5' SECOND",
            ),
            ("IntervalMonthDayNano(\"1 day\")", "IntervalMonthDayNano(\"1 day\")"),
        ] {
            assert_eq!(plain(name), expected);
        }
    }

    #[test]
    fn names_stay_apart() {
        let schema = |names: [&str; 2]| -> SchemaRef {
            let field = |name| Field::new(name, DataType::Int64, true);
            Arc::new(Schema::new(names.map(field).to_vec()))
        };
        let shown = |names| named_plainly(&schema(names), &["t", "u"].map(String::from).into());
        let same = ["Int64(1)", "Int32(1)"];
        assert_eq!(shown(same), schema(same));
        assert_eq!(shown(["Int64(1)", "Int64(2)"]), schema(["1", "2"]));
        assert_eq!(shown(["sum(t.v)", "t.v + u.w"]), schema(["sum(v)", "v + w"]));
        let apart = ["max(t.v)", "max(u.v)"];
        assert_eq!(shown(apart), schema(apart));
        assert_eq!(shown(["t.v", "x.v + 1.5"]), schema(["t.v", "x.v + 1.5"]));
        let text = ["t.v || Utf8(\"a t.v\")", "t.s[u.x]"];
        assert_eq!(shown(text), schema(["v || 'a t.v'", "s[x]"]));
    }
}
