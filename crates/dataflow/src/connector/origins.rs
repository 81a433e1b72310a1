//! Where the rows of a flow stand in its input: the file and the record, for messages.
//!
//! A reader of files tells of each batch where its rows stand; the finder of a row at fault asks by
//! its number in the flow. Records that follow one another are one run, so that a whole file is one
//! as a rule, and telling costs nothing that can be measured.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs that are kept of a flow: more than the rows of a batch can make. Of older ones nothing is
/// known any more.
pub const ORIGIN_RUNS_MAX: usize = 16_384;

/// The origins of the rows of one flow.
#[derive(Debug, Default)]
pub struct Origins(Mutex<Runs>);

#[derive(Debug, Default)]
struct Runs {
    /// Rows of which was told.
    rows: u64,
    runs: VecDeque<Run>,
}

/// Rows whose records follow one another.
#[derive(Debug)]
struct Run {
    /// The number of its first row in the flow.
    begin: u64,
    name: Arc<str>,
    /// The record of that row.
    record: u64,
}

impl Origins {
    /// Tells of the next `rows` rows of the flow: they are records of `name` from `record` on.
    pub fn tell(&self, name: &str, record: u64, rows: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = all.rows;
        all.rows += rows;
        let goes_on = all.runs.back().is_some_and(|run| {
            *run.name == *name && run.record.saturating_add(begin - run.begin) == record
        });
        if goes_on || rows == 0 {
            return;
        }
        let known = all.runs.back().filter(|run| *run.name == *name);
        let name = known.map_or_else(|| name.into(), |run| Arc::clone(&run.name));
        if all.runs.len() == ORIGIN_RUNS_MAX {
            all.runs.pop_front();
        }
        all.runs.push_back(Run { begin, name, record });
    }

    /// Where a row stands, as messages name it: `flights.csv:17`. `None` where nobody told.
    pub fn of(&self, row: u64) -> Option<String> {
        let (name, record) = self.find(row)?;
        Some(format!("{name}:{record}"))
    }

    /// Where some rows stand, of which one is at fault.
    pub(crate) fn of_some(&self, first: u64, rows: u64) -> Option<String> {
        let (name, from) = self.find(first)?;
        let (last_name, to) = self.find(first + rows.checked_sub(1)?)?;
        Some(match last_name == name {
            true if from == to => format!("{name}:{from}"),
            true => format!("{name}, records {from} to {to}"),
            false => format!("{name}:{from} to {last_name}:{to}"),
        })
    }

    /// The last row of which was told.
    fn last(&self) -> Option<String> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner).rows;
        self.of(rows.checked_sub(1)?)
    }

    fn find(&self, row: u64) -> Option<(Arc<str>, u64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.runs.partition_point(|run| run.begin <= row).checked_sub(1)?;
        let run = all.runs.get(at).filter(|_| row < all.rows)?;
        Some((Arc::clone(&run.name), run.record.saturating_add(row - run.begin)))
    }
}

/// Which rows of its flows a reader is busy with, for the message of a failure.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Name and origins of each flow that was opened.
    flows: RefCell<BTreeMap<usize, (String, Arc<Origins>)>>,
    /// A flow, the number of a row of it, and how many rows from there on; none while they are
    /// read.
    rows: Cell<Option<(usize, u64, u64)>>,
}

impl Reading {
    /// A flow was opened.
    pub(crate) fn open(&self, flow: usize, name: &str, origins: &Arc<Origins>) {
        self.flows.borrow_mut().insert(flow, (name.to_owned(), Arc::clone(origins)));
    }

    /// Rows are on their way: so many from number `first` of a flow on.
    pub(crate) fn at(&self, flow: usize, first: u64, rows: u64) {
        self.rows.set(Some((flow, first, rows)));
    }

    /// The rows have come to rest.
    pub(crate) fn idle(&self) {
        self.rows.set(None);
    }

    /// Where the row of this number of a flow stands; its number where that is not known.
    pub(crate) fn place_of(&self, flow: usize, row: u64) -> Option<String> {
        let flows = self.flows.borrow();
        let (name, origins) = flows.get(&flow)?;
        Some(origins.of(row).unwrap_or_else(|| format!("{name}:{}", row + 1)))
    }

    /// Where the row of number `index` among those on their way stands, or all of them where that
    /// is not known.
    pub(crate) fn place(&self, index: Option<usize>) -> Option<String> {
        let (flow, first, rows) = self.rows.get()?;
        let flows = self.flows.borrow();
        let (name, origins) = flows.get(&flow)?;
        if rows == 0 {
            return Some(match origins.last() {
                Some(last) => format!("behind {last}"),
                None if first == 0 => name.clone(),
                None => format!("{name}, behind row {first}"),
            });
        }
        let known = match index {
            Some(index) => origins.of(first + index as u64),
            None => origins.of_some(first, rows),
        };
        Some(known.unwrap_or_else(|| match index {
            Some(index) => format!("{name}, row {}", first + index as u64 + 1),
            None => format!("{name}, rows {} to {}", first + 1, first + rows),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_number() {
        let origins = Origins::default();
        assert_eq!(origins.of(0), None);
        origins.tell("a.csv", 2, 10);
        origins.tell("a.csv", 12, 5);
        // Record 17 was refused.
        origins.tell("a.csv", 18, 1);
        origins.tell("b.csv", 2, 3);
        let of = |row| origins.of(row).unwrap_or_default();
        assert_eq!([of(0), of(9), of(14)], ["a.csv:2", "a.csv:11", "a.csv:16"]);
        assert_eq!([of(15), of(16), of(18)], ["a.csv:18", "b.csv:2", "b.csv:4"]);
        assert_eq!(origins.of(19), None, "it has not been read");
        assert_eq!(origins.of_some(0, 15).unwrap(), "a.csv, records 2 to 16");
        assert_eq!(origins.of_some(3, 1).unwrap(), "a.csv:5");
        assert_eq!(origins.of_some(14, 3).unwrap(), "a.csv:16 to b.csv:2");
    }

    #[test]
    fn rows_on_their_way_have_a_place() {
        let (reading, origins) = (Reading::default(), Arc::<Origins>::default());
        assert_eq!(reading.place(None), None);
        reading.open(3, "walk 3", &origins);
        let place = |rows: (u64, u64), index| {
            reading.at(3, rows.0, rows.1);
            reading.place(index).unwrap()
        };
        assert_eq!(place((0, 0), None), "walk 3");
        assert_eq!(place((8, 0), None), "walk 3, behind row 8");
        assert_eq!(place((8, 4), None), "walk 3, rows 9 to 12");
        assert_eq!(place((8, 4), Some(1)), "walk 3, row 10");
        origins.tell("a.csv", 2, 12);
        assert_eq!(place((12, 0), None), "behind a.csv:13");
        assert_eq!(place((8, 4), Some(1)), "a.csv:11");
        assert_eq!(place((8, 4), None), "a.csv, records 10 to 13");
        reading.idle();
        assert_eq!(reading.place(None), None);
    }

    #[test]
    fn old_runs_are_forgotten() {
        let origins = Origins::default();
        let more = ORIGIN_RUNS_MAX as u64 + 10;
        (0..more).for_each(|row| origins.tell("a.csv", row * 2, 1));
        assert_eq!(origins.of(9), None);
        assert_eq!(origins.of(10).unwrap(), "a.csv:20");
        assert_eq!(origins.of(more - 1).unwrap(), format!("a.csv:{}", (more - 1) * 2));
    }
}
