//! Aggregates as columns: where a part has most rows forgotten, parts are put together.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef};
use arrow::error::ArrowError;
use state::gather;

use crate::rows::wire::bytes_of_array;

/// An aggregate: a row of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    part: u32,
    row: u32,
}

impl Node {
    /// Row `row` of a part.
    pub(super) fn of(part: u32, row: usize) -> Self {
        Self { part, row: row as u32 }
    }
}

/// The aggregate of no rows. It is never forgotten.
pub(super) const NOTHING: Node = Node { part: 0, row: 0 };

/// Parts and rows that may be more than those in use, at least.
const PARTS_MIN: usize = 256;
const ROWS_MIN: usize = 4_096;
/// How many rows a part has at least, on average, when there are many.
const PART_ROWS_MIN: usize = 64;

/// Columns of aggregates; the first part is [`NOTHING`].
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Option<Part>>,
    free: Vec<u32>,
    /// Rows of all parts, and how many of them are in use.
    rows: usize,
    used: usize,
    bytes: usize,
}

struct Part {
    columns: Vec<ArrayRef>,
    rows: usize,
    used: usize,
    bytes: usize,
}

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a part, of which `used` rows are in use: none of them forgotten yet.
    pub(super) fn add(&mut self, columns: Vec<ArrayRef>, used: usize) -> u32 {
        let rows = columns.first().map_or(0, |column| column.len());
        let bytes = columns.iter().map(|column| column.get_array_memory_size()).sum();
        (self.rows, self.used) = (self.rows + rows, self.used + used);
        self.bytes += bytes;
        let part = Some(Part { columns, rows, used, bytes });
        match self.free.pop() {
            Some(number) => {
                self.parts[number as usize] = part;
                number
            }
            None => {
                self.parts.push(part);
                self.parts.len() as u32 - 1
            }
        }
    }

    pub(super) fn forget(&mut self, node: Node) {
        let Some(part) = &mut self.parts[node.part as usize] else { return };
        part.used -= 1;
        self.used -= 1;
        if part.used == 0 {
            (self.rows, self.bytes) = (self.rows - part.rows, self.bytes - part.bytes);
            self.parts[node.part as usize] = None;
            self.free.push(node.part);
        }
    }

    /// Bytes of an aggregate.
    pub(super) fn bytes_of(&self, node: Node) -> usize {
        let part = self.parts[node.part as usize].as_ref();
        let columns = part.into_iter().flat_map(|part| &part.columns);
        columns.map(|column| bytes_of_array(&column.slice(node.row as usize, 1))).sum()
    }

    /// The aggregates of some nodes, in their order.
    pub(super) fn gather(&self, nodes: &[Node]) -> Result<Vec<ArrayRef>, ArrowError> {
        let mut from: Vec<&Part> = vec![];
        let mut known: HashMap<u32, usize> = HashMap::new();
        let mut last = (u32::MAX, 0);
        let mut places = Vec::with_capacity(nodes.len());
        for node in nodes {
            if node.part != last.0 {
                let Some(part) = &self.parts[node.part as usize] else { continue };
                let at = *known.entry(node.part).or_insert_with(|| {
                    from.push(part);
                    from.len() - 1
                });
                last = (node.part, at);
            }
            places.push((last.1, node.row as usize));
        }
        let columns = from.first().map_or(0, |part| part.columns.len());
        let column = |at: usize| {
            let arrays: Vec<&dyn Array> =
                from.iter().map(|part| part.columns[at].as_ref()).collect();
            gather(&arrays, &places)
        };
        (0..columns).map(column).collect()
    }

    /// Whether it is worth to put all parts together.
    pub(super) fn is_sparse(&self) -> bool {
        let parts = self.parts.len() - self.free.len();
        self.rows > 2 * self.used + ROWS_MIN || parts > PARTS_MIN + self.used / PART_ROWS_MIN
    }

    /// Puts all nodes in use into one part.
    pub(super) fn compact(&mut self, nodes: Vec<&mut Node>) -> Result<(), ArrowError> {
        let nothing = self.gather(&[NOTHING])?;
        let all: Vec<Node> = nodes.iter().map(|node| **node).collect();
        let columns = self.gather(&all)?;
        *self = Self::default();
        self.add(nothing, 1);
        if !all.is_empty() {
            let part = self.add(columns, all.len());
            nodes.into_iter().enumerate().for_each(|(row, node)| *node = Node::of(part, row));
        }
        Ok(())
    }
}
