//! Checks of `FROM`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, Query, SelectItem, SetExpr,
    Spanned, TableAlias, TableAliasColumnDef, TableFactor, TableFunctionArgs, TableSample,
    TableSampleKind, TableSampleModifier, TableWithJoins, visit_expressions,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::{At, Checked, Refused};
use crate::text::syntax::WINDOW_CALL;

/// The error of a join other than CROSS JOIN without a condition. It is placed at `JOIN`.
pub(crate) const NO_CONDITION: &str = "a JOIN takes a condition";

/// Words that the parser takes for another name of a table where they follow it, and that are
/// clauses of other systems.
const NO_NAMES: &[&str] = &[
    "ALL",
    "ANTI",
    "ANY",
    "APPLY",
    "ASOF",
    "FINAL",
    "GLOBAL",
    "NOLOCK",
    "PASTE",
    "POSITIONAL",
    "PREWHERE",
    "SAMPLE",
    "SEMI",
    "TABLESAMPLE",
];

/// The name of a table in a query, and of its columns.
pub(super) fn alias(alias: Option<&TableAlias>) -> Checked {
    let Some(TableAlias { explicit, name, columns, at }) = alias else { return Ok(()) };
    let is_clause = NO_NAMES.iter().any(|word| name.value.eq_ignore_ascii_case(word));
    if is_clause && !explicit && name.quote_style.is_none() {
        let hint = "to call the table so, write AS in front of the word";
        return Refused::hinted(&name.value, At::Here(name.span), hint);
    }
    for TableAliasColumnDef { name, data_type } in columns {
        if data_type.is_some() {
            let message = format!("column '{}' has its type from the query", name.value);
            let (words, at) = (name.value.clone(), At::Here(name.span));
            return Err(Refused { words, at, message: Some(message), hint: Some("CAST it there") });
        }
    }
    match at {
        Some(at) => Refused::new("AT", At::Before(at.span)),
        None => Ok(()),
    }
}

/// Refuses two tables of one name.
pub(super) fn each_once(from: &[TableWithJoins]) -> Checked {
    let mut names: Vec<&Ident> = vec![];
    from.iter().for_each(|table| called(table, &mut names));
    let is_again = |at: &usize| names[..*at].iter().any(|first| first.value == names[*at].value);
    match (0..names.len()).find(is_again).map(|at| names[at]) {
        Some(Ident { value, span, .. }) => {
            let message = format!("FROM names two tables '{value}'");
            Refused::with_hint(value, At::Here(*span), &message, "give one another name with AS")
        }
        None => Ok(()),
    }
}

/// The names by which the columns of a table, and of what is joined to it, are known.
fn called<'a>(table: &'a TableWithJoins, names: &mut Vec<&'a Ident>) {
    let TableWithJoins { relation, joins } = table;
    for table in std::iter::once(relation).chain(joins.iter().map(|join| &join.relation)) {
        match table {
            TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. }
            | TableFactor::NestedJoin { alias: Some(alias), .. } => names.push(&alias.name),
            TableFactor::Table { name, alias: None, .. } => {
                names.extend(name.0.last().and_then(|part| part.as_ident()));
            }
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                called(table_with_joins, names);
            }
            TableFactor::Derived { subquery, alias: None, .. } if is_window(subquery) => {
                if let SetExpr::Select(select) = &*subquery.body {
                    select.from.iter().for_each(|table| called(table, names));
                }
            }
            _ => {}
        }
    }
}

/// Whether a query stands for a window in FROM.
fn is_window(query: &Query) -> bool {
    let SetExpr::Select(select) = &*query.body else { return false };
    let Some(SelectItem::UnnamedExpr(Expr::Function(call))) = select.projection.first() else {
        return false;
    };
    let name = call.name.0.first().and_then(|part| part.as_ident());
    name.is_some_and(|name| name.value == WINDOW_CALL)
}

/// A table with what is joined to it.
pub(super) fn joined(table: &mut TableWithJoins) -> Checked {
    let TableWithJoins { relation, joins } = table;
    alias(alias_of(relation))?;
    joins.iter_mut().try_for_each(|joined| {
        join(joined)?;
        alias(alias_of(&joined.relation))
    })
}

/// The name of a table in front of a join, which may be a word that belongs to the join.
fn alias_of(table: &TableFactor) -> Option<&TableAlias> {
    match table {
        TableFactor::Table { alias, .. } | TableFactor::Derived { alias, .. } => alias.as_ref(),
        _ => None,
    }
}

