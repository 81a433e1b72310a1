//! Which query block each token of a statement belongs to, and what a clause is about.
//!
//! A block is a `SELECT` with its clauses. Parentheses without a query, as those of a call, belong
//! to the block around them. `ORDER BY`, `LIMIT` and set operations are about all blocks of their
//! parentheses, a join about what stands on both sides of it.

use std::ops::Range;

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::diagnostics::Place;
use crate::text::syntax::is_word;

/// The blocks of a statement.
pub(crate) struct Outline<'a> {
    pub(crate) tokens: &'a [TokenWithSpan],
    /// Of each token, how many parentheses stand around it.
    depths: Vec<usize>,
    /// Of each token, the innermost parentheses around it.
    brackets: Vec<usize>,
    /// Of each token, the block that it belongs to; none before the first.
    owners: Vec<Option<usize>>,
    inside: Vec<Brackets>,
    blocks: Vec<Range<usize>>,
}

/// Parentheses, or the whole statement.
struct Brackets {
    /// The tokens within.
    range: Range<usize>,
    /// Whether they hold a query.
    query: bool,
}

/// A word of a statement that a clause or call begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: usize,
    /// The tokens of the query that it is a part of.
    pub(crate) query: Range<usize>,
    /// The tokens of the clause or call.
    pub(crate) clause: Range<usize>,
}

/// Words with which clauses of a block begin.
const CLAUSES: &[&str] = &[
    "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET",
    "FETCH",
];

/// Clauses that concern all blocks of its parentheses.
const OF_ALL: &[&str] = &["ORDER", "LIMIT", "OFFSET", "FETCH"];

pub(crate) const SET_OPERATIONS: &[&str] = &["UNION", "EXCEPT", "INTERSECT", "MINUS"];

/// The condition behind the right side of a join.
const BEHIND_JOINED: &[&str] = &[
    "ON", "USING", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "ASOF", "SEMI",
    "ANTI",
];

impl<'a> Outline<'a> {
    pub(crate) fn of(tokens: &'a [TokenWithSpan]) -> Self {
        let whole = Brackets { range: 0..tokens.len(), query: false };
        let (depths, brackets, owners) = (vec![], vec![], vec![]);
        let (inside, blocks) = (vec![whole], vec![]);
        let mut outline = Self { tokens, depths, brackets, owners, inside, blocks };
        // The parentheses that are open, with the block of each that has begun.
        let mut open: Vec<(usize, Option<usize>)> = vec![(0, None)];
        for (at, token) in tokens.iter().enumerate() {
            if token.token == Token::RParen && open.len() > 1 {
                outline.close(open.pop(), at);
            }
            let depth = open.len() - 1;
            let Some((here, block)) = open.last_mut() else { break };
            let named = at > 0 && tokens[at - 1].token == Token::Period;
            if is_one_of(token, SET_OPERATIONS) && !named {
                outline.inside[*here].query = true;
                outline.ends(block.take(), at);
            } else if is_word(token, "SELECT") && !named && block.is_none() {
                outline.inside[*here].query = true;
                *block = Some(outline.blocks.len());
                outline.blocks.push(at..tokens.len());
            }
            let here = *here;
            let is_query = |(bracket, _): &(usize, _)| outline.inside[*bracket].query;
            let query = open.iter().rposition(is_query).unwrap_or_default();
            let owner = open[query..].iter().rev().find_map(|(_, block)| *block);
            outline.owners.push(owner);
            outline.depths.push(depth);
            outline.brackets.push(here);
            if token.token == Token::LParen {
                open.push((outline.inside.len(), None));
                let range = at + 1..tokens.len();
                outline.inside.push(Brackets { range, query: false });
            }
        }
        outline
    }

    fn close(&mut self, closed: Option<(usize, Option<usize>)>, at: usize) {
        let Some((bracket, block)) = closed else { return };
        self.inside[bracket].range.end = at;
        self.ends(block, at);
    }

    fn ends(&mut self, block: Option<usize>, at: usize) {
        if let Some(block) = block {
            self.blocks[block].end = at;
        }
    }

    /// Where a token stands.
    pub(crate) fn place(&self, at: usize) -> Place {
        self.tokens.get(at).map_or(Place::default(), |token| Place::of(token.span))
    }

    /// Whether a place is that of a token of a range.
    pub(crate) fn covers(&self, range: &Range<usize>, place: Place) -> bool {
        let begins = |at: usize| self.place(at);
        let (Some(last), false) = (range.end.checked_sub(1), range.is_empty()) else {
            return false;
        };
        let order = |place: Place| (place.line, place.column);
        order(begins(range.start)) <= order(place) && order(place) <= order(begins(last))
    }

