//! What DataFusion has against a query, as a [`Diagnostic`] that points at the user's own token.
//!
//! DataFusion gives places for columns, tables and functions; for everything else the place is
//! looked for: the first token of the statement that the message names.

use std::fmt;

use arrow::datatypes::TimeUnit;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::catalog::finer_hint;
use crate::expr::failure::{message_of, root};
use crate::logical::windows::{Shape, Site};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::names::plain;
use crate::text::syntax::{is_word, lower_first, syntax_error};
use crate::text::wording::{in_sql, said, signatures};

/// An error of ours on its way through DataFusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanError {
    /// There is no such table; the candidates follow.
    UnknownTable(String),
    /// The name is of something that could not be defined: that was reported already.
    Broken,
    /// A table's columns cannot be told; a complete diagnostic.
    Table(Box<Diagnostic>),
    /// A window over a column of this type.
    WindowOf(String),
    /// A window finer than the ticks of its column, and the column's type.
    WindowFiner(TimeUnit, String),
    /// A subquery looks at this column, which the row around it does not have.
    OutOfSight(String),
    /// What is not carried out, at the first of these words.
    Refused { words: &'static [&'static str], message: String, hint: &'static str },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::UnknownTable(name) => write!(f, "unknown table '{name}'"),
            PlanError::Broken => f.write_str("a definition above failed"),
            PlanError::Table(error) => f.write_str(&error.message),
            PlanError::WindowOf(name) => {
                write!(f, "a window needs a TIMESTAMP column, and this is {name}")
            }
            PlanError::WindowFiner(_, name) => {
                write!(f, "the window is finer than its time column, which is {name}")
            }
            PlanError::OutOfSight(name) => {
                write!(f, "a subquery looks at '{name}', which the row around it does not have")
            }
            PlanError::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<PlanError> for DataFusionError {
    fn from(error: PlanError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

/// What is known of a query when an error of it is reported.
pub(crate) struct Surroundings<'a> {
    /// The user's tokens.
    pub(crate) tokens: &'a [TokenWithSpan],
    /// Its windows.
    pub(crate) sites: &'a [Site],
    /// Names of tables and views.
    pub(crate) tables: Vec<&'a str>,
    /// Names of functions.
    pub(crate) functions: Vec<&'a str>,
}

impl Surroundings<'_> {
    /// The error for the user; `None` if its cause was reported already.
    pub(crate) fn report(&self, error: &DataFusionError) -> Option<Diagnostic> {
        let place = error
            .diagnostic()
            .and_then(|diagnostic| diagnostic.span)
            .map(|span| self.token_at(span.start.line, span.start.column));
        match root(error) {
            DataFusionError::External(inner) => match inner.downcast_ref::<PlanError>() {
                Some(ours) => self.ours(ours, place),
                None => Some(self.other(&inner.to_string(), place)),
            },
            DataFusionError::SchemaError(schema, _) => {
                let notes = error.diagnostic().map(|diagnostic| &diagnostic.notes[..]);
                let notes = notes.unwrap_or_default().iter();
                let possible = notes.filter_map(|n| n.message.strip_prefix("possible column "));
                Some(self.schema(schema, place, &possible.collect::<Vec<_>>()))
            }
            DataFusionError::SQL(parser, _) => Some(syntax_error(parser, self.tokens)),
            other => Some(self.other(&message_of(other), place)),
        }
    }

    fn ours(&self, error: &PlanError, place: Option<Place>) -> Option<Diagnostic> {
        let site = self.sites.first();
        match error {
            PlanError::Broken => None,
            PlanError::Table(diagnostic) => {
                let diagnostic = (**diagnostic).clone();
                let here = place.filter(|_| diagnostic.line == 0);
                Some(match here {
                    Some(place) => diagnostic.moved(place),
                    None => diagnostic,
                })
            }
            PlanError::UnknownTable(name) => {
                let place = place.or_else(|| self.named(name)).unwrap_or_else(|| self.start());
                let message = format!("unknown table '{name}'");
                Some(Diagnostic::at(place, message).nearest(
                    "tables and views",
                    name,
                    self.tables.iter().copied(),
                ))
            }
            PlanError::WindowOf(_) => {
                let place = site.map_or_else(|| self.start(), |site| site.time.place);
                let hint = "declare it as TIMESTAMP(3), or CAST it in a view";
                Some(Diagnostic::at(place, error.to_string()).hint(hint))
            }
            PlanError::WindowFiner(unit, _) => {
                let place = site.map_or_else(|| self.start(), |site| site.size.place);
                Some(Diagnostic::at(place, error.to_string()).hint(finer_hint(*unit)))
            }
            PlanError::OutOfSight(name) => {
                let place = self.written(name).unwrap_or_else(|| self.start());
                let hint = "it sees the columns of the query directly around it; behind GROUP BY, \
                            those that are grouped by";
                Some(Diagnostic::at(place, error.to_string()).hint(hint))
            }
            PlanError::Refused { words, message, hint } => {
                let place = place.or_else(|| words.iter().find_map(|word| self.named(word)));
                let place = place.unwrap_or_else(|| self.start());
                Some(Diagnostic::at(place, message.clone()).hint(*hint))
            }
        }
    }

    /// An error of names; `possible` are columns that may be meant.
    fn schema(&self, error: &SchemaError, place: Option<Place>, possible: &[&str]) -> Diagnostic {
        let of = |column: &Column| {
            let table = column.relation.as_ref().map(|relation| relation.table());
            let dotted = || table.and_then(|table| self.dotted(table, &column.name));
            place
                .or_else(dotted)
                .or_else(|| self.named(&column.name))
                .unwrap_or_else(|| self.start())
        };
        match error {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let name = &field.name;
                let table = field.relation.as_ref().map(|r| r.table().to_string());
                let qualified = |c: &&Column| match &table {
                    Some(table) => c.relation.as_ref().is_some_and(|r| r.table() == table),
                    None => true,
                };
                let place = self.last_part(of(field), name);
                if let Some(table) = &table
                    && !valid_fields.iter().any(|c| qualified(&c))
                {
                    let tables = valid_fields.iter().filter_map(|c| c.relation.as_ref());
                    let place = self.named(table).unwrap_or(place);
                    return Diagnostic::at(place, format!("unknown table '{table}' in this query"))
                        .nearest("tables here", table, tables.map(|r| r.table()));
                }
                let names = valid_fields.iter().filter(qualified).map(|c| c.name.as_str());
                Diagnostic::at(place, format!("unknown column '{name}'"))
                    .nearest("columns", name, names)
            }
            SchemaError::AmbiguousReference { field } => {
                let name = &field.name;
                let one_of = possible.iter().filter(|column| !column.starts_with("__"));
                let one_of = one_of.copied().collect::<Vec<_>>().join(" or ");
                Diagnostic::at(of(field), format!("column '{name}' is in more than one table"))
                    .hint(match one_of.is_empty() {
                        true => "write its table in front of it".to_owned(),
                        false => format!("say which: {one_of}"),
                    })
            }
            SchemaError::DuplicateUnqualifiedField { name }
            | SchemaError::DuplicateQualifiedField { name, .. } => {
                let place = self.named(name).unwrap_or_else(|| self.start());
                Diagnostic::at(place, format!("column '{name}' would be there twice"))
                    .hint("give one of them another name with AS")
            }
        }
    }

    fn other(&self, message: &str, place: Option<Place>) -> Diagnostic {
        let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
        if let Some(name) = between(first, "Invalid function '", "'") {
            let place = place.or_else(|| self.named(name)).unwrap_or_else(|| self.start());
            if let Some(shape) = Shape::named(name) {
                let message = format!("{} stands behind FROM", shape.word());
                return Diagnostic::at(place, message).hint(format!("FROM {}", shape.example()));
            }
            if self.functions.contains(&name) {
                let message = format!("{name} looks at the rows around one, and there are none");
                return Diagnostic::at(place, message).hint(format!("{name}() OVER (ORDER BY …)"));
            }
            return Diagnostic::at(place, format!("unknown function '{name}'")).nearest(
                "functions",
                name,
                self.functions.iter().copied(),
            );
        }
        if let Some(call) = between(message, "argument types '", "'") {
            return self.no_function(call, message, place);
        }
        if let Some(column) = between(first, "column \"", "\" must appear in the GROUP BY") {
            let name = column.rsplit('.').next().unwrap_or(column);
            let place = place.or_else(|| self.named(name)).unwrap_or_else(|| self.start());
            let message = format!("column '{name}' is neither grouped by nor aggregated");
            return Diagnostic::at(place, message)
                .hint(format!("GROUP BY {name} too, or take min({name})"));
        }
        if let Some(expression) =
            between(first, "unique expression names but the expression \"", "\" at")
        {
            return self.twice(expression, place);
        }
        if let Some(error) = self.unsupported(first, place) {
            return error;
        }
        let operator = between(first, " expression ", " to valid types")
            .or_else(|| first.split_once(" comparison operation ").map(|(_, sides)| sides))
            .or(first.starts_with("Divide by zero").then_some("/"))
            .and_then(|sides| sides.split(' ').find(|word| OPERATORS.contains(word)))
            .and_then(|op| self.tokens.iter().find(|t| t.token.to_string() == op));
        let place = place.or(operator.map(|token| Place::of(token.span)));
        let place = place.or_else(|| self.condition(first)).or_else(|| self.text(first));
        let place = place.or_else(|| self.mentioned(first));
        if let Some(said) = said(message) {
            let sign = |word: &&str| self.tokens.iter().find(|t| t.token.to_string() == **word);
            let word = |word: &&str| self.named(word).or_else(|| sign(word).map(place_of));
            let place = place.or_else(|| said.words.iter().find_map(word));
            let place = place.or_else(|| said.texts.iter().find_map(|text| self.named(text)));
            let error = Diagnostic::at(place.unwrap_or_else(|| self.start()), said.message);
            return match said.hint {
                Some(hint) => error.hint(hint),
                None => error,
            };
        }
        let place = place.or_else(|| self.clause_of(first));
        let place = place.unwrap_or_else(|| self.start());
        let said = in_sql(first.trim_end_matches(['.', ' ']));
        let error = Diagnostic::at(place, lower_first(&said));
        let rest = rest.trim();
        if rest.is_empty() { error } else { error.detail(rest) }
    }

    /// A call of a function that there is not for these types.
    fn no_function(&self, call: &str, message: &str, place: Option<Place>) -> Diagnostic {
        let (name, types) = call.split_once('(').unwrap_or((call, ""));
        let types = in_sql(types.strip_suffix(')').unwrap_or(types));
        let token = |text: &str| self.tokens.iter().find(|t| t.token.to_string() == text);
        let sign =
            |text| place.or_else(|| token(text).map(place_of)).unwrap_or_else(|| self.start());
        match name {
            "array_element" | "array_slice" if self.named(name).is_none() => {
                let of = types.split(", ").next().unwrap_or(&types);
                let message =
                    format!("[…] takes an element of an ARRAY or a MAP, and this is {of}");
                return Diagnostic::at(sign("["), message);
            }
            "make_array" if self.named(name).is_none() => {
                let message = format!("elements of an array have no type in common: {types}");
                return Diagnostic::at(sign("["), message).hint("CAST them to one type");
            }
            _ => {}
        }
        // What the parser calls by another name than it is written by.
        let written = WRITTEN.iter().filter(|(theirs, _)| *theirs == name);
        let written = written.map(|(_, ours)| *ours).find(|ours| self.named(ours).is_some());
        let (theirs, name) = (name, written.unwrap_or(name));
        let place = place.or_else(|| self.named(name)).unwrap_or_else(|| self.start());
        let error = Diagnostic::at(place, format!("there is no function {name}({types})"));
        let form = between(message, "coercion failed with: Error during planning: write ", " No");
        if let Some(form) = form {
            return error.hint(format!("write {form}"));
        }
        match message.split_once("Candidate functions:") {
            Some((_, list)) => match signatures(list) {
                Some(list) => {
                    let list = list.replace(&format!("{theirs}("), &format!("{name}("));
                    error.detail(format!("there are {list}"))
                }
                None => error.hint("CAST the arguments to types that have something in common"),
            },
            None => error,
        }
    }

    /// An expression whose name another one has.
    fn twice(&self, expression: &str, place: Option<Place>) -> Diagnostic {
        let alias = expression.rsplit_once(" AS ").map(|(_, alias)| alias);
        // That of a CAST stands between its brackets.
        let brackets = |alias: &str, bracket| alias.matches(bracket).count();
        let alias = alias.filter(|alias| brackets(alias, '(') == brackets(alias, ')'));
        // Of a cast the name is that of what is cast.
        let cast = || {
            let name = expression.rsplit(['.', '(']).next().unwrap_or(expression);
            name.split(" AS ").next().unwrap_or(name)
        };
        let name = alias.unwrap_or_else(cast);
        let place = self.named(name).or(place).unwrap_or_else(|| self.start());
        // What is computed has no name but its expression.
        let computed = expression.contains([' ', '[', '(']) && !expression.contains(" AS ");
        let written = computed.then(|| plain(expression));
        let name = written.as_deref().unwrap_or(name);
        Diagnostic::at(place, format!("column '{name}' would be there twice"))
            .hint("give one of them another name with AS")
    }

    /// What DataFusion has no plan for, where a better word than its own is known.
    fn unsupported(&self, first: &str, place: Option<Place>) -> Option<Diagnostic> {
        if first.starts_with("Dot access not supported for non-string") {
            let field = between(first, "value: \"", "\"").unwrap_or("field");
            let place = self.named(field).or(place).unwrap_or_else(|| self.start());
            let message = format!("'.{field}' cannot stand behind an element");
            return Some(Diagnostic::at(place, message).hint(format!("write ['{field}']")));
        }
        if let Some(expression) =
            first.strip_prefix("Physical plan does not support logical expression ")
        {
            return Some(self.subquery(expression, place));
        }
        if first.starts_with("Too many columns! The subquery") {
            let place = self.subquery_opens().or(place).unwrap_or_else(|| self.start());
            let message = "a subquery that stands for a value has one column";
            let columns = first.split_once("one column: ").map(|(_, columns)| in_sql(columns));
            let error = Diagnostic::at(place, message);
            return Some(match columns {
                Some(columns) => error.detail(format!("this one has {columns}")),
                None => error,
            });
        }
        if let Some(tree) = first.strip_prefix("Unsupported ast node ") {
            let tree = tree.strip_prefix("in sqltorel: ").unwrap_or(tree);
            let word = upper_snake(tree);
            let place = self.named(&word).or(place).unwrap_or_else(|| self.start());
            return Some(Diagnostic::at(place, format!("{word} is not supported")));
        }
        None
    }

    /// An expression of a subquery that DataFusion has no plan for, by the name of its tree.
    fn subquery(&self, tree: &str, place: Option<Place>) -> Diagnostic {
        let (words, hint) = match upper_snake(tree).as_str() {
            "EXISTS" => ("EXISTS", "write it in WHERE, or LEFT JOIN the rows that it is about"),
            "IN_SUBQUERY" => ("IN", "write it in WHERE, or LEFT JOIN the values"),
            "SET_COMPARISON" => ("SELECT", "compare with the min or max of the subquery"),
            "WINDOW_FUNCTION" => ("OVER", "write it in QUALIFY, or in SELECT of a subquery"),
            "OUTER_REFERENCE_COLUMN" => ("LATERAL", "join by what is equal on both sides"),
            _ => ("SELECT", "join it by what is equal on both sides: … GROUP BY the key"),
        };
        let opens = || match words {
            "SELECT" => self.subquery_opens(),
            "IN" => self.tokens.windows(3).find(|three| opens_in(three)).map(|t| place_of(&t[0])),
            word => self.named(word),
        };
        let place = opens().or(place).unwrap_or_else(|| self.start());
        let message = match words {
            "LATERAL" => "a subquery that looks at the row beside it so cannot be planned".into(),
            "SELECT" => "this subquery looks at the row around it in a way that cannot be planned"
                .to_owned(),
            "OVER" => "a function with OVER cannot stand here: its rows are not there yet".into(),
            word => format!("{word} (SELECT …) stands for a value here, which cannot be planned"),
        };
        Diagnostic::at(place, message).hint(hint)
    }

    /// The first subquery in parentheses that is no table.
    fn subquery_opens(&self) -> Option<Place> {
        let table = |token: &TokenWithSpan| {
            ["FROM", "JOIN", "IN", "EXISTS", "AS", "LATERAL"].iter().any(|w| is_word(token, w))
        };
        let opens = |three: &&[TokenWithSpan]| {
            three[1].token == Token::LParen && is_word(&three[2], "SELECT") && !table(&three[0])
        };
        self.tokens.windows(3).find(opens).map(|three| place_of(&three[2]))
    }

    /// The clause that a message speaks of.
    fn clause_of(&self, message: &str) -> Option<Place> {
        const CLAUSES: &[(&str, &str)] = &[
            ("in the WHERE clause", "WHERE"),
            ("filter with non-boolean", "WHERE"),
            ("HAVING", "HAVING"),
            ("QUALIFY", "QUALIFY"),
            ("LIMIT", "LIMIT"),
            ("OFFSET", "OFFSET"),
            ("Order by", "ORDER"),
            ("ORDER BY", "ORDER"),
            ("column with position", "GROUP"),
            ("GROUP BY", "GROUP"),
            ("UNION", "UNION"),
            ("EXCEPT", "EXCEPT"),
            ("INTERSECT", "INTERSECT"),
            ("window frame", "OVER"),
            ("DISTINCT", "DISTINCT"),
        ];
        let named = CLAUSES.iter().filter(|(said, _)| message.contains(said));
        named.into_iter().find_map(|(_, word)| self.named(word))
    }

    /// The token that begins there.
    fn token_at(&self, line: u64, column: u64) -> Place {
        let here = |t: &&TokenWithSpan| t.span.start.line == line && t.span.start.column == column;
        match self.tokens.iter().find(here) {
            Some(token) => Place::of(token.span),
            None => Place { line: line as usize, column: column as usize, length: 1 },
        }
    }

    /// From the `t` of `t.name` to the `name`.
    fn last_part(&self, place: Place, name: &str) -> Place {
        let at = self.tokens.iter().position(|t| Place::of(t.span) == place);
        let Some(at) = at else { return place };
        let dotted = |n: usize| self.tokens.get(n).is_some_and(|t| t.token == Token::Period);
        match self.tokens.get(at + 2) {
            Some(token) if dotted(at + 1) && word(token) == Some(name) => Place::of(token.span),
            _ => place,
        }
    }

    /// The first word `name`.
    pub(crate) fn named(&self, name: &str) -> Option<Place> {
        let exact = self.tokens.iter().find(|t| word(t) == Some(name));
        let any_case = || self.tokens.iter().find(|t| is_word(t, name));
        exact.or_else(any_case).map(|t| Place::of(t.span))
    }

    /// The first text of the statement that a message about a text quotes.
    fn text(&self, message: &str) -> Option<Place> {
        let about = ["string '", "timestamp from '"].iter().find_map(|b| message.split_once(b));
        let (text, _) = about?.1.split_once('\'')?;
        let is = |t: &&TokenWithSpan| t.token == Token::SingleQuotedString(text.to_owned());
        self.tokens.iter().find(is).map(place_of)
    }

    /// Where the condition begins that a message says is none.
    fn condition(&self, message: &str) -> Option<Place> {
        let (_, quoted) = message.split_once("filter with non-boolean predicate '")?;
        let call = quoted.split(['(', '\'']).next()?;
        let name = call.rsplit('.').next()?;
        let clause = |at: &usize| {
            let opens = ["WHERE", "HAVING", "QUALIFY"];
            opens.iter().any(|word| is_word(&self.tokens[*at], word))
        };
        let begins = |at: usize| {
            let bracket = |t: &&TokenWithSpan| t.token == Token::LParen;
            let mut behind = self.tokens[at + 1..].iter().skip_while(bracket);
            let first = behind.next()?;
            let dotted = behind.next().is_some_and(|t| t.token == Token::Period);
            let named = if dotted { behind.next()? } else { first };
            is_word(named, name).then(|| Place::of(first.span))
        };
        (0..self.tokens.len()).filter(clause).find_map(begins)
    }

    /// The first word of the statement that the message quotes, or a function that it names.
    fn mentioned(&self, message: &str) -> Option<Place> {
        let quoted = message.split(['\'', '"', '`']).skip(1).step_by(2);
        let functions = message
            .split_whitespace()
            .map(|w| w.split('(').next().unwrap_or(w))
            .filter(|w| w.len() > 1 && self.functions.iter().any(|f| f.eq_ignore_ascii_case(w)));
        quoted.chain(functions).find_map(|name| self.written(name))
    }

    /// The first `table.column`.
    fn dotted(&self, table: &str, column: &str) -> Option<Place> {
        let is = |three: &&[TokenWithSpan]| {
            word(&three[0]) == Some(table)
                && three[1].token == Token::Period
                && word(&three[2]) == Some(column)
        };
        self.tokens.windows(3).find(is).map(|three| Place::of(three[0].span))
    }

    /// The first word, text or call that a message quotes, of `t.name` the `name`.
    fn written(&self, quoted: &str) -> Option<Place> {
        let call = quoted.split('(').next().filter(|name| !name.is_empty())?;
        if let Some(place) = call.split_once('.').and_then(|(t, column)| self.dotted(t, column)) {
            return Some(place);
        }
        let last = call.rsplit('.').next().unwrap_or(call);
        let text = || {
            let same = |t: &&TokenWithSpan| match &t.token {
                Token::SingleQuotedString(text) => text == quoted,
                other => other.to_string() == quoted,
            };
            self.tokens.iter().find(same).map(place_of)
        };
        self.named(call).or_else(text).or_else(|| self.named(last))
    }

    /// The first token.
    pub(crate) fn start(&self) -> Place {
        self.tokens.first().map_or(Place::default(), |t| Place::of(t.span))
    }
}

