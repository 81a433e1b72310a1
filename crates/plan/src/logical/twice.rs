//! Two output columns of one name: `SELECT a, a`, `SELECT count(*), count(*)`.
//!
//! DataFusion finds columns by name, and takes no two of the same. A sink takes columns by their
//! place. So the later of two gets a name of its own while the query is planned, and another one
//! where rows leave: `a`, `a_1`. That is done where a query gives rows out; within another query,
//! and in a view, a name has to say which column is meant.

use std::collections::{HashMap, HashSet};

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, SchemaError, TableReference};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{self, Ident, Query, Select, SelectItem, SetExpr};

use crate::expr::failure::{message_of, root};
use crate::logical::rewrite::casts;
use crate::text::names::MERGED;

/// How the names of the columns begin that are set apart.
const APART: &str = "__twice_";

/// Rounds of planning that set columns apart at most. Each sets apart all that are written alike.
pub(crate) const ROUNDS_MAX: usize = 16;

/// The columns that are set apart.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    /// The text behind AS, of each.
    names: Vec<Option<String>>,
}

impl Apart {
    /// Sets columns of the result of `query` apart, which DataFusion has refused with `error`;
    /// false if that does not help.
    pub(crate) fn set_apart(&mut self, query: &mut Query, error: &DataFusionError) -> bool {
        let message = message_of(error);
        let Some(select) = first_select(&mut query.body) else { return false };
        let before = self.names.len();
        if let Some(name) = named_otherwise(error) {
            // A column of that name, and one that is computed and called so.
            for item in &mut select.projection {
                if matches!(item, SelectItem::ExprWithAlias { alias, .. } if alias.value == name) {
                    self.rename(item);
                }
            }
            return self.names.len() > before;
        }
        let Some((first, second)) = places(&message) else { return false };
        let mut known: HashSet<String> = HashSet::new();
        for item in &mut select.projection {
            if !known.insert(key(item)) {
                self.rename(item);
            }
        }
        if self.names.len() > before {
            return true;
        }
        // Written in two ways: of the later, if it is no column that ORDER BY needs.
        let stars = select.projection.iter().position(is_star).unwrap_or(usize::MAX);
        let items = &mut select.projection;
        let at = match (second < items.len(), second < stars) {
            (true, true) => Some(second),
            (false, true) if first < items.len() && first < stars => Some(first),
            // Behind a star, or in it.
            _ => items.iter().rposition(|item| named_in(item, &message)),
        };
        match at.and_then(|at| items.get_mut(at)) {
            Some(item) => self.rename(item),
            None => false,
        }
    }

    fn rename(&mut self, item: &mut SelectItem) -> bool {
        let (expr, name) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, None),
            SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias.value.clone())),
            _ => return false,
        };
        // The item is replaced by one with the expression.
        let expr = std::mem::replace(expr, ast::Expr::Tuple(vec![]));
        let alias = Ident::new(format!("{APART}{}", self.names.len()));
        *item = SelectItem::ExprWithAlias { expr, alias };
        self.names.push(name);
        true
    }

    /// The names of the columns of `plan`, as they are where rows leave.
    pub(crate) fn names(&self, plan: &LogicalPlan) -> Vec<String> {
        let listed = listed(plan);
        let fields = plan.schema().fields().iter().enumerate();
        let named = fields.map(|(at, field)| match listed.get(at).and_then(of_cast) {
            Some(column) => column.name.clone(),
            None => self.name(field.name(), plan),
        });
        named.collect()
    }

    fn name(&self, name: &str, plan: &LogicalPlan) -> String {
        let number = name.strip_prefix(APART).and_then(|number| number.parse::<usize>().ok());
        let Some(written) = number.and_then(|number| self.names.get(number)) else {
            return name.to_owned();
        };
        let computed = || {
            let mut found = None;
            // The closure never fails.
            let _ = plan.apply(|node| {
                found = node.expressions().into_iter().find_map(|expr| unnamed(expr, name));
                Ok(match found {
                    Some(_) => TreeNodeRecursion::Stop,
                    None => TreeNodeRecursion::Continue,
                })
            });
            found.unwrap_or_else(|| name.to_owned())
        };
        written.clone().unwrap_or_else(computed)
    }
}

/// DataFusion's name of an expression whose alias is `name`.
fn unnamed(expr: Expr, name: &str) -> Option<String> {
    match expr {
        Expr::Alias(alias) if alias.name == name => {
            Some(match (&*alias.expr, of_cast(&alias.expr)) {
                (Expr::Column(column), _) | (_, Some(column)) => column.name.clone(),
                (other, None) => other.schema_name().to_string(),
            })
        }
        _ => None,
    }
}

/// The list that the columns of a plan come from, if there is one.
fn listed(plan: &LogicalPlan) -> &[Expr] {
    match plan {
        LogicalPlan::Projection(projection) => &projection.expr,
        LogicalPlan::Sort(sort) => listed(&sort.input),
        LogicalPlan::Limit(limit) => listed(&limit.input),
        LogicalPlan::Union(union) => union.inputs.first().map_or(&[], |input| listed(input)),
        _ => &[],
    }
}

/// The column that is cast and has no other name: DataFusion calls the cast as it calls that, with
/// the table in front.
fn of_cast(expr: &Expr) -> Option<&Column> {
    let within = match expr {
        Expr::Cast(cast) => &cast.expr,
        Expr::TryCast(cast) => &cast.expr,
        other => casts::of_function(other)?,
    };
    match within {
        Expr::Column(column) => Some(column),
        other => of_cast(other),
    }
}

/// Whether an error is about two columns of one name.
pub(crate) fn is_meant(error: &DataFusionError) -> bool {
    places(&message_of(error)).is_some()
}

