//! The place of a statement that a refused node comes from.
//!
//! A node is of the query block whose tables are those that it reads; of blocks within each other
//! over the same tables, of the one whose clause names its columns, else of the one that has as
//! many clauses of the kind within it as there are nodes of the kind beneath the node. A join is
//! the one that has the tables of its two inputs on its two sides.

use std::ops::Range;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::catalog::{Catalog, Named, ScannedTable, Table};
use crate::text::diagnostics::Place;
use crate::text::outline::{Mark, Outline, SET_OPERATIONS};
use crate::text::refusal::{Refusal, places_of};
use crate::text::syntax::is_word;

/// Where a table was named: first where it stands itself, last in the statement.
type Path = Vec<Named>;

/// The texts that a plan comes from: the statement, and the views that it names.
pub(crate) struct Texts<'a> {
    texts: Vec<Text<'a>>,
    /// Where the tables of the statement were named.
    tables: Vec<Path>,
}

struct Text<'a> {
    script: u64,
    view: Option<&'a str>,
    outline: Outline<'a>,
}

/// A place in the statement's script, and the view in whose text it is.
pub(crate) struct Found<'a> {
    pub(crate) place: Place,
    pub(crate) view: Option<&'a str>,
    /// Whether it is the DISTINCT of an aggregate's values.
    pub(crate) of_values: bool,
}

/// A mark, in which text it is, and how early its word is among those that are sought.
struct Candidate {
    text: usize,
    mark: Mark,
    rank: usize,
}

impl<'a> Texts<'a> {
    pub(crate) fn of(
        plan: &LogicalPlan,
        tokens: &'a [TokenWithSpan],
        catalog: &'a Catalog,
    ) -> Self {
        let statement = Text { script: catalog.script, view: None, outline: Outline::of(tokens) };
        let views = catalog.views().map(|(name, view)| Text {
            script: view.script,
            view: Some(name),
            outline: Outline::of(&view.tokens),
        });
        Self { texts: std::iter::once(statement).chain(views).collect(), tables: paths(plan) }
    }