    /// The clauses and calls that begin with a word.
    pub(crate) fn marks(&self, word: &str) -> Vec<Mark> {
        let marks = (0..self.tokens.len()).filter(|at| self.begins(*at, word));
        marks.map(|at| self.mark(at)).collect()
    }

    fn begins(&self, at: usize, word: &str) -> bool {
        let next = self.tokens.get(at + 1);
        let before = at.checked_sub(1).and_then(|at| self.tokens.get(at));
        if !is_word(&self.tokens[at], word) || before.is_some_and(|t| t.token == Token::Period) {
            return false;
        }
        match word {
            "GROUP" | "ORDER" => next.is_some_and(|next| is_word(next, "BY")) && self.is_plain(at),
            "LIMIT" | "OFFSET" | "FETCH" => self.is_plain(at),
            "UNION" => next.is_some_and(|next| !is_word(next, "ALL")),
            "DISTINCT" => before.is_some_and(|t| {
                t.token == Token::LParen || is_word(t, "SELECT") || is_one_of(t, SET_OPERATIONS)
            }),
            _ => {
                word.starts_with(char::is_uppercase)
                    || next.is_some_and(|next| next.token == Token::LParen)
            }
        }
    }

    /// Whether a clause begins at a token: not at the FROM of IS DISTINCT FROM.
    fn is_clause(&self, at: usize) -> bool {
        let before = at.checked_sub(1).and_then(|at| self.tokens.get(at));
        let of_distinct = before.is_some_and(|before| is_word(before, "DISTINCT"));
        is_one_of(&self.tokens[at], CLAUSES) && !of_distinct
    }

    /// Whether a token stands in the parentheses of a query itself.
    pub(crate) fn is_plain(&self, at: usize) -> bool {
        self.inside[self.brackets[at]].query
    }

    fn mark(&self, at: usize) -> Mark {
        let bracket = &self.inside[self.brackets[at]].range;
        let token = &self.tokens[at];
        let query = match self.owners[at] {
            _ if is_one_of(token, SET_OPERATIONS) => bracket.clone(),
            _ if is_one_of(token, OF_ALL) && self.is_plain(at) => bracket.clone(),
            Some(block) => self.blocks[block].clone(),
            None => bracket.clone(),
        };
        Mark { at, query, clause: at..self.clause_end(at) }
    }

    /// Where a clause or call ends.
    fn clause_end(&self, at: usize) -> usize {
        let depth = self.depths[at];
        let end = self.inside[self.brackets[at]].range.end;
        let is_call = self.tokens.get(at + 1).is_some_and(|next| next.token == Token::LParen);
        let mut rest = at + 1..end;
        let call_ends = |at: &usize| {
            let next = &self.tokens[*at];
            let goes_on = ["OVER", "FILTER", "WITHIN", "IGNORE", "RESPECT", "NULLS", "GROUP"];
            self.depths[*at] == depth
                && !matches!(next.token, Token::LParen | Token::RParen)
                && !is_one_of(next, &goes_on)
        };
        let clause_ends = |at: &usize| {
            let next = &self.tokens[*at];
            self.depths[*at] == depth && (self.is_clause(*at) || is_one_of(next, SET_OPERATIONS))
        };
        let found = if is_call { rest.find(call_ends) } else { rest.find(clause_ends) };
        found.unwrap_or(end)
    }

    /// The call whose `OVER` stands at a place: from its name on.
    pub(crate) fn call_of_over(&self, mut mark: Mark) -> Mark {
        let depth = self.depths[mark.at];
        let before = (mark.query.start..mark.at).rev();
        let opens = before
            .clone()
            .find(|&at| self.depths[at] == depth && self.tokens[at].token == Token::LParen);
        mark.clause.start = opens.map_or(mark.at, |opens| opens.saturating_sub(1));
        let behind = self.tokens.get(mark.at + 1).is_some_and(|t| t.token == Token::LParen);
        if !behind {
            mark.clause.end = mark.at + 2;
        }
        mark
    }

    /// The clauses on both sides of a join or of a set operation, or around a subquery and within
    /// it.
    pub(crate) fn sides(&self, at: usize) -> Option<[Vec<Range<usize>>; 2]> {
        let token = &self.tokens[at];
        if is_word(token, "JOIN") || token.token == Token::Comma {
            return self.joined(at);
        }
        if is_one_of(token, SET_OPERATIONS) {
            let bracket = &self.inside[self.brackets[at]].range;
            let depth = self.depths[at];
            let ends =
                |i: &usize| self.depths[*i] == depth && is_one_of(&self.tokens[*i], SET_OPERATIONS);
            let end = (at + 1..bracket.end).find(ends).unwrap_or(bracket.end);
            return Some([bracket.start..at, at + 1..end].map(one));
        }
        let opens = if is_word(token, "SELECT") { at.checked_sub(1)? } else { at + 1 };
        let is_open = self.tokens.get(opens).is_some_and(|t| t.token == Token::LParen);
        let within = self.inside.iter().find(|b| b.range.start == opens + 1 && b.query)?;
        let owner = self.owners.get(opens).copied().flatten().filter(|_| is_open)?;
        let Range { start, end } = self.blocks[owner].clone();
        let around = vec![start..within.range.start, within.range.end..end];
        Some([around, vec![within.range.clone()]])
    }

