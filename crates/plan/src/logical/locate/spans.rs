//! Where the parts of a syntax tree stand: the tree has places for names and values only.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Query, Select, Spanned, TableFactor, Visit, Visitor, WindowType,
};
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use crate::text::syntax::is_word;

/// From the first to the last token of a tree that has a place.
pub(super) fn whole_span(tree: &impl Visit) -> Span {
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
pub(super) fn around(query: &Query, span: Span) -> Vec<Span> {
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
pub(super) fn own_token(expr: &Expr, tokens: &[TokenWithSpan]) -> Span {
    let whole = whole_span(expr);
    let first = || token_at(whole, tokens);
    // The last of these words in front of what stands within.
    let before = |words: &[&str]| last_before(whole, tokens, words).unwrap_or_else(first);
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

/// The last of these words in front of a place, or where it begins.
pub(super) fn last_before(place: Span, tokens: &[TokenWithSpan], words: &[&str]) -> Option<Span> {
    let end = tokens.partition_point(|token| token.span.start <= place.start);
    let is_one = |token: &&TokenWithSpan| words.iter().any(|word| is_sign(token, word));
    tokens[..end].iter().rfind(is_one).map(|token| token.span)
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