    /// The place of the refused text, if it is known.
    pub(crate) fn place(&self, refusal: &Refusal) -> Option<Found<'a>> {
        let node = refusal.site.node.as_ref();
        let of_node = node.map(paths).unwrap_or_default();
        let is_of = |(_, table): &&(Place, Place)| {
            of_node.iter().flatten().any(|named| named.place == *table)
        };
        let among = &refusal.site.among;
        if let Some((place, _)) = among.iter().find(is_of).or(among.first()) {
            let text = self.texts.iter().position(|text| text.holds(*place)).unwrap_or_default();
            return Some(self.found(text, *place, &of_node));
        }
        let Candidate { text, mark, .. } = self.candidate(refusal, &of_node)?;
        let Outline { tokens, .. } = &self.texts[text].outline;
        let before = mark.at.checked_sub(1).map(|at| &tokens[at].token);
        let of_values = is_word(&tokens[mark.at], "DISTINCT") && before == Some(&Token::LParen);
        let found = self.found(text, self.texts[text].outline.place(mark.at), &of_node);
        Some(Found { of_values, ..found })
    }

    /// The SELECT of the block that a node comes from, and the script in which that stands.
    pub(crate) fn select(&self, refusal: &Refusal) -> Option<(u64, Place)> {
        let of_node = refusal.site.node.as_ref().map(paths).unwrap_or_default();
        let Candidate { text, mark, .. } = self.candidate(refusal, &of_node)?;
        let Text { script, outline, .. } = &self.texts[text];
        Some((*script, outline.place(mark.query.start)))
    }

    /// Whether a join is written as CROSS JOIN, if its JOIN or comma is known.
    pub(crate) fn is_cross(&self, refusal: &Refusal) -> Option<bool> {
        let of_node = refusal.site.node.as_ref().map(paths).unwrap_or_default();
        let Candidate { text, mark, .. } = self.candidate(refusal, &of_node)?;
        let tokens = self.texts[text].outline.tokens;
        let is_join = is_word(&tokens[mark.at], "JOIN");
        let is_cross = mark.at > 0 && is_word(&tokens[mark.at - 1], "CROSS");
        (is_join || tokens[mark.at].token == Token::Comma).then_some(is_join && is_cross)
    }

    /// The word that a node comes from.
    fn candidate(&self, refusal: &Refusal, of_node: &[Path]) -> Option<Candidate> {
        let node = refusal.site.node.as_ref();
        match node {
            Some(LogicalPlan::Join(join)) => {
                let sides = [paths(&join.left), paths(&join.right)];
                self.join(&sides).or_else(|| self.clause(refusal, node, of_node))
            }
            _ => self.clause(refusal, node, of_node),
        }
    }

    /// A place in one of the texts; that of the view in the statement, where the text is of another
    /// script.
    fn found(&self, text: usize, place: Place, paths: &[Path]) -> Found<'a> {
        let Text { script, view, .. } = self.texts[text];
        let here = script == self.texts[0].script;
        let place =
            if here { place } else { in_script(self.texts[0].script, paths).unwrap_or_default() };
        Found { place, view, of_values: false }
    }

    /// The join, set operation or subquery that has the tables of two inputs on its two sides.
    fn join(&self, sides: &[Vec<Path>; 2]) -> Option<Candidate> {
        let words = ["JOIN", "IN", "EXISTS", "SELECT"];
        let mut found: Vec<(usize, Candidate)> = vec![];
        for (at, text) in self.texts.iter().enumerate() {
            let outline = &text.outline;
            let marks = words.iter().chain(SET_OPERATIONS).flat_map(|word| outline.marks(word));
            for mark in marks.chain(outline.commas()) {
                let Some(ranges) = outline.sides(mark.at) else { continue };
                let meets = |[l, r]: [usize; 2]| {
                    text.covers_all(&ranges[0], &sides[l]) && text.covers_all(&ranges[1], &sides[r])
                };
                if meets([0, 1]) || meets([1, 0]) {
                    let length = ranges.iter().flatten().map(Range::len).sum();
                    found.push((length, Candidate { text: at, mark, rank: 0 }));
                }
            }
        }
        found.into_iter().min_by_key(|(length, _)| *length).map(|(_, candidate)| candidate)
    }

    /// The clause or call of a node.
    fn clause(
        &self,
        refusal: &Refusal,
        node: Option<&LogicalPlan>,
        of_node: &[Path],
    ) -> Option<Candidate> {
        let mut candidates = vec![];
        for (text, Text { outline, .. }) in self.texts.iter().enumerate() {
            for (rank, word) in words_of(refusal, node).into_iter().enumerate() {
                let marks = outline.marks(&word).into_iter().map(|mark| match word.as_str() {
                    "OVER" => outline.call_of_over(mark),
                    _ => mark,
                });
                candidates.extend(marks.map(|mark| Candidate { text, mark, rank }));
            }
        }
        let exact = |c: &Candidate| {
            let covered = self.tables.iter().filter(|path| self.covers(c, path));
            let covered: Vec<&Path> = covered.collect();
            of_node.iter().all(|path| self.covers(c, path))
                && covered.iter().all(|path| of_node.contains(path))
        };
        let around = |c: &Candidate| of_node.iter().all(|path| self.covers(c, path));
        if !of_node.is_empty() {
            let mut fitting = candidates.iter().any(exact);
            if fitting {
                candidates.retain(exact);
            } else {
                fitting = candidates.iter().any(around);
                candidates.retain(around);
            }
            if !fitting {
                return None;
            }
        }
        let block = self.block(&candidates, refusal, node)?;
        candidates.retain(|c| (c.text, &c.mark.query) == (block.0, &block.1));
        self.own(candidates, refusal, node)
    }

    /// The block of a node, among the blocks with clauses of its kind.
    fn block(
        &self,
        candidates: &[Candidate],
        refusal: &Refusal,
        node: Option<&LogicalPlan>,
    ) -> Option<(usize, Range<usize>)> {
        let columns = columns_of(refusal, node);
        let mut blocks: Vec<(usize, Range<usize>)> = vec![];
        for Candidate { text, mark, .. } in candidates {
            let block = (*text, mark.query.clone());
            if !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        // A view is within the statement; of one text, what is shorter is within.
        blocks.sort_by_key(|(text, block)| (*text == 0, block.len()));
        let names = |(text, block): &&(usize, Range<usize>)| {
            let of_block = |c: &&Candidate| c.text == *text && c.mark.query == *block;
            let reads = |c: &Candidate| columns.iter().any(|at| self.reads(c, *at));
            candidates.iter().filter(of_block).any(reads)
        };
        let mut named = blocks.iter().filter(names);
        if let (Some(block), None) = (named.next(), named.next()) {
            return Some(block.clone());
        }
        let beneath = node.map_or(0, beneath);
        blocks.get(beneath.min(blocks.len().checked_sub(1)?)).cloned()
    }

    /// Of the clauses of one block, the node's own.
    fn own(
        &self,
        mut candidates: Vec<Candidate>,
        refusal: &Refusal,
        node: Option<&LogicalPlan>,
    ) -> Option<Candidate> {
        let first = candidates.iter().map(|c| c.rank).min()?;
        candidates.retain(|c| c.rank == first);
        let columns = columns_of(refusal, node);
        let read = |c: &Candidate| columns.iter().filter(|at| self.reads(c, **at)).count();
        let names = |c: &Candidate| {
            let tokens = &self.texts[c.text].outline.tokens[c.mark.clause.clone()];
            let named = |name: &&String| tokens.iter().any(|token| is_word(token, name));
            refusal.site.reads.iter().filter(named).count()
        };
        let best = candidates.iter().map(|c| (names(c), read(c))).max()?;
        candidates.retain(|c| (names(c), read(c)) == best);
        let nth = refusal.site.nth.min(candidates.len() - 1);
        Some(candidates.swap_remove(nth))
    }

    fn covers(&self, candidate: &Candidate, path: &Path) -> bool {
        let text = &self.texts[candidate.text];
        text.covers(std::slice::from_ref(&candidate.mark.query), path)
    }

    fn reads(&self, candidate: &Candidate, place: Place) -> bool {
        self.texts[candidate.text].outline.covers(&candidate.mark.clause, place)
    }
}

