//! Checks of expressions.

use datafusion::logical_expr::planner::ContextProvider;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CaseWhen, CastFormat, CastKind, CeilFloorKind, DuplicateTreatment, Expr,
    Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArgumentList,
    FunctionArguments, Ident, NamedWindowExpr, NullTreatment, Spanned, UnaryOperator, Value,
    ValueWithSpan, WindowFrame, WindowSpec, WindowType,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::{At, Checked, Refused, order_by_exprs, similar, times};

/// Window functions that say which values they pass over.
const NULLS: [&str; 5] = ["first_value", "lag", "last_value", "lead", "nth_value"];

pub(super) fn expr(expr: &mut Expr, names: &dyn ContextProvider) -> Checked {
    match expr {
        Expr::Function(called) => function(called, names),
        Expr::Like { negated: _, any, expr, pattern, escape_char }
        | Expr::ILike { negated: _, any, expr, pattern, escape_char } => {
            if *any {
                let hint = "write one LIKE for each pattern, with OR";
                return Refused::hinted("LIKE ANY", At::Behind(expr.span()), hint);
            }
            escape(pattern, escape_char)
        }
        Expr::SimilarTo { negated: _, expr: _, pattern: _, escape_char: _ } => {
            similar::rewrite(expr)
        }
        Expr::Value(ValueWithSpan { value, span: _ }) => {
            text(value);
            Ok(())
        }
        Expr::Cast { kind, expr, data_type: _, array, format } => {
            match kind {
                CastKind::Cast | CastKind::TryCast | CastKind::SafeCast | CastKind::DoubleColon => {
                }
            }
            cast(At::Behind(expr.span()), *array, format.as_ref())
        }
        Expr::AtTimeZone { timestamp, time_zone } => match **time_zone {
            Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(_), span: _ }) => Ok(()),
            _ => Refused::with_hint(
                "AT",
                At::Behind(timestamp.span()),
                "the zone of AT TIME ZONE is no constant",
                "write it in single quotes: AT TIME ZONE 'Europe/Zurich'",
            ),
        },
        Expr::Ceil { expr, field } | Expr::Floor { expr, field } => {
            rounding(At::Behind(expr.span()), field)
        }
        Expr::Trim { trim_where: _, trim_what: _, expr, trim_characters } => {
            match trim_characters.as_ref().map_or(0, Vec::len) {
                0 | 1 => Ok(()),
                _ => {
                    let message = "TRIM takes one text of characters";
                    let hint = "write them together: TRIM(text, 'ab')";
                    Refused::with_hint(",", At::Behind(expr.span()), message, hint)
                }
            }
        }
        Expr::Case { case_token: _, end_token: _, operand: None, conditions, else_result: _ } => {
            conditions
                .iter()
                .try_for_each(|CaseWhen { condition, result: _ }| self::condition(condition))
        }
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            condition(left)?;
            condition(right)
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => condition(expr),
        Expr::AnyOp { left, compare_op, right, is_some: _ }
            if !matches!(**right, Expr::Subquery(_)) =>
        {
            if let Some(op) = negated(compare_op) {
                let (left, right) = (left.clone(), right.clone());
                let all = Expr::AllOp { left, compare_op: op, right };
                *expr = Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(all) };
            }
            Ok(())
        }
        other => unknown(other),
    }
}

fn cast(behind: At, array: bool, format: Option<&CastFormat>) -> Checked {
    match format {
        Some(CastFormat::Value(_) | CastFormat::ValueAtTimeZone(_, _)) => {
            let hint = "write to_timestamp(text, format), or to_char(time, format)";
            Refused::hinted("FORMAT", behind, hint)
        }
        None if array => Refused::new("ARRAY", behind),
        None => Ok(()),
    }
}

fn rounding(behind: At, field: &CeilFloorKind) -> Checked {
    match field {
        CeilFloorKind::DateTimeField(_) => Ok(()),
        CeilFloorKind::Scale(_) => {
            let message = "CEIL and FLOOR take one argument";
            Refused::with_hint(",", behind, message, "write round(value, digits)")
        }
    }
}