/// Whether a query is refused for two columns of one name, of the result or of what is before it.
pub(crate) fn is_about_names(error: &DataFusionError) -> bool {
    is_meant(error) || named_otherwise(error).is_some() || {
        let duplicate =
            |schema: &SchemaError| matches!(schema, SchemaError::DuplicateQualifiedField { .. });
        matches!(root(error), DataFusionError::SchemaError(schema, _) if duplicate(schema))
    }
}

/// The name that a column has both with its table and without.
fn named_otherwise(error: &DataFusionError) -> Option<&str> {
    match root(error) {
        DataFusionError::SchemaError(schema, _) => match &**schema {
            SchemaError::AmbiguousReference { field } => Some(&field.name),
            SchemaError::DuplicateUnqualifiedField { name } => Some(name),
            _ => None,
        },
        _ => None,
    }
}

/// The later of two columns of a query that have the name of which an error is, with where it is
/// named.
pub(crate) fn later<'a>(query: &'a Query, error: &DataFusionError) -> Option<&'a Ident> {
    let name = named_otherwise(error)?;
    let mut body = &*query.body;
    let select = loop {
        match body {
            SetExpr::Select(select) => break select,
            SetExpr::Query(query) => body = &query.body,
            SetExpr::SetOperation { left, .. } => body = left,
            _ => return None,
        }
    };
    let called = select.projection.iter().filter_map(|item| match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias),
        SelectItem::UnnamedExpr(ast::Expr::Identifier(ident)) => Some(ident),
        SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(parts)) => parts.last(),
        _ => None,
    });
    called.filter(|ident| ident.value == name).nth(1)
}

/// The places of two columns of one name in the list that DataFusion refuses.
fn places(message: &str) -> Option<(usize, usize)> {
    let rest = message.split_once("require unique expression names but the expression")?.1;
    let mut places = rest.split(" at position ").skip(1);
    let mut next = || {
        let digits: String = places.next()?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    Some((next()?, next()?))
}

/// The list that names the columns of a query.
fn first_select(body: &mut SetExpr) -> Option<&mut Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&mut query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// Columns with one key have one name.
fn key(item: &SelectItem) -> String {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => alias.value.clone(),
        SelectItem::UnnamedExpr(ast::Expr::Identifier(ident)) => ident.value.clone(),
        other => other.to_string(),
    }
}

fn is_star(item: &SelectItem) -> bool {
    matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
}

/// Whether the message names the column of an item.
fn named_in(item: &SelectItem, message: &str) -> bool {
    let name = match item {
        SelectItem::UnnamedExpr(ast::Expr::Identifier(ident)) => &ident.value,
        SelectItem::UnnamedExpr(ast::Expr::CompoundIdentifier(parts)) => match parts.last() {
            Some(last) => &last.value,
            None => return false,
        },
        SelectItem::ExprWithAlias { alias, .. } => &alias.value,
        _ => return false,
    };
    let ends = [format!(".{name}\""), format!("\"{name}\""), format!(" AS {name}\"")];
    ends.iter().any(|end| message.contains(end))
}

/// The columns of `schema` under `names`, none of which is there twice: the table stands in front
/// where that tells columns apart, else a number behind.
pub(crate) fn told_apart(names: &[String], schema: &DFSchema) -> SchemaRef {
    let mut tables: HashMap<&str, Vec<Option<&TableReference>>> = HashMap::new();
    for (name, (table, _)) in names.iter().zip(schema.iter()) {
        tables.entry(name).or_default().push(table);
    }
    let by_table = |name: &str| {
        let of = &tables[name];
        let apart: HashSet<_> = of.iter().flatten().map(|table| table.table()).collect();
        of.len() > 1 && apart.len() == of.len()
    };
    let named = names.iter().zip(schema.iter()).map(|(name, (table, _))| match table {
        Some(table) if by_table(name) && table.table() != MERGED => {
            format!("{}.{name}", table.table())
        }
        _ => name.clone(),
    });
    let named: Vec<String> = named.collect();
    let mut free: HashSet<&str> = named.iter().map(String::as_str).collect();
    let mut taken: HashSet<String> = HashSet::new();
    let mut last: HashMap<&str, usize> = HashMap::new();
    let fields = named.iter().zip(schema.iter()).map(|(name, (_, field))| {
        let mut own = name.clone();
        if !free.remove(name.as_str()) {
            let number = last.entry(name).or_default();
            while taken.contains(&own) || free.contains(own.as_str()) || own == *name {
                *number += 1;
                own = format!("{name}_{number}");
            }
        }
        taken.insert(own.clone());
        Field::new(own, field.data_type().clone(), true)
    });
    Schema::new(fields.collect::<Vec<_>>()).into()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn names_are_told_apart_by_tables_or_by_numbers() {
        let shown = |columns: &[(&str, &str)]| {
            let fields = columns.iter().enumerate().map(|(at, (table, _))| {
                let table = (!table.is_empty()).then(|| TableReference::bare(*table));
                (table, Field::new(format!("c{at}"), DataType::Int64, false).into())
            });
            let schema = DFSchema::new_with_metadata(fields.collect(), Default::default());
            let names: Vec<String> = columns.iter().map(|(_, name)| name.to_string()).collect();
            let distinct = told_apart(&names, &schema.expect("a schema"));
            distinct.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(&[("t", "a"), ("u", "b")]), "a b");
        assert_eq!(shown(&[("t", "a"), ("u", "a"), ("u", "b")]), "t.a u.a b");
        assert_eq!(shown(&[("t", "a"), ("", "a")]), "a a_1");
        assert_eq!(shown(&[("", "a"), ("", "a"), ("", "a_1"), ("", "a")]), "a a_2 a_1 a_3");
        assert_eq!(shown(&[]), "");
    }
}
