//! An error of DataFusion about a query, as a [`Diagnostic`] that points at the user's own token.
//!
//! DataFusion gives places for columns, tables and functions. For everything else the part of the
//! query that is at fault is found first ([`locate`]), and what the message names is looked for
//! from that part outwards.

mod part;

use std::fmt;

use arrow::datatypes::TimeUnit;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::ast::Query;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use self::part::{OPERATORS, Part, opens_in, place_of, word};
use crate::catalog::{Catalog, finer_hint};
use crate::expr::failure::{message_of, root};
use crate::logical::engine::Engine;
use crate::logical::locate::{self, FaultyPart, Outcome};
use crate::logical::twice::is_about_names;
use crate::logical::windows::{Site, WindowShape};
use crate::text::clauses::flink;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::names::plain;
use crate::text::syntax::{is_word, lower_first, syntax_error};
use crate::text::wording::{in_sql, reworded, signatures};

/// An error of ours on its way through DataFusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanError {
    /// There is no such table; the candidates follow.
    UnknownTable(String),
    /// There is no such table, and the name is that of a file, which is not in quotes.
    FileWithoutQuotes(String),
    /// The name is of something that could not be defined: that was reported already.
    Broken,
    /// A table's columns are unknown; a complete diagnostic.
    Table(Box<Diagnostic>),
    /// A window over a column of this type.
    WindowOf(String),
    /// A window finer than the ticks of its column, and the column's type.
    WindowFiner(TimeUnit, String),
    /// A subquery looks at this column, which the row around it does not have.
    OutOfSight(String),
    /// An unsupported clause, at the first of these words.
    Refused { words: &'static [&'static str], message: String, hint: &'static str },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::UnknownTable(name) | PlanError::FileWithoutQuotes(name) => {
                write!(f, "unknown table '{name}'")
            }
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

/// The context in which an error of a query is reported.
#[derive(Clone)]
pub(crate) struct Surroundings<'a> {
    /// The user's tokens.
    pub(crate) tokens: &'a [TokenWithSpan],
    /// Its windows.
    pub(crate) sites: &'a [Site],
    /// Names of tables and views.
    pub(crate) tables: Vec<&'a str>,
    /// Names of functions.
    pub(crate) functions: Vec<&'a str>,
    /// The engine that plans the query again.
    pub(crate) again: Option<Again<'a>>,
}

/// A query that can be planned again, to find which part of it is at fault.
#[derive(Clone, Copy)]
pub(crate) struct Again<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) catalog: &'a Catalog,
    pub(crate) query: &'a Query,
}

impl<'a> Surroundings<'a> {
    /// The error for the user; `None` if its cause was reported already.
    pub(crate) fn report(&self, error: &DataFusionError) -> Option<Diagnostic> {
        self.diagnostic_of(error, self.fault(error))
    }

    /// The error, which comes from this part of the query.
    fn diagnostic_of(
        &self,
        error: &DataFusionError,
        fault: Option<FaultyPart>,
    ) -> Option<Diagnostic> {
        let place = self.place_of(error).filter(|_| fault.is_none());
        let part = Part::of(self, fault);
        match root(error) {
            DataFusionError::External(inner) => match inner.downcast_ref::<PlanError>() {
                Some(ours) => part.ours(ours, place),
                None => Some(part.other(&inner.to_string(), place)),
            },
            DataFusionError::SchemaError(schema, _) => {
                let candidates = error.diagnostic().map(|diagnostic| &diagnostic.notes[..]);
                let candidates = candidates.unwrap_or_default().iter();
                let possible =
                    candidates.filter_map(|n| n.message.strip_prefix("possible column "));
                Some(part.schema(schema, place, &possible.collect::<Vec<_>>()))
            }
            DataFusionError::SQL(parser, _) => Some(syntax_error(parser, self.tokens)),
            other => Some(part.other(&message_of(other), place)),
        }
    }

    /// The place that DataFusion gives.
    fn place_of(&self, error: &DataFusionError) -> Option<Place> {
        let span = error.diagnostic()?.span?;
        Some(self.token_at(span.start.line, span.start.column))
    }