/// The operator that is true where a comparison is false. Of an element that is NULL, DataFusion's
/// `ANY` of an array says that it is another one; its `ALL` says NULL.
fn negated(op: &BinaryOperator) -> Option<BinaryOperator> {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    Some(match op {
        Eq => NotEq,
        NotEq => Eq,
        Lt => GtEq,
        LtEq => Gt,
        Gt => LtEq,
        GtEq => Lt,
        _ => return None,
    })
}

/// Refuses a number or a text that stands for a condition, which is BOOLEAN.
pub(super) fn condition(expr: &Expr) -> Checked {
    match expr {
        Expr::Nested(inner) => condition(inner),
        Expr::Value(ValueWithSpan { value, span }) => {
            let (of, hint) = match value {
                Value::Boolean(_) | Value::Null | Value::Placeholder(_) => return Ok(()),
                Value::Number(..) => ("a number", "compare it: … <> 0"),
                _ => ("a text", "compare it with something, or write TRUE or FALSE"),
            };
            let message = format!("a condition is BOOLEAN, and this is {of}");
            Refused::with_hint("", At::Here(*span), &message, hint)
        }
        _ => Ok(()),
    }
}

/// Expressions that nobody computes; those with nothing to decide are named too.
fn unknown(expr: &Expr) -> Checked {
    let behind = |expr: &Expr| At::Behind(expr.span());
    match expr {
        Expr::JsonAccess { value, path: _ } => {
            let message = "a field is not taken by ':'";
            Refused::with_hint(":", behind(value), message, "write value['name']")
        }
        Expr::IsNormalized { expr, form: _, negated: _ } => Refused::new("IS", behind(expr)),
        Expr::InUnnest { expr, array_expr: _, negated: _ } => {
            Refused::hinted("UNNEST", behind(expr), "write array_has(array, value)")
        }
        Expr::RLike { negated: _, expr, pattern: _, regexp } => {
            let word = if *regexp { "REGEXP" } else { "RLIKE" };
            Refused::hinted(word, behind(expr), "write text ~ pattern")
        }
        Expr::Convert {
            is_try: _,
            expr,
            data_type: _,
            charset: _,
            target_before_value: _,
            styles: _,
        } => Refused::hinted("CONVERT", At::Before(expr.span()), "write CAST(… AS …)"),
        Expr::Collate { expr, collation: _ } => {
            Refused::hinted("COLLATE", behind(expr), "texts are compared by their bytes")
        }
        Expr::Prefixed { prefix, value: _ } => Refused::new(&prefix.value, At::Here(prefix.span)),
        Expr::MatchAgainst { columns, match_value: _, opt_search_modifier: _ } => {
            let first = columns.first().map_or(Span::empty(), Spanned::span);
            Refused::new("MATCH", At::Before(first))
        }
        Expr::OuterJoin(expr) => {
            Refused::with_hint("(", behind(expr), "(+) is not supported", "write LEFT JOIN")
        }
        Expr::Prior(expr) => Refused::new("PRIOR", At::Before(expr.span())),
        Expr::MemberOf(of) => {
            Refused::hinted("MEMBER", behind(&of.value), "write array_has(array, value)")
        }
        Expr::Interval(interval) => times::interval(interval),
        Expr::Extract { field, syntax: _, expr } => times::extract(field, expr),
        known => carried_out(known),
    }
}