/// Whether three tokens are `IN (SELECT`.
fn opens_in(three: &[TokenWithSpan]) -> bool {
    is_word(&three[0], "IN") && three[1].token == Token::LParen && is_word(&three[2], "SELECT")
}

fn place_of(token: &TokenWithSpan) -> Place {
    Place::of(token.span)
}

/// What DataFusion calls functions that SQL writes in its own way, and by which word.
const WRITTEN: &[(&str, &str)] = &[
    ("strpos", "POSITION"),
    ("btrim", "TRIM"),
    ("ltrim", "TRIM"),
    ("rtrim", "TRIM"),
    ("date_part", "EXTRACT"),
    ("substr", "SUBSTRING"),
];

/// Operators that DataFusion names when their sides do not fit.
const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "=", "<>", "!=", "<", "<=", ">", ">=", "||"];

fn word(token: &TokenWithSpan) -> Option<&str> {
    match &token.token {
        Token::Word(word) => Some(&word.value),
        _ => None,
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// The SQL word for the first name of a syntax tree: `MATCH_RECOGNIZE` of `MatchRecognize { … }`.
fn upper_snake(tree: &str) -> String {
    let mut word = String::new();
    for letter in tree.chars().take_while(|letter| letter.is_alphanumeric()) {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(letter.to_uppercase());
    }
    word
}
