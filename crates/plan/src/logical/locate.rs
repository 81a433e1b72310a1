//! Which part of a query an error comes from, where DataFusion does not say.
//!
//! Its errors name a type, an operator or a function, and two of a statement may be alike. So the
//! parts of the syntax tree are put in an order in which none depends on a later one: the tables
//! and subqueries of `FROM` before what reads them, the arguments of a call before the call. Then
//! the query is planned again with all parts behind some point *left out*: what is left of a call
//! are its arguments, of a set operation its two sides, of a column NULL. The first part with which
//! the error comes back is at fault.
//!
//! This is done for a query that has failed, and a few times only: the point is found by halving.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Distinct, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, GroupByExpr, Ident, JoinConstraint, JoinOperator, LimitClause, ObjectName,
    OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, SetOperator, Spanned, TableFactor,
    TableWithJoins, Value, Values, Visit, VisitMut, Visitor, VisitorMut, WindowType,
};
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use crate::text::syntax::{is_word, parser, split};

/// What became of a query of which parts were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has the error that is sought.
    Same,
    /// It has another one, which may come first.
    Other,
    Fine,
}

/// The part of a query that an error comes from.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Its own first token: the name of a call, the sign of an operator.
    pub(crate) token: Span,
    /// Where it stands, and the expressions and queries around it, from the innermost.
    pub(crate) around: Vec<Span>,
    /// Its text.
    pub(crate) text: String,
}

/// Parts of a query that are tried one after another where halving is misled by other errors.
const PARTS_TRIED_MAX: usize = 256;

/// The part that an error of a query comes from; `tried` says what becomes of another query.
pub(crate) fn fault(
    query: &Query,
    tokens: &[TokenWithSpan],
    mut tried: impl FnMut(Query) -> Outcome,
) -> Option<Fault> {
    let parts = Walk::over(&mut query.clone(), usize::MAX, None).next;
    let mut outcome = |until: usize| {
        let mut less = query.clone();
        Walk::over(&mut less, until, None);
        tried(less)
    };
    if parts == 0 || outcome(parts) != Outcome::Same || outcome(0) == Outcome::Same {
        return None;
    }
    let (mut without, mut with, mut misled) = (0, parts, false);
    while with - without > 1 {
        let until = without + (with - without) / 2;
        match outcome(until) {
            Outcome::Same => with = until,
            other => {
                misled |= other == Outcome::Other;
                without = until;
            }
        }
    }
    if misled && with <= PARTS_TRIED_MAX {
        with = (1..with).find(|until| outcome(*until) == Outcome::Same).unwrap_or(with);
    }
    let walk = Walk::over(&mut query.clone(), usize::MAX, Some((with - 1, tokens)));
    let Found { span, token, text } = walk.found?;
    Some(Fault { token, around: around(query, span), text })
}

/// A part: where it stands, its own token, and its text.
struct Found {
    span: Span,
    token: Span,
    text: String,
}

/// A walk over the parts of a query.
struct Walk<'a> {
    /// The number of the next part.
    next: usize,
    /// Parts from this number on are left out.
    until: usize,
    /// The part that is sought, and the statement.
    sought: Option<(usize, &'a [TokenWithSpan])>,
    found: Option<Found>,
    /// The subqueries of the expressions around.
    taken: Vec<Query>,
}

