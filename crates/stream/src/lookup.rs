//! The static join: rows meet a table that every node keeps whole (A3).

use std::sync::Arc;

use dataflow::job::{Labels, OperatorKind, Scan, Step};
use dataflow::keyed::JoinKind;
use dataflow::lookup::Lookup;

use crate::Stream;
use crate::error::{StreamError, indices_of};
use crate::keyed::side_by_side;
use crate::node::{Choice, StreamNode};
use crate::stream::same_types;

impl Stream {
    /// The rows with those of a table that has the same values in columns, which every node
    /// keeps whole (A3): `on` names the columns of the stream and of the table. The table's columns
    /// come behind the stream's, without those of `on`.
    ///
    /// # Errors
    /// When the table does not end or is no plain source, a column is unknown, types differ or
    /// names are taken.
    pub fn lookup(self, table: &Stream, on: &[(&str, &str)]) -> Result<Self, StreamError> {
        self.lookup_as(table, on, JoinKind::Inner)
    }

    /// As [`Stream::lookup`], of another kind: `Left` keeps rows that the table has nothing for,
    /// with NULL in its columns; `LeftSemi` and `LeftAnti` give rows that it has something or
    /// nothing for, with their own columns alone. Which rows of the table nobody asked for is known
    /// only when the stream has ended, so there are no others.
    ///
    /// ```
    /// use stream::{JoinKind, Stream, StreamError};
    ///
    /// /// Payments with cards that are on no list.
    /// fn unlisted(payments: Stream, listed: &Stream) -> Result<Stream, StreamError> {
    ///     payments.lookup_as(listed, &[("card", "card")], JoinKind::LeftAnti)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::lookup`], and of other kinds.
    pub fn lookup_as(
        self,
        table: &Stream,
        on: &[(&str, &str)],
        kind: JoinKind,
    ) -> Result<Self, StreamError> {
        let alone = match kind {
            JoinKind::Inner | JoinKind::Left => false,
            JoinKind::LeftSemi | JoinKind::LeftAnti => true,
            _ => {
                let message = "unmatched rows of a table are known only when the stream ends";
                let hint = "keep the stream's: JoinKind::Left, LeftSemi or LeftAnti";
                return Err(StreamError::refused(message, hint));
            }
        };
        let (input, step) = plain_source(table)?;
        let (left, right): (Vec<&str>, Vec<&str>) = on.iter().copied().unzip();
        let keys = [indices_of(&self.schema, &left)?, indices_of(&table.schema, &right)?];
        same_types([(&self.schema, &keys[0]), (&table.schema, &keys[1])])?;
        let both = side_by_side(&self.schema, &table.schema);
        let schema = if alone { self.schema.clone() } else { both.clone() };
        let lookup = Lookup {
            is_pulled: input.is_shared(),
            refresh_ns: None,
            table: input,
            step,
            bytes_max: usize::MAX,
            keys: keys.clone(),
            kind,
            on: None,
            schema: schema.clone(),
            both,
        };
        let node = StreamNode {
            name: "LookupJoin".into(),
            inputs: vec![self.input_edges(self.time.is_some())],
            kind: OperatorKind::Lookup(Box::new(lookup)),
            choice: Choice::Auto,
            labels: Labels::default(),
        };
        let Self { time, window, every, bounded, .. } = self;
        let first = self.schema.fields().len();
        let joined = Self { time, window, every, ..Self::of_node(node, schema, bounded) };
        if alone {
            return Ok(joined);
        }
        let keep = |at: &usize| *at < first || !keys[1].contains(&(at - first));
        let keep = (0..joined.schema.fields().len()).filter(keep).collect();
        joined.narrowed(keep, &[])
    }
}

/// The source behind a stream that is nothing else.
fn plain_source(table: &Stream) -> Result<(Scan, Option<Arc<dyn Step>>), StreamError> {
    let refused = |message: &str| {
        let hint = "a table is kept whole: read it with Stream::read, filter and map it";
        Err(StreamError::refused(message, hint))
    };
    match table.from.as_slice() {
        _ if !table.bounded => refused("a table that never ends cannot be kept"),
        [(node, step)] => match node.kind.spec().source() {
            Some(input) => Ok((input.clone(), step.clone())),
            None => refused("a table to be kept comes from another operator"),
        },
        _ => refused("a table to be kept is a union"),
    }
}