impl Text<'_> {
    fn holds(&self, place: Place) -> bool {
        self.outline.covers(&(0..self.outline.tokens.len()), place)
    }

    /// Whether a table was named in one of these ranges.
    fn covers(&self, ranges: &[Range<usize>], path: &Path) -> bool {
        let here = path.iter().filter(|named| named.script == self.script);
        here.into_iter()
            .any(|named| ranges.iter().any(|range| self.outline.covers(range, named.place)))
    }

    fn covers_all(&self, ranges: &[Range<usize>], paths: &[Path]) -> bool {
        !paths.is_empty() && paths.iter().all(|path| self.covers(ranges, path))
    }
}

/// Where a table is named in the script of a statement.
pub(crate) fn of_table(table: &Table, plan: &LogicalPlan, script: u64) -> Option<Place> {
    let mut path = None;
    // The closure never fails.
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(source) = scan.source.downcast_ref::<ScannedTable>()
            && source.table.name == table.name
        {
            path = Some(source.named.clone());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    in_script(script, &[path?])
}

/// The last name of the first table that stands in a script.
fn in_script(script: u64, paths: &[Path]) -> Option<Place> {
    let mut named = paths.first()?.iter().rev();
    named.find(|named| named.script == script).map(|named| named.place)
}

/// The words of what is refused; behind the first, of a grouping the aggregates.
fn words_of(refusal: &Refusal, node: Option<&LogicalPlan>) -> Vec<String> {
    let mut words = refusal.site.words.clone();
    if let Some(LogicalPlan::Aggregate(aggregate)) = node
        && words.first().is_some_and(|first| first == "GROUP")
    {
        let name = |expr: &Expr| match expr {
            Expr::AggregateFunction(call) => Some(call.func.name().to_owned()),
            _ => None,
        };
        words.splice(1..1, aggregate.aggr_expr.iter().filter_map(name));
    }
    words
}

/// Where the columns of what is refused were written.
fn columns_of(refusal: &Refusal, node: Option<&LogicalPlan>) -> Vec<Place> {
    match (&refusal.site.columns[..], node) {
        ([], Some(node)) => node.expressions().iter().flat_map(places_of).collect(),
        (columns, _) => columns.to_vec(),
    }
}

/// How many nodes of its kind, over the same tables, are beneath a node.
fn beneath(node: &LogicalPlan) -> usize {
    let same = std::mem::discriminant(node);
    let tables = paths(node);
    let (mut count, mut input) = (0, node.inputs());
    while let [only] = input[..] {
        count += usize::from(std::mem::discriminant(only) == same && paths(only) == tables);
        input = only.inputs();
    }
    count
}

/// Where the tables of a plan were named.
fn paths(plan: &LogicalPlan) -> Vec<Path> {
    let mut paths: Vec<Path> = vec![];
    // The closure never fails.
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(source) = scan.source.downcast_ref::<ScannedTable>()
            && !paths.contains(&source.named)
        {
            paths.push(source.named.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    paths
}