/// Expressions that DataFusion carries out, or says why it does not.
fn carried_out(expr: &Expr) -> Checked {
    use Expr::{
        AllOp, AnyOp, Array, AtTimeZone, Between, BinaryOp, Case, Cast, Ceil, Collate,
        CompoundFieldAccess, CompoundIdentifier, Convert, Cube, Dictionary, Exists, Extract, Floor,
        Function, GroupingSets, ILike, Identifier, InList, InSubquery, InUnnest, IsDistinctFrom,
        IsFalse, IsNormalized, IsNotDistinctFrom, IsNotFalse, IsNotNull, IsNotTrue, IsNotUnknown,
        IsNull, IsTrue, IsUnknown, JsonAccess, Lambda, Like, Map, MatchAgainst, MemberOf, Named,
        Nested, OuterJoin, Overlay, Position, Prefixed, Prior, QualifiedWildcard, RLike, Rollup,
        SimilarTo, Struct, Subquery, Substring, Trim, Tuple, TypedString, UnaryOp, Value, Wildcard,
    };
    match expr {
        Identifier(_) | CompoundIdentifier(_) | Value(_) | TypedString(_) => Ok(()),
        IsFalse(_) | IsNotFalse(_) | IsTrue(_) | IsNotTrue(_) | IsNull(_) | IsNotNull(_) => Ok(()),
        IsUnknown(_) | IsNotUnknown(_) | IsDistinctFrom(..) | IsNotDistinctFrom(..) => Ok(()),
        GroupingSets(_) | Cube(_) | Rollup(_) | Tuple(_) | Dictionary(_) | Map(_) => Ok(()),
        Nested(_) | Subquery(_) | Array(_) | Lambda(_) | Wildcard(_) => Ok(()),
        QualifiedWildcard(..) => Ok(()),
        CompoundFieldAccess { root: _, access_chain: _ } => Ok(()),
        InList { expr: _, list: _, negated: _ } => Ok(()),
        InSubquery { expr: _, subquery: _, negated: _ } => Ok(()),
        Exists { subquery: _, negated: _ } => Ok(()),
        Between { expr: _, negated: _, low: _, high: _ } => Ok(()),
        BinaryOp { left: _, op: _, right: _ } | UnaryOp { op: _, expr: _ } => Ok(()),
        AnyOp { left: _, compare_op: _, right: _, is_some: _ } => Ok(()),
        AllOp { left: _, compare_op: _, right: _ } => Ok(()),
        Position { expr: _, r#in: _ } => Ok(()),
        Substring { expr: _, substring_from: _, substring_for: _, special: _, shorthand: _ } => {
            Ok(())
        }
        Overlay { expr: _, overlay_what: _, overlay_from: _, overlay_for: _ } => Ok(()),
        Case { case_token: _, end_token: _, operand: _, conditions: _, else_result: _ } => Ok(()),
        Struct { values: _, fields: _ } | Named { expr: _, name: _ } => Ok(()),
        // Those that the callers take.
        Function(_) | OuterJoin(_) | Prior(_) | MemberOf(_) => Ok(()),
        Like { .. } | ILike { .. } | SimilarTo { .. } | Cast { .. } | AtTimeZone { .. } => Ok(()),
        Ceil { .. } | Floor { .. } | Trim { .. } | JsonAccess { .. } | RLike { .. } => Ok(()),
        IsNormalized { .. } | InUnnest { .. } | Convert { .. } | Collate { .. } => Ok(()),
        Prefixed { .. } | MatchAgainst { .. } | Expr::Interval(_) | Extract { .. } => Ok(()),
    }
}

/// Texts that are written in another way are texts: `N'…'` and `U&'…'`.
fn text(value: &mut Value) {
    if let Value::NationalStringLiteral(text) | Value::UnicodeStringLiteral(text) = value {
        *value = Value::SingleQuotedString(std::mem::take(text));
    }
}

/// Writes a pattern with another escape character with a backslash, which is DataFusion's.
fn escape(pattern: &mut Expr, escape_char: &mut Option<ValueWithSpan>) -> Checked {
    let Some(ValueWithSpan { value, span }) = escape_char.take() else { return Ok(()) };
    let refused = |message: &str| {
        let (words, at, message) = ("ESCAPE".into(), At::Before(span), Some(message.to_string()));
        Err(Refused { words, at, message, hint: None })
    };
    let escape = match value {
        Value::SingleQuotedString(text) if text.chars().count() <= 1 => text.chars().next(),
        _ => return refused("ESCAPE takes one character in single quotes"),
    };
    if escape == Some('\\') {
        return Ok(());
    }
    let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), span: _ }) = pattern
    else {
        return refused("ESCAPE is supported behind a pattern in single quotes only");
    };
    let mut written = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => written.push_str("\\\\"),
            letter if Some(letter) == escape => {
                let Some(next) = letters.next() else {
                    return refused("the pattern ends with its escape character");
                };
                written.extend(['\\', next]);
            }
            letter => written.push(letter),
        }
    }
    *text = written;
    Ok(())
}

