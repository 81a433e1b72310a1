//! Temporal joins: each row of a stream with the version of a table at its time.
//!
//! ```sql
//! orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency
//! ```
//!
//! DataFusion has no such join. A pass over the tokens makes a condition of it, in which the time
//! of the table is that of its watermark, and here the condition is recognised:
//!
//! ```text
//! orders AS o JOIN rates AS r ON __as_of(o.ts, r.ts) AND o.currency = r.currency
//! ```
//!
//! As of a processing time (`PROCTIME()`) a table without versions is met as it was read: the
//! clause is left out, and the join is one with a table that ends.
//!
//! `ASOF JOIN` ([`asof`]) is another way to write it, which names the time of the table too.
//!
//! A condition on the table alone speaks of the version that a row meets. DataFusion moves it in
//! front of the join, where it would choose among versions; it is moved back. What a subquery on
//! the right filters stays there ([`crate::rewrite::versions`]).

mod asof;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef, TimeUnit};
use dataflow::job::KeyedOperator;
use dataflow::keyed::{JoinKind, TemporalJoin, TimedSide};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, exec_err};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use crate::broadcast::May;
use crate::catalog::{Catalog, Entry};
use crate::diagnostics::{Diagnostic, Place};
use crate::interval::tick_ns;
use crate::join::{On, Places};
use crate::relation::{Relation, Stop, own};
use crate::rewrite::versions::is_marked;
use crate::syntax::{Cursor, is_word};
use crate::weave::Weaver;

const NAME: &str = "__as_of";

/// What stands before the columns of a table that its own conditions need behind the join.
const HIDDEN: &str = "__as_of_";

const FORM: &str = "write stream AS s JOIN versions FOR SYSTEM_TIME AS OF s.ts AS v ON s.k = v.k";

/// Replaces each `FOR SYSTEM_TIME AS OF` and each `ASOF JOIN`.
pub(crate) fn rewrite(
    tokens: &[TokenWithSpan],
    catalog: &Catalog,
) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    let tokens = asof::rewrite(tokens)?;
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut cursor = Cursor::new(&tokens);
    while let Some(token) = cursor.peek() {
        let place = Place::of(token.span);
        if !cursor.words("FOR SYSTEM_TIME AS OF") {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        }
        let start = cursor.rest();
        let from = cursor.position();
        cursor.ident("the time of a row of the stream").map_err(|error| error.hint(FORM))?;
        while cursor.token(&Token::Period) {
            cursor.ident("a column")?;
        }
        let time = &start[..cursor.position() - from];
        let lookup = time.last().is_some_and(|name| is_processing_time(name, &tokens, catalog));
        let Some(Token::Word(table)) = out.last().map(|last| last.token.clone()) else {
            return Err(Diagnostic::at(place, "FOR SYSTEM_TIME follows a table").hint(FORM));
        };
        let alias_from = cursor.position();
        let rest = cursor.rest();
        let mut name = table.clone();
        let named = cursor.words("AS");
        if named || cursor.peek().is_some_and(|next| !is_word(next, "ON")) {
            cursor.ident("a name")?;
            if let Some(Token::Word(alias)) = rest.get(usize::from(named)).map(|t| t.token.clone())
            {
                name = alias;
            }
        }
        out.extend_from_slice(&rest[..cursor.position() - alias_from]);
        let on = cursor.peek().cloned();
        let Some(on) = on.filter(|_| cursor.words("ON")) else {
            let error = "FOR SYSTEM_TIME AS OF belongs to a JOIN with ON";
            return Err(Diagnostic::at(place, error).hint(FORM));
        };
        let span = on.span;
        out.push(on);
        if lookup && has_no_versions(&table.value, catalog) {
            continue;
        }
        let mut put = |token: Token| out.push(TokenWithSpan { token, span });
        put(Token::make_word(NAME, None));
        put(Token::LParen);
        time.iter().for_each(|token| put(token.token.clone()));
        put(Token::Comma);
        match versions(&table.value, catalog, place)? {
            Some(column) => {
                put(quoted(name.value));
                put(Token::Period);
                put(quoted(column));
            }
            // What the name is will be reported.
            None => time.iter().for_each(|token| put(token.token.clone())),
        }
        put(Token::RParen);
        put(Token::make_keyword("AND"));
    }
    Ok(out)
}

/// Whether the rows of a table are no versions: as of the time of processing, each is met as it was
/// read, which is what a join without a time says.
fn has_no_versions(name: &str, catalog: &Catalog) -> bool {
    matches!(catalog.get(name), Some(Entry::Table(table)) if table.event_time.is_none())
}

