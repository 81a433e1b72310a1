//! Clauses that the parser reads and nobody carries out.
//!
//! The parser knows the SQL of many systems, and DataFusion's planner passes over some of what it
//! is given: `SELECT * FROM t PREWHERE k > 5` would be all rows. So a query is taken apart here
//! before it is planned. Each struct of the tree is named with all of its fields, never with `..`:
//! what a newer parser reads does not compile until somebody has decided about it.
//!
//! A clause is carried out by DataFusion, or written here in another way that is (`FETCH FIRST`,
//! `TOP`, `WITH ROLLUP`, `SEMI JOIN`, `MINUS`, `ESCAPE`, forms of [`flink`]), or refused where it
//! stands.

mod exprs;
pub(crate) mod flink;
pub(crate) mod from;
mod groups;
mod pipes;
mod similar;
mod star;
pub(crate) mod times;

use std::ops::ControlFlow;

use datafusion::logical_expr::planner::ContextProvider;
use datafusion::sql::sqlparser::ast::{
    ConnectByKind, Cte, Distinct, ExcludeSelectItem, Expr, Fetch, ForClause, FormatClause, Ident,
    LimitClause, LockClause, LockType, NamedWindowDefinition, Offset, OrderBy, OrderByExpr,
    OrderByKind, OrderByOptions, Query, Select, SelectFlavor, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, SetOperator, SetQuantifier, Setting, Spanned,
    TableFactor, Top, TopQuantity, Value, Values, VisitMut, VisitorMut, WildcardAdditionalOptions,
    With,
};
use datafusion::sql::sqlparser::tokenizer::{Span, TokenWithSpan};

use crate::text::bounds::COLUMNS_MAX;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::is_word;

/// A clause that is not carried out.
struct Refused {
    /// Its first words, as they stand in the text.
    words: String,
    at: At,
    /// The message, unless it is that the words are not supported.
    message: Option<String>,
    hint: Option<&'static str>,
}

/// Where the words of a clause are.
enum At {
    /// Here.
    Here(Span),
    /// The last ones before this.
    Before(Span),
    /// The first ones from the start of this.
    From(Span),
    /// The first ones behind the start of the last token of this.
    Behind(Span),
}

type Checked = Result<(), Refused>;

impl Refused {
    fn new<T>(words: &str, at: At) -> Result<T, Refused> {
        Err(Self { words: words.into(), at, message: None, hint: None })
    }

    fn with_hint<T>(words: &str, at: At, message: &str, hint: &'static str) -> Result<T, Refused> {
        let message = Some(message.into());
        Err(Self { words: words.into(), at, message, hint: Some(hint) })
    }

    fn hinted<T>(words: &str, at: At, hint: &'static str) -> Result<T, Refused> {
        Err(Self { words: words.into(), at, message: None, hint: Some(hint) })
    }