pub(super) fn join(join: &mut Join) -> Checked {
    let Join { relation, global, join_operator } = join;
    let before = |words: &str| Refused::new(words, At::Before(relation.span()));
    if *global {
        return before("GLOBAL");
    }
    use JoinOperator::{
        Anti, ArrayJoin, AsOf, CrossApply, CrossJoin, FullOuter, Inner, InnerArrayJoin,
        Join as Plain, Left, LeftAnti, LeftArrayJoin, LeftOuter, LeftSemi, OuterApply, Right,
        RightAnti, RightOuter, RightSemi, Semi, StraightJoin,
    };
    if let Semi(constraint) | Anti(constraint) = join_operator {
        let constraint = std::mem::replace(constraint, JoinConstraint::None);
        *join_operator = match join_operator {
            Semi(_) => LeftSemi(constraint),
            _ => LeftAnti(constraint),
        };
    }
    match join_operator {
        Plain(on) | Inner(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on)
        | FullOuter(on) | LeftSemi(on) | RightSemi(on) | LeftAnti(on) | RightAnti(on) => match on {
            JoinConstraint::On(condition) => super::exprs::condition(condition),
            JoinConstraint::Using(_) | JoinConstraint::Natural => Ok(()),
            JoinConstraint::None => {
                let hint = "write ON or USING, or CROSS JOIN for each row with each";
                Refused::with_hint("JOIN", At::Before(relation.span()), NO_CONDITION, hint)
            }
        },
        CrossJoin(JoinConstraint::None) => Ok(()),
        CrossJoin(_) => Refused::hinted(
            "CROSS JOIN",
            At::Before(relation.span()),
            "a CROSS JOIN has no condition: write JOIN",
        ),
        Semi(_) => before("SEMI JOIN"),
        Anti(_) => before("ANTI JOIN"),
        CrossApply => Refused::hinted(
            "CROSS APPLY",
            At::Before(relation.span()),
            "write CROSS JOIN LATERAL (…)",
        ),
        OuterApply => before("OUTER APPLY"),
        AsOf { match_condition: _, constraint: _ } => before("ASOF JOIN"),
        StraightJoin(_) => before("STRAIGHT_JOIN"),
        ArrayJoin | LeftArrayJoin | InnerArrayJoin => {
            Refused::hinted("ARRAY JOIN", At::Before(relation.span()), "write CROSS JOIN UNNEST(…)")
        }
    }
}

pub(super) fn table_factor(table: &mut TableFactor) -> Checked {
    match table {
        TableFactor::Table {
            name,
            alias: called,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } => {
            named_table(name, args.as_ref(), sample.as_ref())?;
            let span = name.span();
            let clauses = [
                (!with_hints.is_empty(), "WITH"),
                (version.is_some(), "FOR"),
                (*with_ordinality, "WITH ORDINALITY"),
                (!partitions.is_empty(), "PARTITION"),
                (json_path.is_some(), "["),
                (!index_hints.is_empty(), "INDEX"),
            ];
            first(&clauses, At::Behind(span))?;
            alias(called.as_ref())
        }
        TableFactor::Derived { lateral: _, subquery, alias: called, sample } => {
            sampled(sample.as_ref(), subquery.body.span())?;
            alias(called.as_ref())
        }
        TableFactor::UNNEST {
            alias: called,
            array_exprs,
            with_offset,
            with_offset_alias: _,
            with_ordinality,
        } => {
            array_exprs.iter().try_for_each(of_no_row)?;
            let clauses = [(*with_offset, "WITH OFFSET"), (*with_ordinality, "WITH ORDINALITY")];
            let behind = array_exprs.last().map_or(Span::empty(), Spanned::span);
            first(&clauses, At::Behind(behind))?;
            alias(called.as_ref())
        }
        TableFactor::NestedJoin { table_with_joins, alias: called } => {
            joined(table_with_joins)?;
            alias(called.as_ref())
        }
        TableFactor::TableFunction { expr, alias: _ } => {
            let message = "there are no table functions but windows";
            let hint = "there are TUMBLE, HOP, CUMULATE, SESSION and UNNEST";
            Refused::with_hint("TABLE", At::Before(expr.span()), message, hint)
        }
        TableFactor::Function { lateral: _, name, args: _, with_ordinality: _, alias: _ } => {
            unknown_function(name)
        }
        other => no_table(other),
    }
}