impl<'a> Walk<'a> {
    fn over(query: &mut Query, until: usize, sought: Option<(usize, &'a [TokenWithSpan])>) -> Self {
        let mut walk = Self { next: 0, until, sought, found: None, taken: vec![] };
        walk.query(query);
        walk
    }

    /// Counts a part; whether it is left out.
    fn part(&mut self, of: impl FnOnce(&[TokenWithSpan]) -> Found) -> bool {
        let at = self.next;
        self.next += 1;
        if let Some((_, tokens)) = self.sought.filter(|(sought, _)| *sought == at) {
            self.found = Some(of(tokens));
        }
        at >= self.until
    }

    fn query(&mut self, query: &mut Query) {
        for cte in query.with.iter_mut().flat_map(|with| &mut with.cte_tables) {
            self.query(&mut cte.query);
        }
        self.body(&mut query.body);
        if let Some(OrderBy { kind: OrderByKind::Expressions(exprs), .. }) = &mut query.order_by {
            exprs.iter_mut().for_each(|by| self.expr(&mut by.expr));
        }
        match &mut query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                limit.iter_mut().for_each(|limit| self.expr(limit));
                offset.iter_mut().for_each(|offset| self.expr(&mut offset.value));
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                self.expr(offset);
                self.expr(limit);
            }
            None => {}
        }
    }

    fn body(&mut self, body: &mut SetExpr) {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.query(query),
            SetExpr::Values(values) => {
                let rows = values.rows.iter_mut().flat_map(|row| &mut row.content);
                rows.for_each(|value| self.expr(value));
            }
            SetExpr::SetOperation { left, right, op, .. } => {
                self.body(left);
                self.body(right);
                let of = |tokens: &[TokenWithSpan]| {
                    let word = match op {
                        SetOperator::Union => "UNION",
                        SetOperator::Except | SetOperator::Minus => "EXCEPT",
                        SetOperator::Intersect => "INTERSECT",
                    };
                    let whole = whole_span(left).union(&whole_span(right));
                    let before = |t: &&TokenWithSpan| t.span.start < whole_span(right).start;
                    let before = tokens.iter().take_while(before);
                    let mut before = before.collect::<Vec<_>>().into_iter();
                    let sign = before.rfind(|t| is_word(t, word) || is_word(t, "MINUS"));
                    let token = sign.map_or(whole, |token| token.span);
                    Found { span: whole, token, text: word.to_owned() }
                };
                if self.part(of) {
                    *body = beside(left, right);
                }
            }
            _ => {}
        }
    }

    fn select(&mut self, select: &mut Select) {
        select.from.iter_mut().for_each(|from| self.joined(from));
        select.selection.iter_mut().for_each(|condition| self.condition(condition));
        if let GroupByExpr::Expressions(keys, _) = &mut select.group_by {
            keys.iter_mut().for_each(|key| self.expr(key));
        }
        select.having.iter_mut().for_each(|condition| self.condition(condition));
        let _ = VisitMut::visit(&mut select.named_window, self);
        self.items(&mut select.projection);
        if let Some(qualify) = &mut select.qualify {
            self.condition(qualify);
        }
        // Without a function of windows, there is no QUALIFY.
        if self.next > self.until
            && let Some(expr) = select.qualify.take()
        {
            let alias = Ident::new("__qualify");
            select.projection.push(SelectItem::ExprWithAlias { expr, alias });
        }
        if let Some(Distinct::On(exprs)) = &mut select.distinct {
            exprs.iter_mut().for_each(|expr| self.expr(expr));
        }
    }

    /// The items of a SELECT list, which keep the names of their columns.
    fn items(&mut self, items: &mut [SelectItem]) {
        let names: Vec<Option<String>> = items.iter().map(name_of).collect();
        for (at, item) in items.iter_mut().enumerate() {
            let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item
            else {
                continue;
            };
            self.expr(expr);
            if self.next > self.until {
                let expr = std::mem::replace(expr, null());
                let again = |name: &&String| names[..at].iter().flatten().all(|n| n != *name);
                let name = names[at].as_ref().filter(again);
                let alias = name.cloned().unwrap_or_else(|| format!("__item_{at}"));
                *item = SelectItem::ExprWithAlias { expr, alias: Ident::new(alias) };
            }
        }
    }

    fn joined(&mut self, from: &mut TableWithJoins) {
        self.table(&mut from.relation);
        for join in &mut from.joins {
            self.table(&mut join.relation);
            let Some(constraint) = constraint(&mut join.join_operator) else { continue };
            match constraint {
                JoinConstraint::On(condition) => self.condition(condition),
                JoinConstraint::Using(names) => {
                    let span = names.iter().fold(Span::empty(), |all, n| all.union(&n.span()));
                    let text = "USING".to_owned();
                    if self.part(|_| Found { span, token: span, text }) {
                        *constraint = JoinConstraint::On(truth());
                    }
                }
                JoinConstraint::Natural | JoinConstraint::None => {}
            }
        }
    }

    fn table(&mut self, table: &mut TableFactor) {
        match table {
            TableFactor::Derived { subquery, .. } => self.query(subquery),
            TableFactor::NestedJoin { table_with_joins, .. } => self.joined(table_with_joins),
            TableFactor::UNNEST { array_exprs, .. } => {
                array_exprs.iter_mut().for_each(|expr| self.expr(expr));
            }
            _ => {}
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        // It never breaks off.
        let _ = expr.visit(self);
    }

    /// An expression that is to be a BOOLEAN.
    fn condition(&mut self, expr: &mut Expr) {
        self.expr(expr);
        if self.next > self.until && !is_transparent(expr) {
            *expr = without(&mut Expr::Nested(Box::new(expr.clone())), CONDITION);
        }
    }
}