    /// The error in a statement of `tokens`.
    fn report(self, tokens: &[TokenWithSpan]) -> Diagnostic {
        let message = self.message.unwrap_or_else(|| format!("{} is not supported", self.words));
        let words: Vec<&str> = self.words.split(' ').collect();
        let error = Diagnostic::at(self.at.place(&words, tokens), message);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl At {
    fn place(&self, words: &[&str], tokens: &[TokenWithSpan]) -> Place {
        let begins = |at: &usize| {
            let all = words.iter().enumerate();
            all.into_iter().all(|(n, word)| {
                let token = tokens.get(at + n);
                token.is_some_and(|t| is_word(t, word) || t.token.to_string() == *word)
            })
        };
        let first = || (0..tokens.len()).find(begins);
        let starts = |at: usize| tokens[at].span.start;
        let found = match self {
            At::Here(span) => (0..tokens.len()).find(|&at| starts(at) == span.start),
            At::Before(span) => {
                (0..tokens.len()).rfind(|at| starts(*at) < span.start && begins(at))
            }
            At::From(span) => (0..tokens.len()).find(|at| starts(*at) >= span.start && begins(at)),
            At::Behind(span) => (0..tokens.len()).find(|at| starts(*at) >= span.end && begins(at)),
        };
        let token = found.or_else(first).and_then(|at| tokens.get(at)).or(tokens.first());
        token.map_or(Place::default(), |token| Place::of(token.span))
    }
}

/// Refuses what is not carried out of a query, and writes some of it as what is.
///
/// # Errors
/// At the first clause.
pub(crate) fn check(
    query: &mut Query,
    names: &dyn ContextProvider,
    tokens: &[TokenWithSpan],
) -> Result<(), Diagnostic> {
    done(flink::rewrite(query, tokens), tokens)?;
    done(query.visit(&mut Check { names }), tokens)
}

/// As [`check`], of an expression that stands for itself.
pub(crate) fn check_expr(
    expr: &mut Expr,
    names: &dyn ContextProvider,
    tokens: &[TokenWithSpan],
) -> Result<(), Diagnostic> {
    done(flink::rewrite(expr, tokens), tokens)?;
    done(expr.visit(&mut Check { names }), tokens)
}

fn done(flow: ControlFlow<Refused>, tokens: &[TokenWithSpan]) -> Result<(), Diagnostic> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(refused) => Err(refused.report(tokens)),
    }
}

struct Check<'a> {
    names: &'a dyn ContextProvider,
}

fn flow(checked: Checked) -> ControlFlow<Refused> {
    match checked {
        Ok(()) => ControlFlow::Continue(()),
        Err(refused) => ControlFlow::Break(refused),
    }
}

