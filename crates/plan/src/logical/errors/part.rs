//! The part of a query that an error comes from, and what stands in it.

use std::ops::Range;

use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use super::Surroundings;
use crate::logical::locate::FaultyPart;
use crate::logical::windows::Site;
use crate::text::diagnostics::Place;
use crate::text::syntax::is_word;

/// A query with the part of it that an error comes from, as far as that is known.
pub(super) struct Part<'a> {
    pub(super) around: &'a Surroundings<'a>,
    /// The tokens of the part, and of what stands around it; all, if it is not known.
    pub(super) scopes: Vec<Range<usize>>,
    /// The part's own token, and its text.
    pub(super) token: Option<Place>,
    pub(super) written: Option<String>,
}

impl<'a> Part<'a> {
    pub(super) fn of(around: &'a Surroundings<'a>, fault: Option<FaultyPart>) -> Self {
        let tokens = around.tokens;
        let range = |span: &Span| {
            let from = tokens.partition_point(|token| token.span.start < span.start);
            from..tokens.partition_point(|token| token.span.start < span.end)
        };
        let mut scopes: Vec<_> = fault.iter().flat_map(|fault| &fault.around).map(range).collect();
        scopes.push(0..tokens.len());
        let token = fault.as_ref().map(|fault| Place::of(fault.token));
        Self { around, scopes, token, written: fault.map(|fault| fault.text) }
    }