impl VisitorMut for Walk<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        // A subquery is walked in the order of its own, and is away while the expression is.
        if let Some(subquery) = subquery(expr) {
            let mut taken = std::mem::replace(subquery, nothing());
            self.query(&mut taken);
            self.taken.push(taken);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(subquery) = subquery(expr) {
            *subquery = self.taken.pop().unwrap_or_else(nothing);
        }
        let left_out = self.part(|tokens| Found {
            span: whole_span(expr),
            token: own_token(expr, tokens),
            text: expr.to_string(),
        });
        if left_out && !is_transparent(expr) {
            *expr = without(expr, NAME);
        }
        ControlFlow::Continue(())
    }
}

/// Whether an expression asks nothing of its parts but that they are BOOLEAN, so that the message
/// about one of them is the same without it.
fn is_transparent(expr: &Expr) -> bool {
    use BinaryOperator::{And, Or};
    matches!(expr, Expr::Nested(_) | Expr::BinaryOp { op: And | Or, .. })
}

/// The subquery that an expression asks.
fn subquery(expr: &mut Expr) -> Option<&mut Query> {
    match expr {
        Expr::Subquery(query)
        | Expr::InSubquery { subquery: query, .. }
        | Expr::Exists { subquery: query, .. } => Some(query),
        _ => None,
    }
}

fn constraint(join: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    use JoinOperator::{
        Anti, CrossJoin, FullOuter, Inner, Join, Left, LeftAnti, LeftOuter, LeftSemi, Right,
        RightAnti, RightOuter, RightSemi, Semi, StraightJoin,
    };
    match join {
        Join(constraint)
        | Inner(constraint)
        | Left(constraint)
        | LeftOuter(constraint)
        | Right(constraint)
        | RightOuter(constraint)
        | FullOuter(constraint)
        | CrossJoin(constraint)
        | Semi(constraint)
        | LeftSemi(constraint)
        | RightSemi(constraint)
        | Anti(constraint)
        | LeftAnti(constraint)
        | RightAnti(constraint)
        | StraightJoin(constraint) => Some(constraint),
        JoinOperator::AsOf { constraint, .. } => Some(constraint),
        JoinOperator::CrossApply
        | JoinOperator::OuterApply
        | JoinOperator::ArrayJoin
        | JoinOperator::LeftArrayJoin
        | JoinOperator::InnerArrayJoin => None,
    }
}

/// The name of a column of the result, where it does not depend on how its expression is written.
fn name_of(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name))
        | SelectItem::ExprWithAlias { alias: name, .. } => Some(name.value.clone()),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => {
            names.last().map(|name| name.value.clone())
        }
        _ => None,
    }
}

fn null() -> Expr {
    Expr::value(Value::Null)
}

fn truth() -> Expr {
    Expr::value(Value::Boolean(true))
}

/// A query without rows, parts or places.
fn nothing() -> Query {
    let values = Values { explicit_row: false, value_keyword: false, rows: vec![] };
    Query {
        with: None,
        body: Box::new(SetExpr::Values(values)),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: vec![],
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: vec![],
    }
}