/// DataFusion's treatment of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It computes a value of each row, whatever stands behind its arguments.
    Scalar,
    /// It looks at the rows around one.
    Window,
    /// It may be an aggregate.
    Aggregate {
        /// Whether there is one of its name; a name that nobody knows is refused later.
        known: bool,
        /// Whether it can be said that it passes over NULL.
        nulls: bool,
    },
}

impl Kind {
    fn of(function: &Function, names: &dyn ContextProvider) -> Self {
        let part = match &function.name.0[..] {
            [part] => part.as_ident(),
            _ => None,
        };
        let Some(Ident { value, quote_style, span: _ }) = part else {
            return Self::Aggregate { known: false, nulls: false };
        };
        let name = if quote_style.is_some() { value.clone() } else { value.to_ascii_lowercase() };
        let scalar = names.get_function_meta(&name).is_some()
            || names.get_higher_order_meta(&name).is_some()
            || ["unnest", "unnest_outer"].contains(&name.as_str());
        if scalar {
            return Self::Scalar;
        }
        if function.over.is_some() && names.get_window_meta(&name).is_some() {
            return Self::Window;
        }
        let udaf = names.get_aggregate_meta(&name);
        let nulls = udaf.as_ref().is_some_and(|udaf| udaf.supports_null_handling_clause());
        Self::Aggregate { known: udaf.is_some(), nulls }
    }
}

/// Whether a call is that of an aggregate of groups.
pub(super) fn is_aggregate(call: &Function, names: &dyn ContextProvider) -> bool {
    call.over.is_none() && matches!(Kind::of(call, names), Kind::Aggregate { known: true, .. })
}

fn function(function: &Function, names: &dyn ContextProvider) -> Checked {
    let Function {
        name,
        uses_odbc_syntax: _,
        parameters,
        args,
        filter,
        null_treatment,
        over,
        within_group,
    } = function;
    let kind = Kind::of(function, names);
    let behind = || At::Behind(name.span());
    match parameters {
        FunctionArguments::None => {}
        FunctionArguments::Subquery(_) | FunctionArguments::List(_) => {
            let message = "a function has one list of arguments";
            return Refused::with_hint("(", behind(), message, "write all in one: f(0.5, x)");
        }
    }
    let mut nulls = *null_treatment;
    match args {
        FunctionArguments::None => {}
        FunctionArguments::Subquery(_) => {
            let hint = "a subquery as an argument has parentheses of its own: f((SELECT …))";
            let message = "a subquery cannot be the only argument so";
            return Refused::with_hint("SELECT", behind(), message, hint);
        }
        FunctionArguments::List(list) => nulls = arguments(list, kind, &behind)?.or(nulls),
    }
    if matches!(args, FunctionArguments::List(list) if list.args.iter().any(is_star))
        && !matches!(kind, Kind::Aggregate { known: false, .. })
        && !name.to_string().eq_ignore_ascii_case("count")
    {
        return Refused::with_hint("*", behind(), "only count takes a star", "name a column");
    }
    match over {
        Some(WindowType::WindowSpec(spec)) => window(spec)?,
        Some(WindowType::NamedWindow(_)) | None => {}
    }
    order_by_exprs(within_group)?;
    by_name(function)?;
    let scalar = "a function of one row takes its arguments only";
    if kind == Kind::Scalar {
        let clauses = [
            (filter.is_some(), "FILTER"),
            (nulls.is_some(), words_of(nulls)),
            (over.is_some(), "OVER"),
            (!within_group.is_empty(), "WITHIN GROUP"),
        ];
        if let Some((_, words)) = clauses.into_iter().find(|(there, _)| *there) {
            return Refused::hinted(words, behind(), scalar);
        }
    }
    let named = |any_of: &[&str]| any_of.iter().any(|n| name.to_string().eq_ignore_ascii_case(n));
    let heeds_nulls = match kind {
        Kind::Scalar => true,
        Kind::Window => named(&NULLS),
        Kind::Aggregate { nulls, .. } => nulls || over.is_none(),
    };
    if nulls.is_some() && !heeds_nulls {
        return Refused::new(words_of(nulls), behind());
    }
    match filter {
        Some(_) if kind == Kind::Window => {
            Refused::hinted("FILTER", behind(), "FILTER is for aggregates")
        }
        Some(filter) => condition(filter),
        None => Ok(()),
    }
}

