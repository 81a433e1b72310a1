//! The first rows of each key and window.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use dataflow::job::{Exchange, Keyed, Labels, OperatorKind};
use dataflow::keyed::Ranking;

use crate::Stream;
use crate::error::{StreamError, check_names, index_of};
use crate::keyed::KeyedStream;
use crate::node::StreamNode;

/// Which of two rows comes first. NULL comes last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    column: String,
    descending: bool,
}

impl Order {
    /// The lesser value of a column.
    pub fn ascending(column: &str) -> Self {
        Self { column: column.to_owned(), descending: false }
    }

    /// The greater value of a column.
    pub fn descending(column: &str) -> Self {
        Self { column: column.to_owned(), descending: true }
    }
}

impl KeyedStream {
    /// The first `limit` rows of each key in each window, with their number from 1 in a new column
    /// called `number`, of 64 bits without a sign. They are emitted when the window ends. Rows that
    /// are equal by `order` are ordered by their other columns.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stream::{Order, Stream, StreamError, Window};
    ///
    /// /// The three highest bids of each auction in every minute.
    /// fn highest(bids: Stream) -> Result<Stream, StreamError> {
    ///     let minutes = bids.in_windows(&Window::tumble(Duration::from_secs(60)))?;
    ///     minutes.key_by(&["auction"])?.top(3, &[Order::descending("price")], "place")
    /// }
    /// ```
    ///
    /// # Errors
    /// When the rows belong to no windows ([`Stream::in_windows`], or aggregates of windows),
    /// `order` is empty, a column is unknown or the name is taken.
    pub fn top(self, limit: usize, order: &[Order], number: &str) -> Result<Stream, StreamError> {
        let window = self.windows("the first rows of a stream without end are never final")?;
        let before = self.stream.schema.clone();
        if order.is_empty() || limit == 0 {
            let hint = "stream.top(3, &[Order::descending(\"price\")], \"place\")";
            return Err(StreamError::refused("the first rows by no order, or none of them", hint));
        }
        let by = |order: &Order| {
            let options = SortOptions { descending: order.descending, nulls_first: false };
            Ok((index_of(&before, &order.column)?, options))
        };
        let order = order.iter().map(by).collect::<Result<Vec<_>, StreamError>>()?;
        let number = Arc::new(Field::new(number, DataType::UInt64, false));
        let fields = before.fields().iter().cloned().chain([number]);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        check_names(&schema)?;
        let ranking = Ranking {
            input: before,
            // Windows of different lengths may end together.
            keys: self.keys.iter().copied().chain([window.start]).collect(),
            window_end: window.end,
            order,
            limit: Some(limit),
            schema: schema.clone(),
        };
        let spec = Keyed {
            inputs: vec![self.input(Some(window.end), 0, Some(window.end))],
            exchange: Exchange::Shuffle,
            granularity: self.stream.every,
            operator: Arc::new(ranking),
        };
        let node = StreamNode {
            name: "TopN".into(),
            inputs: vec![self.stream.input_edges(self.stream.time.is_some())],
            kind: OperatorKind::Keyed(spec),
            choice: self.choice,
            labels: Labels::default(),
        };
        let Stream { bounded, every, .. } = self.stream;
        let stream = Stream::of_node(node, schema, bounded);
        Ok(Stream { time: Some(window.time), window: Some(window), every, ..stream })
    }
}
