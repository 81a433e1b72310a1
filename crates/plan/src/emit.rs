//! `EMIT EVERY INTERVAL '10' SECOND` behind a query, and `EMIT_KIND()`: windows that are given out
//! before they end.
//!
//! Nothing is taken back, so that rows must not be taken for more than they are behind the grouping
//! whose windows these are: only filters, projections and `UNION ALL` may stand between it and the
//! statement's sink. `EMIT_KIND()` is a column of that grouping.

use std::num::NonZeroU64;

use arrow::datatypes::{DataType, Field};
use dataflow::job::OperatorKind;
use datafusion::common::exec_err;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Expr, LogicalPlan, Signature, Volatility,
};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::diagnostics::{Diagnostic, Place};
use crate::explain::span_ns;
use crate::grouping::GroupWindow;
use crate::interval::interval;
use crate::relation::{Base, Refusal, Relation, Stop};
use crate::syntax::{Cursor, is_word};
use crate::tumble::Shape;
use crate::weave::Weaver;

/// The column of a grouping that says which rows are early.
pub(crate) const COLUMN: &str = "EMIT_KIND()";

/// How many windows of a row may be given out early: each has a copy of its groups made for it,
/// every time.
const WINDOWS_OF_ROW_MAX: i64 = 100;

/// An interval is at least a millisecond.
const EVERY_NS_MIN: i64 = 1_000_000;

const FORM: &str = "write EMIT EVERY INTERVAL '10' SECOND";

/// `EMIT EVERY …`.
#[derive(Debug, Clone)]
pub(crate) struct Emit {
    pub(crate) every_ns: NonZeroU64,
    /// Where it stands.
    place: Place,
}

/// Takes `EMIT …` from the end of a query.
pub(crate) fn split(
    tokens: &[TokenWithSpan],
) -> Result<(&[TokenWithSpan], Option<Emit>), Diagnostic> {
    let mut depth = 0i32;
    let mut found = None;
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ if begins(&tokens[at..]) && depth > 0 => {
                let message = "EMIT stands at the end of a statement";
                return Err(Diagnostic::at(Place::of(token.span), message).hint(
                    "behind the whole query; the grouping next to the statement's sink is the one \
                     that is meant",
                ));
            }
            _ if begins(&tokens[at..]) => found = Some(at),
            _ => {}
        }
    }
    let Some(at) = found else {
        let asks = |token: &&TokenWithSpan| is_word(token, "EMIT_KIND");
        return match tokens.iter().find(asks) {
            Some(token) => Err(Diagnostic::at(
                Place::of(token.span),
                "EMIT_KIND() tells early rows from final ones, and this query has no EMIT",
            )
            .hint("add EMIT EVERY INTERVAL '10' SECOND at its end, or leave EMIT_KIND() out")),
            None => Ok((tokens, None)),
        };
    };
    let mut cursor = Cursor::new(tokens);
    cursor.skip(at + 1);
    let emit = read(&mut cursor, Place::of(tokens[at].span))?;
    cursor.end()?;
    Ok((&tokens[..at], Some(emit)))
}

/// Whether a clause begins here, and not a thing of that name.
fn begins(tokens: &[TokenWithSpan]) -> bool {
    let word = |at: usize, word: &str| tokens.get(at).is_some_and(|token| is_word(token, word));
    let forms = ["EVERY", "STREAM", "AFTER", "CHANGES", "FINAL", "PERIODIC", "INTERVAL"];
    word(0, "EMIT")
        && (forms.iter().any(|form| word(1, form)) || word(1, "ON") && word(2, "WINDOW"))
}

fn read(cursor: &mut Cursor<'_>, place: Place) -> Result<Emit, Diagnostic> {
    if !cursor.words("EVERY") {
        let form = cursor.peek().map(|token| token.token.to_string().to_uppercase());
        let error = Diagnostic::at(place, "windows are given out early EVERY so often");
        return Err(match form.as_deref() {
            Some("STREAM" | "CHANGES") => error
                .detail("rows are never taken back: an early row is followed by a later one")
                .hint(FORM),
            Some("FINAL" | "ON") => error.hint(
                "leave EMIT out: a window is given out once, when it has ended, if nothing is said",
            ),
            _ => error.hint(FORM),
        });
    }
    let every = interval(cursor).map_err(|error| match error.hint {
        Some(_) => error,
        None => error.hint(FORM),
    })?;
    let every_ns = u64::try_from(every.ns.max(0)).ok().and_then(NonZeroU64::new);
    match every_ns.filter(|_| every.ns >= EVERY_NS_MIN) {
        Some(every_ns) => Ok(Emit { every_ns, place }),
        None => Err(Diagnostic::at(every.place, "an interval of EMIT is at least a millisecond")),
    }
}

impl Emit {
    /// For EXPLAIN.
    pub(crate) fn shown(&self) -> String {
        let every = i64::try_from(self.every_ns.get()).unwrap_or(i64::MAX);
        format!("every {}, what windows have come to that have changed", span_ns(every))
    }

    /// The error that it is written where rows do not go to a sink.
    pub(crate) fn elsewhere(&self, what: &str) -> Diagnostic {
        Diagnostic::at(self.place, format!("EMIT is for a statement's sink, and this is {what}"))
            .hint("write it at the end of the SELECT or INSERT that reads it")
    }

    /// The error that there are no windows.
    pub(crate) fn without_windows(&self) -> Diagnostic {
        self.refused("no rows are grouped by a window here").hint(
            "FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) … \
                 GROUP BY window_start, window_end",
        )
    }

    fn refused(&self, reason: &str) -> Diagnostic {
        Diagnostic::at(self.place, format!("windows cannot be given out early: {reason}"))
    }
}