/// Checks of functions that are known by their names.
fn by_name(function: &Function) -> Checked {
    let name = function.name.to_string();
    if function.over.is_some() && name.eq_ignore_ascii_case("grouping") {
        let message = "GROUPING tells of the groups of GROUP BY, and takes no OVER";
        let behind = At::Behind(function.name.span());
        return Refused::with_hint("OVER", behind, message, "write GROUPING(k) alone");
    }
    times::call(&name, &function.args)
}

fn is_star(arg: &FunctionArg) -> bool {
    matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::Wildcard))
}

fn words_of(nulls: Option<NullTreatment>) -> &'static str {
    match nulls {
        Some(NullTreatment::RespectNulls) => "RESPECT NULLS",
        Some(NullTreatment::IgnoreNulls) | None => "IGNORE NULLS",
    }
}

/// Checks the text between the parentheses; returns its treatment of NULL.
fn arguments(
    list: &FunctionArgumentList,
    kind: Kind,
    behind: &dyn Fn() -> At,
) -> Result<Option<NullTreatment>, Refused> {
    let FunctionArgumentList { duplicate_treatment, args, clauses } = list;
    match duplicate_treatment {
        Some(DuplicateTreatment::Distinct) if !matches!(kind, Kind::Aggregate { .. }) => {
            return Refused::hinted("DISTINCT", behind(), "DISTINCT is for aggregates");
        }
        Some(DuplicateTreatment::Distinct | DuplicateTreatment::All) | None => {}
    }
    for arg in args {
        let arg = match arg {
            FunctionArg::Named { name: _, arg, operator: _ }
            | FunctionArg::ExprNamed { name: _, arg, operator: _ }
            | FunctionArg::Unnamed(arg) => arg,
        };
        match arg {
            FunctionArgExpr::Expr(_)
            | FunctionArgExpr::QualifiedWildcard(_)
            | FunctionArgExpr::Wildcard => {}
            FunctionArgExpr::WildcardWithOptions(_) => {
                let message = "nothing can stand behind the star of a function";
                return Refused::with_hint("*", behind(), message, "write count(*)");
            }
        }
    }
    let mut nulls = None;
    for clause in clauses {
        let words = match clause {
            FunctionArgumentClause::IgnoreOrRespectNulls(treatment) => {
                nulls = Some(*treatment);
                continue;
            }
            FunctionArgumentClause::OrderBy(exprs) => {
                order_by_exprs(exprs)?;
                match kind {
                    Kind::Aggregate { .. } => continue,
                    Kind::Scalar | Kind::Window => "ORDER BY",
                }
            }
            FunctionArgumentClause::Limit(_) => "LIMIT",
            FunctionArgumentClause::OnOverflow(_) => "ON OVERFLOW",
            FunctionArgumentClause::Having(_) => "HAVING",
            FunctionArgumentClause::Separator(_) => "SEPARATOR",
            FunctionArgumentClause::JsonNullClause(_) => "NULL ON NULL",
            FunctionArgumentClause::JsonReturningClause(_) => "RETURNING",
        };
        return Refused::new(words, behind());
    }
    Ok(nulls)
}

/// A window of the `WINDOW` clause.
pub(super) fn named(named: &NamedWindowExpr) -> Checked {
    match named {
        NamedWindowExpr::NamedWindow(_) => Ok(()),
        NamedWindowExpr::WindowSpec(spec) => window(spec),
    }
}

fn window(spec: &WindowSpec) -> Checked {
    let WindowSpec { window_name: _, partition_by: _, order_by, window_frame } = spec;
    match window_frame {
        Some(WindowFrame { units: _, start_bound: _, end_bound: _ }) | None => {}
    }
    order_by_exprs(order_by)
}