    /// The part without what stands around it.
    pub(super) fn inner(&self) -> Part<'a> {
        let scopes = self.scopes[..1].to_vec();
        Part { around: self.around, scopes, token: self.token, written: None }
    }

    pub(super) fn tokens(&self) -> &'a [TokenWithSpan] {
        self.around.tokens
    }

    /// The first token of this kind: of the part, or of what stands around it.
    pub(super) fn find(&self, is: impl Fn(&TokenWithSpan) -> bool) -> Option<Place> {
        self.find_at(|at| self.tokens().get(at).is_some_and(&is)).map(|at| self.place(at))
    }

    /// The first tokens of this kind next to each other.
    pub(super) fn find_three(&self, are: impl Fn(&[TokenWithSpan]) -> bool) -> Option<usize> {
        self.find_at(|at| self.tokens().get(at..at + 3).is_some_and(&are))
    }

    pub(super) fn find_at(&self, is: impl Fn(usize) -> bool) -> Option<usize> {
        self.scopes.iter().find_map(|scope| scope.clone().find(|at| is(*at)))
    }

    pub(super) fn place(&self, at: usize) -> Place {
        place_of(&self.tokens()[at])
    }

    /// Where the part is; the statement, if that is not known.
    pub(super) fn start(&self) -> Place {
        self.token.unwrap_or_else(|| self.around.start())
    }

    /// The window that the part is of.
    pub(super) fn site(&self) -> Option<&'a Site> {
        let sites = self.around.sites;
        let scope = self.scopes.first().map_or(&[][..], |scope| &self.tokens()[scope.clone()]);
        let is_of = |site: &&Site| scope.iter().any(|token| place_of(token) == site.time.place);
        sites.iter().find(is_of).or(sites.first())
    }

    /// The first subquery in parentheses that is no table.
    pub(super) fn subquery_opens(&self) -> Option<Place> {
        let table = |token: &TokenWithSpan| {
            ["FROM", "JOIN", "IN", "EXISTS", "AS", "LATERAL"].iter().any(|w| is_word(token, w))
        };
        let opens = |three: &[TokenWithSpan]| {
            three[1].token == Token::LParen && is_word(&three[2], "SELECT") && !table(&three[0])
        };
        self.find_three(opens).map(|at| self.place(at + 2))
    }

    /// From the `t` of `t.name` to the `name`.
    pub(super) fn last_part(&self, place: Place, name: &str) -> Place {
        let tokens = self.tokens();
        let at = tokens.iter().position(|t| Place::of(t.span) == place);
        let Some(at) = at else { return place };
        let dotted = |n: usize| tokens.get(n).is_some_and(|t| t.token == Token::Period);
        match tokens.get(at + 2) {
            Some(token) if dotted(at + 1) && word(token) == Some(name) => Place::of(token.span),
            _ => place,
        }
    }

    /// The first word `name`.
    pub(super) fn named(&self, name: &str) -> Option<Place> {
        let exact = self.find(|t| word(t) == Some(name));
        exact.or_else(|| self.find(|t| is_word(t, name)))
    }

    /// The first token that is written so.
    pub(super) fn sign(&self, sign: &str) -> Option<Place> {
        self.find(|token| token.token.to_string() == sign)
    }

    /// The word or text that is called so.
    pub(super) fn called(&self, name: &str) -> Option<Place> {
        let text =
            |t: &TokenWithSpan| matches!(&t.token, Token::SingleQuotedString(t) if t == name);
        self.find(|t| word(t) == Some(name) || text(t))
    }

    /// The word at a place, unless it is one that stands for several functions.
    pub(super) fn word_at(&self, place: Place) -> Option<&'a str> {
        let token = self.tokens().iter().find(|token| place_of(token) == place);
        token.and_then(word)
    }

    /// The operator at a place.
    pub(super) fn sign_at(&self, place: Place) -> Option<String> {
        let token = self.tokens().iter().find(|token| place_of(token) == place)?;
        let text = token.token.to_string();
        OPERATORS.contains(&text.as_str()).then_some(text)
    }

    /// The first text of the statement that a message about a text quotes.
    pub(super) fn text(&self, message: &str) -> Option<Place> {
        let about = ["string '", "timestamp from '", "type interval: \""].into_iter();
        let (_, about) = about.filter_map(|before| message.split_once(before)).next()?;
        let (text, _) = about.split_once(['\'', '"'])?;
        self.find(|t| t.token == Token::SingleQuotedString(text.to_owned()))
    }

    /// The first word of the statement that the message quotes, or a function that it names.
    pub(super) fn mentioned(&self, message: &str) -> Option<Place> {
        let quoted = message.split(['\'', '"', '`']).skip(1).step_by(2);
        let functions =
            message.split_whitespace().map(|w| w.split('(').next().unwrap_or(w)).filter(|w| {
                w.len() > 1 && self.around.functions.iter().any(|f| f.eq_ignore_ascii_case(w))
            });
        quoted.chain(functions).find_map(|name| self.written(name))
    }

    /// The first `table.column`.
    pub(super) fn dotted(&self, table: &str, column: &str) -> Option<Place> {
        let is = |three: &[TokenWithSpan]| {
            word(&three[0]) == Some(table)
                && three[1].token == Token::Period
                && word(&three[2]) == Some(column)
        };
        self.find_three(is).map(|at| self.place(at))
    }

    /// The first word, text or call that a message quotes, of `t.name` the `name`.
    pub(super) fn written(&self, quoted: &str) -> Option<Place> {
        let call = quoted.split('(').next().filter(|name| !name.is_empty())?;
        if let Some(place) = call.split_once('.').and_then(|(t, column)| self.dotted(t, column)) {
            return Some(place);
        }
        let last = call.rsplit('.').next().unwrap_or(call);
        let text = || {
            self.find(|t| match &t.token {
                Token::SingleQuotedString(text) => text == quoted,
                other => other.to_string() == quoted,
            })
        };
        self.named(call).or_else(text).or_else(|| self.named(last))
    }
}

/// Whether three tokens are `IN (SELECT`.
pub(super) fn opens_in(three: &[TokenWithSpan]) -> bool {
    is_word(&three[0], "IN") && three[1].token == Token::LParen && is_word(&three[2], "SELECT")
}

pub(super) fn place_of(token: &TokenWithSpan) -> Place {
    Place::of(token.span)
}

/// Operators that DataFusion names when their sides do not fit.
pub(super) const OPERATORS: &[&str] =
    &["+", "-", "*", "/", "%", "=", "<>", "!=", "<", "<=", ">", ">=", "||"];

pub(super) fn word(token: &TokenWithSpan) -> Option<&str> {
    match &token.token {
        Token::Word(word) => Some(&word.value),
        _ => None,
    }
}