impl VisitorMut for Check<'_> {
    type Break = Refused;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Refused> {
        flow(self::query(query))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Refused> {
        flow(self::select(select).and_then(|()| groups::aggregates(select, self.names)))
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Refused> {
        flow(from::table_factor(table))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Refused> {
        flow(exprs::expr(expr, self.names))
    }
}

fn query(query: &mut Query) -> Checked {
    let Query {
        with,
        body,
        order_by,
        limit_clause,
        fetch,
        locks,
        for_clause,
        settings,
        format_clause,
        pipe_operators,
    } = query;
    if let Some(With { with_token: _, recursive: _, cte_tables }) = with {
        cte_tables.iter().try_for_each(cte)?;
        let name = |at: usize| &cte_tables[at].alias.name;
        let is_again = |at: &usize| (0..*at).any(|first| name(first).value == name(*at).value);
        if let Some(again) = (0..cte_tables.len()).find(is_again) {
            let Ident { value, span, .. } = name(again);
            let message = format!("WITH names two queries '{value}'");
            return Refused::with_hint(value, At::Here(*span), &message, "give one another name");
        }
    }
    if let Some(order_by) = order_by {
        self::order_by(order_by, body)?;
    }
    if let Some(limit_clause) = limit_clause {
        self::limit_clause(limit_clause)?;
    }
    let settings = settings.as_deref();
    behind_rows(locks, for_clause.as_ref(), settings, format_clause.as_ref(), body)?;
    pipe_operators.iter_mut().try_for_each(pipes::pipe_operator)?;
    if let Some(quantity) = fetched(fetch.take(), body)?
        && limit(limit_clause, quantity).is_err()
    {
        let (at, message) = (At::Behind(body.span()), "LIMIT and FETCH both bound the rows");
        return Refused::with_hint("FETCH", at, message, "leave one of them out");
    }
    if let SetExpr::Select(select) = &mut **body
        && limit_clause.is_none()
    {
        let from = At::From(select.select_token.0.span);
        if let Some(quantity) = top(&mut select.top, from)? {
            // There is no other bound, so this cannot fail.
            _ = limit(limit_clause, quantity);
        }
    }
    self::body(body)
}

fn limit_clause(limit_clause: &LimitClause) -> Checked {
    match limit_clause {
        LimitClause::LimitOffset { limit: _, offset, limit_by } => {
            match offset {
                Some(Offset { value: _, rows: _ }) | None => {}
            }
            let Some(first) = limit_by.first() else { return Ok(()) };
            let hint = "number the rows by ROW_NUMBER() OVER (PARTITION BY …)";
            let message = "LIMIT … BY is not supported";
            Refused::with_hint("BY", At::Before(first.span()), message, hint)
        }
        LimitClause::OffsetCommaLimit { offset: _, limit: _ } => Ok(()),
    }
}

/// The clauses that may stand behind the rows of a query.
fn behind_rows(
    locks: &[LockClause],
    for_clause: Option<&ForClause>,
    settings: Option<&[Setting]>,
    format_clause: Option<&FormatClause>,
    body: &SetExpr,
) -> Checked {
    let behind = || At::Behind(body.span());
    if let Some(LockClause { lock_type, of: _, nonblock: _ }) = locks.first() {
        let words = match lock_type {
            LockType::Share => "FOR SHARE",
            LockType::Update => "FOR UPDATE",
        };
        return Refused::hinted(words, behind(), "no row is ever locked: leave it out");
    }
    let format = "INSERT INTO a table WITH ('format' = '…')";
    match for_clause {
        Some(ForClause::Browse) => return Refused::new("FOR BROWSE", behind()),
        Some(ForClause::Json {
            for_json: _,
            root: _,
            include_null_values: _,
            without_array_wrapper: _,
        }) => return Refused::hinted("FOR JSON", behind(), format),
        Some(ForClause::Xml { for_xml: _, elements: _, binary_base64: _, root: _, r#type: _ }) => {
            return Refused::hinted("FOR XML", behind(), format);
        }
        None => {}
    }
    if settings.is_some() {
        let hint = "SET a setting in a statement of its own";
        return Refused::hinted("SETTINGS", behind(), hint);
    }
    if format_clause.is_some() {
        return Refused::hinted("FORMAT", behind(), format);
    }
    Ok(())
}

fn order_by(order_by: &OrderBy, body: &SetExpr) -> Checked {
    let OrderBy { kind, interpolate } = order_by;
    let behind = || At::Behind(body.span());
    if interpolate.is_some() {
        return Refused::new("INTERPOLATE", behind());
    }
    match kind {
        // Of what is no SELECT, DataFusion passes over it.
        OrderByKind::All(OrderByOptions { asc: _, nulls_first: _ }) => match body {
            SetExpr::Select(_) => Ok(()),
            _ => Refused::hinted("ORDER BY ALL", behind(), "name the columns"),
        },
        OrderByKind::Expressions(exprs) => order_by_exprs(exprs),
    }
}

fn cte(cte: &Cte) -> Checked {
    // When its rows are computed, and how often, is ours to choose: they are the same.
    let Cte { alias, query: _, from, materialized: _, closing_paren_token: _ } = cte;
    if let Some(from) = from {
        return Refused::new("FROM", At::Before(from.span));
    }
    from::alias(Some(alias))
}

/// How many rows `FETCH` bounds a query to.
fn fetched(fetch: Option<Fetch>, body: &SetExpr) -> Result<Option<Expr>, Refused> {
    let Some(Fetch { with_ties, percent, quantity }) = fetch else { return Ok(None) };
    let behind = || At::Behind(body.span());
    if with_ties {
        let hint = "filter by RANK() OVER (ORDER BY …)";
        return Refused::hinted("WITH TIES", behind(), hint);
    }
    if percent {
        return Refused::new("PERCENT", behind());
    }
    Ok(Some(quantity.unwrap_or_else(|| number(1))))
}

/// How many rows `TOP` bounds a query to.
fn top(top: &mut Option<Top>, from: At) -> Result<Option<Expr>, Refused> {
    let Some(Top { with_ties, percent, quantity }) = top.take() else { return Ok(None) };
    if with_ties {
        return Refused::hinted("WITH TIES", from, "filter by RANK() OVER (ORDER BY …)");
    }
    if percent {
        return Refused::new("PERCENT", from);
    }
    match quantity {
        Some(TopQuantity::Expr(expr)) => Ok(Some(expr)),
        Some(TopQuantity::Constant(rows)) => Ok(Some(number(rows))),
        None => Refused::hinted("TOP", from, "TOP takes a number of rows"),
    }
}

fn number(rows: u64) -> Expr {
    Expr::value(Value::Number(rows.to_string(), false))
}

/// Bounds a query to a number of rows, if nothing else does.
fn limit(clause: &mut Option<LimitClause>, rows: Expr) -> Result<(), ()> {
    match clause {
        None => {
            let limit = Some(rows);
            *clause = Some(LimitClause::LimitOffset { limit, offset: None, limit_by: vec![] });
            Ok(())
        }
        Some(LimitClause::LimitOffset { limit: limit @ None, .. }) => {
            *limit = Some(rows);
            Ok(())
        }
        Some(_) => Err(()),
    }
}

fn body(body: &mut SetExpr) -> Checked {
    let start = At::From(body.span());
    match body {
        SetExpr::Select(_) | SetExpr::Query(_) => Ok(()),
        SetExpr::SetOperation { left, op, set_quantifier, right } => {
            if *op == SetOperator::Minus {
                *op = SetOperator::Except;
            }
            set_quantifier_of(*op, *set_quantifier, right)?;
            self::body(left)?;
            self::body(right)
        }
        SetExpr::Values(Values { explicit_row: _, value_keyword, rows }) => {
            *value_keyword = false;
            let first = rows.first().map_or(0, |row| row.content.len());
            let Some(row) = rows.iter().find(|row| row.content.len() != first) else {
                return Ok(());
            };
            let values = row.content.len();
            let message = format!("a row of VALUES has {values} values, and the first has {first}");
            let at = row.content.first().map_or(start, |value| At::Before(value.span()));
            Refused::with_hint("(", at, &message, "give each row a value for each column")
        }
        SetExpr::Insert(_) => Refused::new("INSERT", start),
        SetExpr::Update(_) => Refused::new("UPDATE", start),
        SetExpr::Delete(_) => Refused::new("DELETE", start),
        SetExpr::Merge(_) => Refused::new("MERGE", start),
        SetExpr::Table(_) => Refused::hinted("TABLE", start, "write SELECT * FROM the table"),
    }
}

fn set_quantifier_of(op: SetOperator, quantifier: SetQuantifier, right: &SetExpr) -> Checked {
    use SetQuantifier::{All, AllByName, ByName, Distinct, DistinctByName, None};
    let by_name = match quantifier {
        All | Distinct | None => false,
        ByName | AllByName | DistinctByName => op != SetOperator::Union,
    };
    if by_name {
        Refused::hinted("BY NAME", At::Before(right.span()), "name the columns in one order")
    } else {
        Ok(())
    }
}

fn order_by_exprs(exprs: &[OrderByExpr]) -> Checked {
    exprs.iter().try_for_each(|expr| {
        let OrderByExpr { expr, options, with_fill } = expr;
        let OrderByOptions { asc: _, nulls_first: _ } = options;
        match with_fill {
            Some(_) => Refused::new("WITH FILL", At::Behind(expr.span())),
            None => Ok(()),
        }
    })
}

fn select(select: &mut Select) -> Checked {
    let Select {
        select_token,
        optimizer_hints: _, // comments, of which the parser is given none
        distinct,
        select_modifiers,
        top,
        top_before_distinct: _,
        projection,
        exclude,
        into,
        from,
        lateral_views,
        prewhere,
        selection,
        connect_by,
        group_by,
        cluster_by,
        distribute_by,
        sort_by,
        having,
        named_window,
        qualify,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    let start = select_token.0.span;
    let words: [(bool, &str, &'static str); 9] = [
        (select_modifiers.is_some(), "SELECT", "leave out the words behind SELECT"),
        (top.is_some(), "TOP", "write LIMIT at the end"),
        (into.is_some(), "INTO", "write INSERT INTO table SELECT …"),
        (!lateral_views.is_empty(), "LATERAL VIEW", "write CROSS JOIN UNNEST(…)"),
        (prewhere.is_some(), "PREWHERE", "write WHERE"),
        (!cluster_by.is_empty(), "CLUSTER BY", "write ORDER BY"),
        (!distribute_by.is_empty(), "DISTRIBUTE BY", "rows are distributed by what is grouped by"),
        (!sort_by.is_empty(), "SORT BY", "write ORDER BY"),
        (value_table_mode.is_some(), "AS", "name the columns"),
    ];
    if let Some((_, words, hint)) = words.into_iter().find(|(there, ..)| *there) {
        return Refused::hinted(words, At::From(start), hint);
    }
    if let Some(first) = connect_by.first() {
        return hierarchy(first);
    }
    match exclude {
        Some(ExcludeSelectItem::Single(_) | ExcludeSelectItem::Multiple(_)) => {
            let hint = "write it behind the star: SELECT * EXCLUDE (…)";
            return Refused::hinted("EXCLUDE", At::From(start), hint);
        }
        None => {}
    }
    match distinct {
        Some(Distinct::All | Distinct::Distinct | Distinct::On(_)) | None => {}
    }
    match flavor {
        SelectFlavor::Standard | SelectFlavor::FromFirst => {}
        SelectFlavor::FromFirstNoSelect => {
            projection.push(SelectItem::Wildcard(WildcardAdditionalOptions::default()));
        }
    }
    few_columns(projection, start)?;
    let conditions = [selection, having, qualify].into_iter().flatten();
    conditions.into_iter().try_for_each(|condition| exprs::condition(condition))?;
    projection.iter().try_for_each(select_item)?;
    named_window.iter().try_for_each(|NamedWindowDefinition(_, window)| exprs::named(window))?;
    from.iter_mut().try_for_each(from::joined)?;
    from::each_once(from)?;
    groups::group_by(group_by, start)?;
    groups::grouping_sets(group_by, start)
}

fn few_columns(projection: &[SelectItem], start: Span) -> Checked {
    if projection.len() <= COLUMNS_MAX {
        return Ok(());
    }
    let message = format!("a list of more than {COLUMNS_MAX} columns");
    Refused::with_hint("SELECT", At::From(start), &message, "name those that are needed")
}

fn hierarchy(clause: &ConnectByKind) -> Checked {
    let hint = "rows are not followed from one to the next";
    match clause {
        ConnectByKind::ConnectBy { connect_token, nocycle: _, relationships: _ } => {
            Refused::hinted("CONNECT BY", At::Here(connect_token.0.span), hint)
        }
        ConnectByKind::StartWith { start_token, condition: _ } => {
            Refused::hinted("START WITH", At::Here(start_token.0.span), hint)
        }
    }
}

fn select_item(item: &SelectItem) -> Checked {
    match item {
        SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { expr: _, alias: _ } => Ok(()),
        SelectItem::ExprWithAliases { expr, aliases: _ } => Refused::hinted(
            "AS",
            At::Behind(expr.span()),
            "name one column; of a ROW take the fields one by one",
        ),
        SelectItem::QualifiedWildcard(kind, options) => {
            match kind {
                SelectItemQualifiedWildcardKind::ObjectName(_) => {}
                SelectItemQualifiedWildcardKind::Expr(expr) => {
                    return Refused::hinted("*", At::Behind(expr.span()), "name the fields");
                }
            }
            star::wildcard(options)
        }
        SelectItem::Wildcard(options) => star::wildcard(options),
    }
}

#[cfg(test)]
mod tests;
