//! The key by which the rows of a table are read in an order, and changes are told apart.

use crate::client::{PgConnection, literal, quoted};
use crate::errors::PgError;
use crate::ranges::{KeyText, ReadRanges};
use crate::table::PgTable;

/// The key that the log has of each change: the primary key, or the one of `REPLICA IDENTITY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableKey {
    pub(crate) columns: Vec<KeyColumn>,
}

/// A column of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    pub(crate) name: String,
    /// Its type, as SQL.
    sql_type: String,
    /// The order of its texts, as SQL.
    collation: Option<String>,
}

impl TableKey {
    /// The key of a table, if it has one.
    ///
    /// # Errors
    /// When the server does not tell.
    pub(crate) fn of(table: &PgTable, queries: &mut PgConnection) -> Result<Option<Self>, PgError> {
        let rows = queries.query(&format!(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), \
             quote_ident(n.nspname) || '.' || quote_ident(o.collname) \
             FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid \
             CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, at) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
             LEFT JOIN pg_collation o ON o.oid = a.attcollation \
             LEFT JOIN pg_namespace n ON n.oid = o.collnamespace \
             WHERE i.indrelid = {}::regclass AND i.indisvalid AND k.at <= i.indnkeyatts AND \
             CASE t.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END \
             ORDER BY k.at",
            literal(&table.quoted)
        ))?;
        let column = |row: Vec<Option<String>>| match row.as_slice() {
            [Some(name), Some(sql_type), collation] => Ok(KeyColumn {
                name: name.clone(),
                sql_type: sql_type.clone(),
                collation: collation.clone(),
            }),
            _ => Err(PgError::Breach("a column of a key is none".into())),
        };
        let columns = rows.into_iter().map(column).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Self { columns }).filter(|key| !key.columns.is_empty()))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Its columns, one behind the other.
    pub(crate) fn list(&self) -> String {
        self.columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
    }

    /// The query that gives for each of some keys the number of the range that it lies in.
    pub(crate) fn find_ranges(&self, keys: &[KeyText], ranges: &ReadRanges) -> String {
        let names: Vec<String> = (0..self.columns.len()).map(|at| format!("k{at}")).collect();
        let vars: Vec<String> = names.iter().map(|name| format!("v.{name}")).collect();
        let values = keys.iter().enumerate().map(|(at, key)| match at {
            // The types and the order of texts are those of the first one.
            0 => {
                let typed = self.columns.iter().zip(key).map(|(column, text)| {
                    let (text, own) = (literal(text), &column.sql_type);
                    let collated = column.collation.as_ref().map(|name| format!(" COLLATE {name}"));
                    format!("CAST({text} AS {own}){}", collated.unwrap_or_default())
                });
                format!("(0, {})", typed.collect::<Vec<_>>().join(", "))
            }
            at => format!("({at}, {})", literals(key)),
        });
        let values = values.collect::<Vec<_>>().join(", ");
        let (last, before) =
            ranges.ranges.split_last().map_or((0, &[][..]), |(_, before)| (before.len(), before));
        let vars = vars.join(", ");
        let cases: String = before
            .iter()
            .enumerate()
            .map(|(at, range)| format!("WHEN ({vars}) <= ({}) THEN {at} ", literals(&range.upto)))
            .collect();
        format!(
            "SELECT CASE {cases}ELSE {last} END FROM (VALUES {values}) v(n, {}) ORDER BY v.n",
            names.join(", ")
        )
    }
}

/// The values of a key in SQL, whose types are those of what they are compared with.
pub(crate) fn literals(key: &[String]) -> String {
    key.iter().map(|text| literal(text)).collect::<Vec<_>>().join(", ")
}