    /// The part of the query that an error comes from, where DataFusion does not say, or says where
    /// one side of it is.
    fn fault(&self, error: &DataFusionError) -> Option<FaultyPart> {
        let Again { engine, catalog, query } = self.again?;
        let message = message_of(error);
        if self.place_of(error).is_some() && !OF_BOTH.iter().any(|of| message.contains(of)) {
            return None;
        }
        let (sought, apart) = (self.diagnostic_of(error, None)?.message, !is_about_names(error));
        locate::fault(query, self.tokens, |query| match engine.tried(catalog, query, apart) {
            Ok(()) => Outcome::Fine,
            Err(error) => match self.diagnostic_of(&error, None) {
                Some(found) if found.message == sought => Outcome::Same,
                _ => Outcome::Other,
            },
        })
    }

    /// The token that begins there.
    fn token_at(&self, line: u64, column: u64) -> Place {
        let here = |t: &&TokenWithSpan| t.span.start.line == line && t.span.start.column == column;
        match self.tokens.iter().find(here) {
            Some(token) => Place::of(token.span),
            None => Place { line: line as usize, column: column as usize, length: 1 },
        }
    }

    /// The first token.
    pub(crate) fn start(&self) -> Place {
        self.tokens.first().map_or(Place::default(), |t| Place::of(t.span))
    }
}

/// Messages about two sides, of which DataFusion points at one, or about all of a subquery.
const OF_BOTH: &[&str] = &[
    "Cannot coerce arithmetic expression",
    "Cannot infer common argument type for comparison operation",
    "queries have different number of columns",
    "function calls cannot be nested",
    "Too many columns! The subquery",
];