/// Whether `name` is a column that the query, a view or a table makes of `PROCTIME()`.
fn is_processing_time(name: &TokenWithSpan, query: &[TokenWithSpan], catalog: &Catalog) -> bool {
    let Token::Word(Word { value: name, .. }) = &name.token else { return false };
    let named = |at: usize| {
        let mut cursor = Cursor::new(&query[at..]);
        cursor.words("PROCTIME")
            && cursor.token(&Token::LParen)
            && cursor.token(&Token::RParen)
            && {
                cursor.words("AS");
                cursor.ident("a name").is_ok_and(|ident| ident.text == *name)
            }
    };
    let viewed = |expr: &Expr| {
        matches!(expr, Expr::Alias(alias) if alias.name == *name
            && matches!(&*alias.expr, Expr::ScalarFunction(call) if call.name() == "proctime"))
    };
    let known = |entry: &Entry| match entry {
        Entry::Table(table) => {
            table.computed().any(|column| column.field.name() == name && column.is_proctime())
        }
        Entry::View(view) => {
            let made = |node: &LogicalPlan| Ok(node.expressions().iter().any(viewed));
            view.plan.exists(made).unwrap_or(false)
        }
    };
    (0..query.len()).any(named) || catalog.entries().any(|(_, entry)| known(entry))
}

/// The time of the versions of a table, if there is such a table.
fn versions(name: &str, catalog: &Catalog, place: Place) -> Result<Option<String>, Diagnostic> {
    match catalog.get(name) {
        Some(Entry::Table(table)) => match &table.event_time {
            Some(time) => Ok(Some(time.column.clone())),
            None => Err(Diagnostic::at(place, format!("table '{name}' has no watermark"))
                .detail("its event time says from when on a row is the version of its key")
                .hint(
                    "declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND; or leave FOR \
                       SYSTEM_TIME out, if the table ends",
                )),
        },
        Some(Entry::View(_)) => {
            let error = format!("'{name}' is a view, and versions are those of a table");
            Err(Diagnostic::at(place, error).hint("name the table itself"))
        }
        None => Ok(None),
    }
}

fn quoted(text: String) -> Token {
    Token::Word(Word { value: text, quote_style: Some('"'), keyword: Keyword::NoKeyword })
}

/// What a join with versions asks.
struct Asked {
    row: Expr,
    version: Expr,
    /// Whether the version must be earlier than the row.
    earlier: bool,
    rest: Vec<Expr>,
}

/// Whether an expression has the condition in it.
pub(crate) fn is_asked(expr: &Expr) -> bool {
    expr.exists(|node| Ok(times(node).is_some())).unwrap_or(false)
}

/// The two times of the condition, and whether the version must be earlier than the row.
fn times(expr: &Expr) -> Option<(&Expr, &Expr, bool)> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == NAME => match &call.args[..] {
            [row, version, rest @ ..] => Some((row, version, !rest.is_empty())),
            _ => None,
        },
        _ => None,
    }
}