/// What is left of an expression without its outermost part: the parts within it, as the arguments
/// of a function.
fn without(expr: &mut Expr, function: &str) -> Expr {
    let mut within = Within { depth: 0, parts: vec![] };
    // It never breaks off.
    if let Some(query) = subquery(expr) {
        let query = std::mem::replace(query, nothing());
        within.parts.push(Expr::Exists { subquery: Box::new(query), negated: false });
    }
    let _ = Visit::visit(expr, &mut within);
    let parts = within.parts.into_iter().filter(|part| *part != null());
    let args: Vec<_> =
        parts.map(|part| FunctionArg::Unnamed(FunctionArgExpr::Expr(part))).collect();
    if args.is_empty() && function == NAME {
        return null();
    }
    let args = FunctionArgumentList { duplicate_treatment: None, args, clauses: vec![] };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(function)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

/// The expressions that stand directly within one.
struct Within {
    depth: usize,
    parts: Vec<Expr>,
}

impl Visitor for Within {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.depth == 1 {
            self.parts.push(expr.clone());
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

/// The rows of one query, with another one that is planned as well.
fn beside(left: &mut SetExpr, right: &mut SetExpr) -> SetExpr {
    let form = "SELECT * FROM (SELECT 1) AS __left WHERE EXISTS (SELECT 1)";
    let tokens = split(form).unwrap_or_default().concat();
    let Ok(mut query) = parser(&tokens).parse_query() else { return left.clone() };
    if let SetExpr::Select(select) = &mut *query.body
        && let Some(TableFactor::Derived { subquery: rows, .. }) =
            select.from.first_mut().map(|from| &mut from.relation)
        && let Some(Expr::Exists { subquery: asked, .. }) = &mut select.selection
    {
        std::mem::swap(&mut *rows.body, left);
        std::mem::swap(&mut *asked.body, right);
    }
    *query.body
}

/// From the first to the last token of a tree that has a place.
fn whole_span(tree: &impl Visit) -> Span {
    let mut spans = Spans(Span::empty());
    let _ = tree.visit(&mut spans);
    spans.0
}

struct Spans(Span);

impl Visitor for Spans {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.0 = self.0.union(&select.select_token.0.span);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        self.0 = self.0.union(&table.span());
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.0 = self.0.union(&expr.span());
        if let Expr::Function(Function { over: Some(WindowType::NamedWindow(name)), .. }) = expr {
            self.0 = self.0.union(&name.span);
        }
        ControlFlow::Continue(())
    }
}

/// The expressions and queries that stand around a place, from the innermost.
fn around(query: &Query, span: Span) -> Vec<Span> {
    let mut around = Around { span, found: vec![] };
    let _ = Visit::visit(query, &mut around);
    let mut found = around.found;
    let lines = |s: &Span| (s.end.line - s.start.line, s.end.column as i64 - s.start.column as i64);
    found.push(span);
    found.sort_by_key(lines);
    found.dedup();
    found
}

struct Around {
    span: Span,
    found: Vec<Span>,
}

impl Around {
    fn add(&mut self, tree: &impl Visit) -> ControlFlow<()> {
        let whole = whole_span(tree);
        if whole.start <= self.span.start && self.span.end <= whole.end {
            self.found.push(whole);
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Around {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.add(query)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.add(select)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.add(expr)
    }
}

/// The token by which an expression is known: the name of a call, the sign between two sides.
fn own_token(expr: &Expr, tokens: &[TokenWithSpan]) -> Span {
    let whole = whole_span(expr);
    let first = || token_at(whole, tokens);
    // The last of these words in front of what stands within.
    let before = |words: &[&str]| {
        let front = tokens.iter().take_while(|t| t.span.start <= whole.start);
        let mut front = front.collect::<Vec<_>>().into_iter();
        front.rfind(|t| words.iter().any(|word| is_sign(t, word))).map_or_else(first, |t| t.span)
    };
    // The first of these words behind the left side.
    let behind = |left: &Expr, words: &[&str]| {
        let end = whole_span(left).end;
        let mut rest = tokens.iter().skip_while(|t| t.span.start < end);
        rest.find(|t| words.iter().any(|word| is_sign(t, word))).map_or_else(first, |t| t.span)
    };
    match expr {
        Expr::Function(function) => function.name.0.last().map_or_else(first, |name| name.span()),
        Expr::BinaryOp { left, op, .. } => {
            let op = op.to_string();
            behind(left, &[op.split(' ').next().unwrap_or(&op)])
        }
        Expr::UnaryOp { op, .. } => before(&[&op.to_string()]),
        Expr::Cast { expr: inner, .. } => {
            let cast = before(&["CAST", "TRY_CAST", "SAFE_CAST"]);
            let at = tokens.iter().position(|t| t.span == cast).unwrap_or_default();
            let opens = tokens.get(at + 1).is_some_and(|t| t.token == Token::LParen);
            let holds = tokens.get(at + 2).is_some_and(|t| t.span.start >= whole.start);
            if opens && holds && cast.start < whole.start { cast } else { behind(inner, &["::"]) }
        }
        Expr::Like { expr, .. } => behind(expr, &["LIKE"]),
        Expr::ILike { expr, .. } => behind(expr, &["ILIKE"]),
        Expr::SimilarTo { expr, .. } => behind(expr, &["SIMILAR"]),
        Expr::Between { expr, .. } => behind(expr, &["BETWEEN"]),
        Expr::InList { expr, .. } | Expr::InSubquery { expr, .. } => behind(expr, &["IN"]),
        Expr::IsNull(expr)
        | Expr::IsNotNull(expr)
        | Expr::IsTrue(expr)
        | Expr::IsNotTrue(expr)
        | Expr::IsFalse(expr)
        | Expr::IsNotFalse(expr)
        | Expr::IsUnknown(expr)
        | Expr::IsNotUnknown(expr)
        | Expr::IsDistinctFrom(expr, _)
        | Expr::IsNotDistinctFrom(expr, _) => behind(expr, &["IS"]),
        Expr::AtTimeZone { timestamp, .. } => behind(timestamp, &["AT"]),
        Expr::Exists { .. } => before(&["EXISTS"]),
        Expr::Extract { .. } => before(&["EXTRACT"]),
        Expr::Substring { .. } => before(&["SUBSTRING", "SUBSTR"]),
        Expr::Trim { .. } => before(&["TRIM"]),
        Expr::Position { .. } => before(&["POSITION"]),
        Expr::Overlay { .. } => before(&["OVERLAY"]),
        Expr::Ceil { .. } => before(&["CEIL", "CEILING"]),
        Expr::Floor { .. } => before(&["FLOOR"]),
        Expr::Interval(_) => before(&["INTERVAL"]),
        Expr::Array(array) if array.named => before(&["ARRAY"]),
        Expr::Array(_) => before(&["["]),
        Expr::CompoundFieldAccess { root, .. } => behind(root, &["[", "."]),
        _ => first(),
    }
}

fn is_sign(token: &TokenWithSpan, sign: &str) -> bool {
    is_word(token, sign) || token.token.to_string() == sign
}

/// The first token of a place: of `t.c`, all.
fn token_at(whole: Span, tokens: &[TokenWithSpan]) -> Span {
    let here = tokens.iter().position(|t| t.span.start >= whole.start);
    let Some(at) = here else { return whole };
    let mut span = tokens[at].span;
    for pair in tokens[at + 1..].chunks_exact(2) {
        if pair[0].token != Token::Period || pair[1].span.end > whole.end {
            break;
        }
        span = span.union(&pair[1].span);
    }
    span
}

/// The functions that stand for what was left out, of any arguments.
const NAME: &str = "__without";
const CONDITION: &str = "__without_condition";

/// `__without(…)`: NULL; as a condition, a BOOLEAN.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Without {
    name: &'static str,
    signature: Signature,
}

/// The functions, for the planner of SQL.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 2] {
    [NAME, CONDITION].map(|name| {
        let any = vec![TypeSignature::VariadicAny, TypeSignature::Nullary];
        let signature = Signature::one_of(any, Volatility::Volatile);
        Arc::new(ScalarUDF::from(Without { name, signature }))
    })
}

impl ScalarUDFImpl for Without {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(if self.name == CONDITION { DataType::Boolean } else { DataType::Null })
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is never computed", self.name)
    }
}