/// An expression in FROM sees no row of the tables beside it.
fn of_no_row(array: &Expr) -> Checked {
    let column = visit_expressions(array, |part| match part {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(part.clone()),
        _ => ControlFlow::Continue(()),
    });
    match column {
        ControlFlow::Break(column) => {
            let words = column.to_string();
            let message = format!("UNNEST in FROM sees no column of other tables: '{words}'");
            let hint = "write it in SELECT: SELECT t.*, UNNEST(t.list) AS item FROM t";
            Refused::with_hint(&words, At::Here(column.span()), &message, hint)
        }
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// A table by name, with arguments if it is a function.
fn named_table(
    name: &ObjectName,
    args: Option<&TableFunctionArgs>,
    sample: Option<&TableSampleKind>,
) -> Checked {
    if let Some(TableFunctionArgs { args: _, settings: _ }) = args {
        return unknown_function(name);
    }
    sampled(sample, name.span())
}

/// There are no functions of tables but those that are rewritten before.
fn unknown_function(name: &ObjectName) -> Checked {
    let message = format!("unknown table function '{name}'");
    let (words, at) = (name.to_string(), At::Here(name.span()));
    let known = ["TUMBLE", "HOP", "CUMULATE", "SESSION"];
    let (message, hint) = if known.iter().any(|known| words.eq_ignore_ascii_case(known)) {
        let message = format!("{words} takes a table, and finds none");
        (message, "write TABLE in front of its name: FROM TUMBLE(TABLE t, …)")
    } else {
        (message, "there are TUMBLE, HOP, CUMULATE, SESSION and UNNEST")
    };
    Err(Refused { words, at, message: Some(message), hint: Some(hint) })
}

fn sampled(sample: Option<&TableSampleKind>, of: Span) -> Checked {
    let sample = match sample {
        Some(TableSampleKind::BeforeTableAlias(sample)) => sample,
        Some(TableSampleKind::AfterTableAlias(sample)) => sample,
        None => return Ok(()),
    };
    let TableSample { modifier, name: _, quantity: _, seed: _, bucket: _, offset: _ } = &**sample;
    let words = match modifier {
        TableSampleModifier::Sample => "SAMPLE",
        TableSampleModifier::TableSample => "TABLESAMPLE",
    };
    Refused::hinted(words, At::Behind(of), "write WHERE random() < 0.1 for a tenth of the rows")
}

/// Refuses the first clause that is there.
fn first(clauses: &[(bool, &str)], at: At) -> Checked {
    match clauses.iter().find(|(there, _)| *there) {
        Some((_, words)) => Refused::new(words, at),
        None => Ok(()),
    }
}

/// Forms that are no table here.
fn no_table(table: &TableFactor) -> Checked {
    let behind = |table: &TableFactor| At::Behind(table.span());
    match table {
        TableFactor::Pivot {
            table,
            aggregate_functions: _,
            value_column: _,
            value_source: _,
            default_on_null: _,
            alias: _,
        } => Refused::hinted(
            "PIVOT",
            behind(table),
            "write an aggregate for each column: sum(v) FILTER (WHERE k = 'a') AS a",
        ),
        TableFactor::Unpivot {
            table,
            value: _,
            name: _,
            columns: _,
            null_inclusion: _,
            alias: _,
        } => Refused::hinted("UNPIVOT", behind(table), "write a UNION ALL of the columns"),
        TableFactor::MatchRecognize {
            table,
            partition_by: _,
            order_by: _,
            measures: _,
            rows_per_match: _,
            after_match_skip: _,
            pattern: _,
            symbols: _,
            alias: _,
        } => Refused::new("MATCH_RECOGNIZE", behind(table)),
        TableFactor::JsonTable { json_expr, json_path: _, columns: _, alias: _ } => {
            Refused::new("JSON_TABLE", At::Before(json_expr.span()))
        }
        TableFactor::OpenJsonTable { json_expr, json_path: _, columns: _, alias: _ } => {
            Refused::new("OPENJSON", At::Before(json_expr.span()))
        }
        TableFactor::XmlTable {
            namespaces: _,
            row_expression,
            passing: _,
            columns: _,
            alias: _,
        } => Refused::new("XMLTABLE", At::Before(row_expression.span())),
        TableFactor::SemanticView {
            name,
            dimensions: _,
            metrics: _,
            facts: _,
            where_clause: _,
            alias: _,
        } => Refused::new("SEMANTIC_VIEW", At::Before(name.span())),
        // Those that the caller takes.
        TableFactor::Table { .. }
        | TableFactor::Derived { .. }
        | TableFactor::TableFunction { .. }
        | TableFactor::Function { .. }
        | TableFactor::UNNEST { .. }
        | TableFactor::NestedJoin { .. } => Ok(()),
    }
}