impl Weaver<'_> {
    /// A join with versions.
    pub(crate) fn versioned(
        &mut self,
        kind: JoinKind,
        [left, mut right]: [Relation; 2],
        on: On,
        filter: &Expr,
    ) -> Result<Relation, Stop> {
        let Asked { row, version, earlier, rest } = self.asked(filter)?;
        if !matches!(kind, JoinKind::Inner | JoinKind::Left) {
            let message = "only JOIN and LEFT JOIN take the version at a row's time";
            return Err(self.no_versions(message, self.form()));
        }
        if on.is_empty() {
            let message = "which version a row meets is not said by a key";
            return Err(self.no_versions(message, self.form()));
        }
        if right.names_all(&row) && left.names_all(&version) {
            let message = "a row meets the latest version up to its time, not the next one";
            return Err(self.no_versions(message, self.form()));
        }
        let moved = behind(&mut right, &on);
        if kind == JoinKind::Left && !(moved.is_empty() && rest.is_empty()) {
            let message = "a LEFT JOIN with versions takes equal keys and nothing else";
            return Err(self.no_versions(message, "filter with WHERE, or in the SELECT with CASE"));
        }
        let at = [left.rewrite(&row)?, right.rewrite(&version)?];
        let unit = self.unit_of(&at, &left, &right, [&row, &version])?;
        for name in columns_of(&moved) {
            let hidden = Column::new_unqualified(format!("{HIDDEN}{name}"));
            right.outputs.push((hidden, own(&name)));
        }

        let [row, version] = at;
        let at = [(row.clone(), Some(row)), (version.clone(), Some(version))];
        let mut meeting = self.meeting(JoinKind::Inner, &[left, right], on, at, None)?;
        meeting.may = May::versions();
        let side = |(places, schema): &(Places, SchemaRef)| TimedSide {
            schema: schema.clone(),
            keys: places.keys.clone(),
            time: places.at,
        };
        let [l, r] = &meeting.sides;
        let operator = TemporalJoin {
            sides: [side(l), side(r)],
            outer: kind == JoinKind::Left,
            earlier,
            schema: meeting.both.clone(),
        };
        let time = own(meeting.both.field(l.0.at).name());
        self.section.text("join", operator.describe());
        let often = (100_000_000 / tick_ns(unit)).max(1);
        let mut relation = self.met(meeting, Arc::new(operator), often, 1)?;
        relation.times = vec![time];
        for part in rest.into_iter().chain(moved.iter().map(hidden)) {
            relation = relation.filter(&part)?;
        }
        relation.outputs.retain(|(column, _)| !column.name.starts_with(HIDDEN));
        Ok(relation)
    }

    /// The condition, and what else is asked.
    fn asked(&self, filter: &Expr) -> Result<Asked, Stop> {
        let (mut asked, mut rest) = (None, vec![]);
        for part in split_conjunction(filter) {
            match times(part) {
                Some((row, version, earlier)) if asked.is_none() => {
                    asked = Some((row.clone(), version.clone(), earlier));
                }
                _ => rest.push(part.clone()),
            }
        }
        match asked.filter(|_| !rest.iter().any(is_asked)) {
            Some((row, version, earlier)) => Ok(Asked { row, version, earlier, rest }),
            None => {
                let message = "the condition of the join has OR in it";
                Err(self.no_versions(message, "put it in brackets"))
            }
        }
    }

    /// The unit of the times of both sides, if these are their event times.
    fn unit_of(
        &self,
        at: &[Expr; 2],
        left: &Relation,
        right: &Relation,
        named: [&Expr; 2],
    ) -> Result<TimeUnit, Stop> {
        let of = [(left, "stream"), (right, "versions")];
        for ((at, named), (side, what)) in at.iter().zip(named).zip(of) {
            if !side.times.contains(at) {
                let name = named.human_display();
                let message = format!("'{name}' is not the event time of the {what}");
                return Err(self.no_versions(&message, "name the column of its WATERMARK"));
            }
        }
        let types = [at[0].get_type(&left.scan), at[1].get_type(&right.scan)];
        let [l, r] = types.map(|of| of.map_err(|e| self.report(&e)));
        match (l?, r?) {
            (DataType::Timestamp(unit, zone), r)
                if r == DataType::Timestamp(unit, zone.clone()) =>
            {
                Ok(unit)
            }
            _ => {
                let message = "the times of the stream and of the versions are of different types";
                Err(self.no_versions(message, "declare both columns as TIMESTAMP(3)"))
            }
        }
    }

    /// An error rather than a refusal: nothing else can do the join.
    fn no_versions(&self, message: &str, hint: &str) -> Stop {
        let place = self.lowering.first_of(&["SYSTEM_TIME", "ASOF"]);
        Diagnostic::at(place, message).hint(hint).into()
    }

    /// The form of join that was written.
    fn form(&self) -> &'static str {
        let asof = self.lowering.around.tokens.iter().any(|token| is_word(token, "ASOF"));
        if asof { asof::FORM } else { FORM }
    }
}

/// Takes the conditions of the versions that are asked of the one that a row meets. Those of keys
/// alone let all versions of a key through or none, and stay; so do those that choose among
/// versions.
fn behind(right: &mut Relation, on: &On) -> Vec<Expr> {
    let keys: Vec<&Expr> = on.iter().map(|(_, key)| key).collect();
    let of_keys = |part: &Expr| {
        part.column_refs().into_iter().all(|column| keys.contains(&&Expr::Column(column.clone())))
    };
    let all = std::mem::take(&mut right.filters);
    let parts = all.iter().flat_map(split_conjunction).cloned();
    let (stay, moved) = parts.partition(|part| of_keys(part) || is_marked(part));
    right.filters = stay;
    moved
}

/// A condition of the table alone, behind the join.
fn hidden(part: &Expr) -> Expr {
    let named = part.clone().transform(|node| {
        Ok(match node {
            Expr::Column(column) => {
                let hidden = format!("{HIDDEN}{}", column.name);
                Transformed::yes(Expr::Column(Column::new_unqualified(hidden)))
            }
            other => Transformed::no(other),
        })
    });
    // The closure never fails, so neither does the walk.
    named.map_or_else(|_| part.clone(), |named| named.data)
}

/// The columns that conditions name, each once.
fn columns_of(conditions: &[Expr]) -> Vec<String> {
    let all = conditions.iter().flat_map(Expr::column_refs);
    let mut names: Vec<String> = all.map(|column| column.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// `__as_of(row, version)`: whether a version is the one at a row's time; with TRUE behind, the one
/// before it. It is the condition of a join and never computed.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct AsOf {
    signature: Signature,
}

impl AsOf {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::variadic_any(Volatility::Stable) }
    }
}

impl ScalarUDFImpl for AsOf {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        Ok(Field::new(NAME, DataType::Boolean, false).into())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        exec_err!("versions at a time are for streams, and not for what waits for all rows")
    }
}