    /// The sides of a join, or of a comma in FROM.
    fn joined(&self, at: usize) -> Option<[Vec<Range<usize>>; 2]> {
        let depth = self.depths[at];
        let is_comma = self.tokens[at].token == Token::Comma;
        let bracket = &self.inside[self.brackets[at]].range;
        let here = |i: &usize| self.depths[*i] == depth;
        let is_from = |i: &usize| is_word(&self.tokens[*i], "FROM");
        let starts = |i: &usize| {
            let token = &self.tokens[*i];
            here(i) && (self.is_clause(*i) || !is_comma && token.token == Token::Comma)
        };
        let start = (bracket.start..at).rev().find(starts);
        if is_comma && !start.as_ref().is_some_and(is_from) {
            return None;
        }
        let start = start.map_or(bracket.start, |start| start + 1);
        let ends = |i: &usize| {
            let token = &self.tokens[*i];
            let behind = self.is_clause(*i) || is_one_of(token, SET_OPERATIONS);
            let of_join = !is_comma && is_one_of(token, BEHIND_JOINED);
            here(i) && (behind || of_join || token.token == Token::Comma)
        };
        let end = (at + 1..bracket.end).find(ends).unwrap_or(bracket.end);
        Some([start..at, at + 1..end].map(one))
    }

    /// The commas between tables.
    pub(crate) fn commas(&self) -> Vec<Mark> {
        let is_comma = |at: &usize| self.tokens[*at].token == Token::Comma;
        let commas = (0..self.tokens.len()).filter(is_comma);
        commas.filter(|at| self.joined(*at).is_some()).map(|at| self.mark(at)).collect()
    }
}

fn is_one_of(token: &TokenWithSpan, words: &[&str]) -> bool {
    words.iter().any(|word| is_word(token, word))
}

fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    /// The texts of what marks of a word are about.
    fn of(sql: &str, word: &str) -> Vec<String> {
        let tokens = split(sql).expect("tokens").swap_remove(0);
        let outline = Outline::of(&tokens);
        let text = |range: Range<usize>| {
            let texts = outline.tokens[range].iter().map(|t| t.token.to_string());
            texts.collect::<Vec<_>>().join(" ")
        };
        let marks = outline.marks(word).into_iter().map(|mark| match outline.sides(mark.at) {
            Some([left, right]) => {
                let [left, right] = [left, right]
                    .map(|side| side.into_iter().map(&text).collect::<Vec<_>>().join(" … "));
                format!("{left} | {right}")
            }
            None => text(mark.query),
        });
        marks.collect()
    }

    #[test]
    fn a_clause_is_of_its_own_block() {
        let sql = "SELECT a FROM (SELECT b FROM t GROUP BY b ORDER BY c) AS x GROUP BY a";
        let inner = "SELECT b FROM t GROUP BY b ORDER BY c";
        assert_eq!(of(sql, "GROUP"), [inner, &sql.replace('(', "( ").replace(')', " )")]);
        assert_eq!(of(sql, "ORDER"), [inner]);
        let union = "SELECT a FROM t GROUP BY a UNION SELECT b FROM u LIMIT 3";
        assert_eq!(of(union, "GROUP"), ["SELECT a FROM t GROUP BY a"]);
        assert_eq!(of(union, "LIMIT"), [union]);
        assert_eq!(of("SELECT sum(x) OVER (ORDER BY y) FROM t", "ORDER"), Vec::<String>::new());
    }

    #[test]
    fn a_join_is_about_its_two_sides() {
        let sql = "SELECT a FROM t JOIN u ON t.a = u.a LEFT JOIN v ON t.a = v.a WHERE a > 1";
        let first = "t | u".to_owned();
        assert_eq!(of(sql, "JOIN"), [first, "t JOIN u ON t . a = u . a LEFT | v".into()]);
        let sql = "SELECT a FROM t WHERE a IN (SELECT b FROM u) AND c";
        let asked = "SELECT a FROM t WHERE a IN ( … ) AND c | SELECT b FROM u".to_owned();
        assert_eq!(of(sql, "IN"), [asked]);
        let union = "SELECT a FROM t UNION SELECT b FROM u UNION SELECT c FROM v";
        let first = "SELECT a FROM t | SELECT b FROM u".to_owned();
        let second = "SELECT a FROM t UNION SELECT b FROM u | SELECT c FROM v".to_owned();
        assert_eq!(of(union, "UNION"), [first, second]);
    }
}
