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

mod spans;

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Distinct, Expr, GroupByExpr, Ident, JoinConstraint, JoinOperator, LimitClause,
    OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, SetOperator, Spanned, TableAlias,
    TableFactor, TableWithJoins, Value, Values, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::{Span, TokenWithSpan};

use self::spans::{around, last_before, own_token, whole_span};
use crate::text::syntax::{function_call, parser, split};

/// The outcome of planning a query without some of its parts.
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
pub(crate) struct FaultyPart {
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
) -> Option<FaultyPart> {
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
    Some(FaultyPart { token, around: around(query, span), text })
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
                    let sign = last_before(whole_span(right), tokens, &[word, "MINUS"]);
                    let token = sign.unwrap_or(whole);
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
            let right = whole_span(&join.relation);
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
                JoinConstraint::Natural => {
                    let text = "NATURAL".to_owned();
                    let of = |tokens: &[TokenWithSpan]| {
                        let token = last_before(right, tokens, &["NATURAL"]).unwrap_or(right);
                        Found { span: token, token, text }
                    };
                    if self.part(of) {
                        *constraint = JoinConstraint::On(truth());
                    }
                }
                JoinConstraint::None => {}
            }
        }
    }

    fn table(&mut self, table: &mut TableFactor) {
        match table {
            TableFactor::Derived { subquery, alias, .. } => {
                self.query(subquery);
                self.names_of_columns(alias);
            }
            TableFactor::Table { alias, .. } => self.names_of_columns(alias),
            TableFactor::NestedJoin { table_with_joins, .. } => self.joined(table_with_joins),
            TableFactor::UNNEST { array_exprs, .. } => {
                array_exprs.iter_mut().for_each(|expr| self.expr(expr));
            }
            _ => {}
        }
    }

    /// The names of columns behind the name of a table.
    fn names_of_columns(&mut self, alias: &mut Option<TableAlias>) {
        let Some(alias) = alias.as_mut().filter(|alias| !alias.columns.is_empty()) else { return };
        let (token, text) = (alias.columns[0].name.span, alias.to_string());
        let span = alias.columns.iter().fold(token, |all, name| all.union(&name.name.span));
        if self.part(|_| Found { span, token, text }) {
            alias.columns.clear();
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        // It never breaks off.
        let _ = expr.visit(self);
    }

    /// An expression that must be a BOOLEAN.
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

/// An expression without its outermost part: the parts within it, as the arguments
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
    let args: Vec<_> = parts.collect();
    if args.is_empty() && function == NAME {
        return null();
    }
    function_call(Ident::new(function), args)
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