impl<'a> Part<'a> {
    fn ours(&self, error: &PlanError, place: Option<Place>) -> Option<Diagnostic> {
        let site = self.site();
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
                    self.around.tables.iter().copied(),
                ))
            }
            PlanError::FileWithoutQuotes(name) => {
                let place = place.or_else(|| self.written(name)).unwrap_or_else(|| self.start());
                let hint = format!("the name of a file stands in quotes: FROM '{name}'");
                Some(Diagnostic::at(place, error.to_string()).hint(hint))
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
                let named = || self.token.and_then(|_| self.inner().mentioned(message));
                let place = place.or_else(named);
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
                .or(self.token)
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
                    let own = Some(of(field)).filter(|own| self.word_at(*own) == Some(table));
                    let place = own.or_else(|| self.named(table)).unwrap_or(place);
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
                    .hint(if one_of.is_empty() {
                        "write its table in front of it".to_owned()
                    } else {
                        format!("say which: {one_of}")
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
            if let Some(shape) = WindowShape::named(name) {
                let message = format!("{} stands behind FROM", shape.word());
                return Diagnostic::at(place, message).hint(format!("FROM {}", shape.example()));
            }
            if self.around.functions.contains(&name) {
                let message = format!("{name} looks at the rows around one, and there are none");
                return Diagnostic::at(place, message).hint(format!("{name}() OVER (ORDER BY …)"));
            }
            return Diagnostic::at(place, format!("unknown function '{name}'")).nearest(
                "functions",
                name,
                self.around.functions.iter().copied(),
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
            .and_then(|sides| sides.split(' ').find(|word| OPERATORS.contains(word)));
        let of_part = || {
            let inner = first.contains("function calls cannot be nested").then(|| self.inner());
            inner.and_then(|inner| inner.mentioned(first)).or(self.token)
        };
        let place = place.or_else(|| self.text(first)).or_else(of_part);
        let place = place.or_else(|| operator.and_then(|sign| self.sign(sign)));
        let place = place.or_else(|| self.mentioned(first));
        if let Some(reworded) = reworded(message) {
            let word = |word: &&str| self.named(word).or_else(|| self.sign(word));
            let named =
                reworded.texts.iter().filter(|_| reworded.words.is_empty() && self.token.is_some());
            let named = named.into_iter().find_map(|text| self.inner().called(text));
            let place = named.or(place);
            let place = place.or_else(|| reworded.words.iter().find_map(word));
            let place = place.or_else(|| reworded.texts.iter().find_map(|text| self.named(text)));
            let error = Diagnostic::at(place.unwrap_or_else(|| self.start()), reworded.message);
            return match reworded.hint {
                Some(hint) => error.hint(hint),
                None => error,
            };
        }
        let place = place.or_else(|| self.clause_of(first));
        let place = place.unwrap_or_else(|| self.start());
        let reworded = in_sql(first.trim_end_matches(['.', ' ']));
        let error = Diagnostic::at(place, lower_first(&reworded));
        let rest = rest.trim();
        if rest.is_empty() { error } else { error.detail(rest) }
    }

    /// A call of a function that there is not for these types.
    fn no_function(&self, call: &str, message: &str, place: Option<Place>) -> Diagnostic {
        let (name, types) = call.split_once('(').unwrap_or((call, ""));
        let types = in_sql(types.strip_suffix(')').unwrap_or(types));
        let place = place.or(self.token);
        let sign = |text| place.or_else(|| self.sign(text)).unwrap_or_else(|| self.start());
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
        // An operator may be a function of another name.
        if let Some(sign) = self.token.and_then(|token| self.sign_at(token)) {
            let types = types.replacen(", ", &format!(" {sign} "), 1);
            let message = format!("there is no operation {types}");
            return Diagnostic::at(self.start(), message).hint("CAST one of both");
        }
        // Expressions that the parser names otherwise than they are written.
        let written = WRITTEN.iter().filter(|(theirs, _)| *theirs == name);
        let written = written.map(|(_, ours)| *ours).find(|ours| self.named(ours).is_some());
        // As it is written.
        let own = self.token.and_then(|token| self.word_at(token)).or(written);
        let (theirs, name) = (name, own.unwrap_or(name));
        let place = place.or_else(|| self.named(name)).unwrap_or_else(|| self.start());
        let error = Diagnostic::at(place, format!("there is no function {name}({types})"));
        let form = between(message, "coercion failed with: Error during planning: write ", " No");
        if name.starts_with("percentile_") && !types.contains(", ") {
            return error.hint(format!("write {name}(0.5) WITHIN GROUP (ORDER BY x)"));
        }
        if let Some(form) = form {
            return error.hint(format!("write {}", form.trim_end_matches('.')));
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
        let item = self.scopes.first().filter(|_| self.token.is_some());
        let behind = item.zip(alias).and_then(|(item, alias)| {
            let is_alias = |t: &TokenWithSpan| word(t) == Some(alias);
            let rest = self.tokens().iter().skip(item.end);
            rest.take_while(|t| t.token == Token::RParen || is_word(t, "AS") || is_alias(t))
                .find(|t| is_alias(t))
                .map(place_of)
        });
        let own = || item.map(|item| self.place(item.start));
        let place = behind.or_else(own).or_else(|| self.named(name)).or(place);
        let place = place.unwrap_or_else(|| self.start());
        // A computed value has no name but its expression.
        let computed = expression.contains([' ', '[', '(']) && !expression.contains(" AS ");
        let written = computed.then(|| match self.written.clone() {
            Some(written) => written,
            None => plain(expression),
        });
        let name = written.as_deref().unwrap_or(name);
        Diagnostic::at(place, format!("column '{name}' would be there twice"))
            .hint("give one of them another name with AS")
    }

    /// Expressions that DataFusion has no plan for, with better words than its own.
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
            let place = self.token.or_else(|| self.subquery_opens()).or(place);
            let place = place.unwrap_or_else(|| self.start());
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
            "IN" => self.find_three(opens_in).map(|at| self.place(at)),
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
        let named = CLAUSES.iter().filter(|(reworded, _)| message.contains(reworded));
        named.into_iter().find_map(|(_, word)| self.named(word))
    }
}

/// DataFusion's names of functions with a syntax of their own in SQL, and their words there.
const WRITTEN: &[(&str, &str)] = &[
    ("strpos", "POSITION"),
    ("btrim", "TRIM"),
    ("ltrim", "TRIM"),
    ("rtrim", "TRIM"),
    ("date_part", "EXTRACT"),
    ("substr", "SUBSTRING"),
    ("string_agg", "LISTAGG"),
    (flink::FLOOR, "FLOOR"),
    (flink::CEIL, "CEIL"),
];

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