impl Weaver<'_> {
    /// Refuses EMIT where the next operator on the way from the sink is no grouping.
    pub(crate) fn check_emit(&self, plan: &LogicalPlan) -> Result<(), Stop> {
        let Some(emit) = &self.emit else { return Ok(()) };
        let behind = match plan {
            LogicalPlan::TableScan(_) => return Err(emit.without_windows().into()),
            LogicalPlan::Join(_) => "they are joined behind their grouping",
            LogicalPlan::Window(_) => {
                "rows are numbered, or looked at together, behind their grouping"
            }
            LogicalPlan::Unnest(_) => "their rows are multiplied behind their grouping",
            _ => return Ok(()),
        };
        Err(emit
            .refused(behind)
            .detail("what an early row went into could not be taken back")
            .hint("leave EMIT out, or INSERT the windows into a table and query that")
            .into())
    }

    /// Refuses EMIT for a grouping of which there is nothing to tell before its windows end.
    pub(crate) fn can_emit(
        &self,
        emit: &Emit,
        relation: &Relation,
        window: &Option<GroupWindow>,
    ) -> Result<(), Stop> {
        match window {
            None => Err(emit.without_windows().into()),
            Some(GroupWindow::Call(call)) if call.shape == Shape::Session => Err(emit
                .refused("a session that has not ended may still become part of another one")
                .hint("leave EMIT out, or take windows that do not depend on rows: TUMBLE, HOP")
                .into()),
            Some(GroupWindow::Call(call)) => {
                let most = call.lengths.size_ns / call.lengths.slide_ns;
                if most <= WINDOWS_OF_ROW_MAX {
                    return Ok(());
                }
                Err(emit
                    .refused(&format!("each row is in {most} of them"))
                    .detail(format!("{WINDOWS_OF_ROW_MAX} windows of a row are the most"))
                    .hint("make the slide or step longer")
                    .into())
            }
            Some(GroupWindow::Attached(_)) if !self.waits(relation) => Ok(()),
            Some(GroupWindow::Attached(_)) => Err(emit
                .refused("what they are made of comes when they have ended")
                .detail("it comes from another grouping, a join or a DISTINCT of the same windows")
                .hint("leave EMIT out; count(DISTINCT …) may be approx_distinct(…)")
                .into()),
        }
    }

    /// Whether rows wait in some operator before they come.
    fn waits(&self, relation: &Relation) -> bool {
        let keeps = |at: usize| {
            let kind = self.operators.get(at).map(|operator| &operator.kind);
            matches!(kind, Some(OperatorKind::Aggregate(_) | OperatorKind::Keyed(_)))
        };
        match &relation.base {
            Base::Operators { from, .. } => from.iter().any(|(at, _)| keeps(*at)),
            Base::Table(_) | Base::Looked(_) => false,
            Base::United { parts, .. } => parts.iter().any(|part| self.waits(part)),
        }
    }
}

/// The column of a grouping.
pub(crate) fn kind_field() -> Field {
    Field::new(COLUMN, DataType::Utf8, false)
}

/// Whether an aggregate of a grouping is `EMIT_KIND()`.
pub(crate) fn is_kind(call: &Expr) -> bool {
    let Expr::AggregateFunction(call) = call else { return false };
    call.func.inner().downcast_ref::<EmitKind>().is_some()
}

/// Why a grouping has no early rows to be told apart.
pub(crate) fn kind_unknown() -> Refusal {
    Refusal::new(&["EMIT_KIND"], "the grouping next to the statement's sink knows EMIT_KIND()")
        .hint("leave it out here")
}

/// `EMIT_KIND()`: `early` of groups of a window that may change, `final` of one that has ended. It
/// is asked as an aggregate is, so that it stays with its grouping; that gives it out by itself.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct EmitKind {
    signature: Signature,
}

impl EmitKind {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::nullary(Volatility::Volatile) }
    }
}

impl AggregateUDFImpl for EmitKind {
    fn name(&self) -> &str {
        "emit_kind"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        exec_err!("EMIT_KIND() is known of groups that are given out early")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax;

    fn of(sql: &str) -> Result<(usize, Option<u64>), String> {
        let tokens = syntax::split(sql).expect("tokens").swap_remove(0);
        let split = split(&tokens).map_err(|error| error.message);
        split.map(|(rest, emit)| (rest.len(), emit.map(|emit| emit.every_ns.get())))
    }

    #[test]
    fn the_clause_is_told_from_things_of_its_name() {
        assert_eq!(
            of("SELECT a FROM t EMIT EVERY INTERVAL '2' SECOND"),
            Ok((4, Some(2_000_000_000)))
        );
        assert_eq!(of("SELECT emit FROM emit AS emit"), Ok((6, None)));
        assert_eq!(of("SELECT emit, every FROM t JOIN emit ON emit.a = t.a"), Ok((16, None)));
        for sql in [
            "SELECT a FROM (SELECT 1 EMIT EVERY INTERVAL '1' SECOND) AS t",
            "SELECT 1 EMIT EVERY INTERVAL '1' SECOND LIMIT 1",
            "SELECT 1 EMIT EVERY 10",
            "SELECT 1 EMIT EVERY INTERVAL '0' SECOND",
            "SELECT 1 EMIT EVERY INTERVAL '-1' SECOND",
            "SELECT 1 EMIT STREAM AFTER DELAY INTERVAL '1' SECOND",
            "SELECT 1 EMIT CHANGES",
            "SELECT 1 EMIT ON WINDOW CLOSE",
            "SELECT EMIT_KIND()",
        ] {
            assert!(of(sql).is_err(), "{sql}");
        }
    }
}
