//! The tables that the values of a column come from, row by row.
//!
//! A join by two columns finds fewer pairs than two independent columns would: the columns of one
//! table together have no more values than it has rows. Columns of different tables are of one
//! table, too, if joins before have made each equal to a column of it:
//!
//! ```text
//! lineitem JOIN (partsupp JOIN part ON ps_partkey = p_partkey
//!                         JOIN supplier ON ps_suppkey = s_suppkey)
//!   ON l_partkey = p_partkey AND l_suppkey = s_suppkey     as many values as partsupp has rows
//! ```

use super::estimate::ColumnEstimate;

/// The most tables that are remembered of a column; more are left out.
const TABLES_MAX: usize = 4;

/// The tables that have the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ColumnTables([Option<Origin>; TABLES_MAX]);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Origin {
    /// A hash of the table's name and of its aliases, the same on every node.
    table: u64,
    rows: f64,
}

impl ColumnTables {
    /// A column of a table.
    pub(crate) fn of(table: &str, rows: f64) -> Self {
        let mut origins = Self::default();
        origins.0[0] = Some(Origin { table: hashed(FNV_BASIS, table), rows });
        origins
    }

    /// Names the tables by an alias.
    pub(crate) fn rename(&mut self, alias: &str) {
        for origin in self.0.iter_mut().flatten() {
            origin.table = hashed(origin.table, alias);
        }
    }

    /// The tables of two columns that are equal.
    pub(crate) fn with(self, other: Self) -> Self {
        let mut all: Vec<Origin> = self.0.into_iter().flatten().collect();
        let known = |all: &[Origin], of: &Origin| all.iter().any(|one| one.table == of.table);
        for origin in other.0.into_iter().flatten() {
            if !known(&all, &origin) {
                all.push(origin);
            }
        }
        let mut origins = Self::default();
        origins.0.iter_mut().zip(all).for_each(|(place, origin)| *place = Some(origin));
        origins
    }

    /// The tables that two columns have in common.
    pub(crate) fn shared(self, other: Self) -> Self {
        let has = |of: &Origin| other.0.iter().flatten().any(|one| one.table == of.table);
        Self(self.0.map(|origin| origin.filter(has)))
    }

    /// The rows of the smallest table.
    fn rows(self) -> Option<f64> {
        self.0.into_iter().flatten().map(|origin| origin.rows).reduce(f64::min)
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn hashed(before: u64, text: &str) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    // A byte that no text has ends a name.
    text.bytes().chain([0xff]).fold(before, add)
}

/// Of the key columns of a side of a join the number of the relation that each belongs to. Where
/// several belong to one, their rows are those of that relation.
pub(crate) fn relations_of(columns: Vec<ColumnEstimate>) -> Vec<(usize, ColumnEstimate)> {
    let mut relations: Vec<(ColumnTables, usize)> = vec![];
    let mut numbers = vec![];
    for column in &columns {
        let shared = |(_, (of, _)): &(usize, &(ColumnTables, usize))| {
            // Columns of no table are taken to be of one.
            of.shared(column.origins).rows().is_some() || *of == column.origins
        };
        let found = relations.iter().enumerate().find(shared).map(|(at, _)| at);
        let at = match found {
            Some(at) => {
                let (of, columns) = &mut relations[at];
                (*of, *columns) = (of.shared(column.origins), *columns + 1);
                at
            }
            None => {
                relations.push((column.origins, 1));
                relations.len() - 1
            }
        };
        numbers.push(at);
    }
    let own = |(column, at): (ColumnEstimate, usize)| {
        let (origins, columns) = relations[at];
        let of_rows = origins.rows().filter(|_| columns > 1).unwrap_or(column.of_rows);
        (at, ColumnEstimate { of_rows, ..column })
    };
    columns.into_iter().zip(numbers).map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(distinct: f64, origins: ColumnTables) -> ColumnEstimate {
        ColumnEstimate { origins, ..ColumnEstimate::unknown(distinct) }
    }

    fn numbers(columns: &[ColumnEstimate]) -> Vec<(usize, f64)> {
        let of = relations_of(columns.to_vec());
        of.into_iter().map(|(at, column)| (at, column.of_rows)).collect()
    }

    #[test]
    fn columns_that_equal_those_of_one_table_are_of_that_table() {
        let of = |name, rows| column(rows, ColumnTables::of(name, rows));
        let (part, supplier) = (of("part", 2e5), of("supplier", 1e4));
        assert_eq!(numbers(&[part, supplier]), [(0, 2e5), (1, 1e4)]);
        let supplies = ColumnTables::of("partsupp", 8e5);
        let joined = |of: ColumnEstimate| column(of.distinct, of.origins.with(supplies));
        assert_eq!(numbers(&[joined(part), joined(supplier)]), [(0, 8e5), (0, 8e5)]);
        assert_eq!(numbers(&[joined(part), supplier]), [(0, 2e5), (1, 1e4)]);
    }

    #[test]
    fn a_table_under_two_names_is_two() {
        let named = |alias| {
            let mut origins = ColumnTables::of("nation", 25.0);
            origins.rename(alias);
            column(25.0, origins)
        };
        assert_eq!(numbers(&[named("n1"), named("n2")]), [(0, 25.0), (1, 25.0)]);
        assert_eq!(numbers(&[named("n1"), named("n1")]), [(0, 25.0), (0, 25.0)]);
    }

    #[test]
    fn expressions_are_of_one_relation_and_many_tables_are_left_out() {
        let none = column(7.0, ColumnTables::default());
        assert_eq!(numbers(&[none, none]), [(0, 7.0), (0, 7.0)]);
        let names = ["a", "b", "c", "d", "e"];
        let all = names.iter().map(|name| ColumnTables::of(name, 1.0)).reduce(ColumnTables::with);
        let all = all.unwrap_or_default();
        assert_eq!(all.0.iter().flatten().count(), TABLES_MAX);
        assert_eq!(all.with(all), all);
        assert_eq!(numbers(&[]), []);
    }
}
