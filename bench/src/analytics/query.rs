//! The queries of the suites, by their names.

use super::Suite;

/// A query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Its name: `q5`, `q2.1`.
    pub name: &'static str,
    /// Its SQL, with a placeholder.
    template: &'static str,
}

impl Query {
    /// Its SQL at a scale.
    pub fn sql(&self, scale: f64) -> String {
        // TPC-H's query 11 has it, so that the result does not grow with the data.
        let text = self.template.replace("{fraction}", &format!("{:.10}", 0.0001 / scale));
        match self.pulls() {
            Some((placeholder, _)) => text.replace(&placeholder, ""),
            None => text,
        }
    }

    /// The same with this hint for each table that can be pulled or multicast; `None` if the query
    /// names none.
    pub fn sql_hinted(&self, hint: &str, scale: f64) -> Option<String> {
        let (placeholder, tables) = self.pulls()?;
        let hints: Vec<String> = tables.iter().map(|table| format!("{hint}({table})")).collect();
        let hints = format!("/*+ {} */", hints.join(", "));
        let text = self.template.replace(&placeholder, &hints);
        Some(text.replace("{fraction}", &format!("{:.10}", 0.0001 / scale)))
    }

    /// The placeholder for the tables that can be pulled, and their names.
    fn pulls(&self) -> Option<(String, Vec<&'static str>)> {
        let (_, behind) = self.template.split_once("{pull:")?;
        let (tables, _) = behind.split_once('}')?;
        Some((format!("{{pull:{tables}}}"), tables.split(',').collect()))
    }
}

impl Suite {
    /// Its queries, in their order.
    pub fn queries(self) -> Vec<Query> {
        let text = match self {
            Suite::Tpch => include_str!("../../sql/tpch.sql"),
            Suite::Ssb => include_str!("../../sql/ssb.sql"),
            Suite::Tpcc => include_str!("../../sql/tpcc.sql"),
        };
        queries_of(text)
    }

    /// The joins of I-Store's paper, over the tables of the star schema (I10): they are measured
    /// where they are named.
    pub fn joins(self) -> Vec<Query> {
        match self {
            Suite::Ssb => queries_of(include_str!("../../sql/istore.sql")),
            Suite::Tpch | Suite::Tpcc => vec![],
        }
    }
}

/// The queries of a text, of which each begins with its name in a comment.
fn queries_of(text: &'static str) -> Vec<Query> {
    let queries = text.split("-- Query ").skip(1).filter_map(|query| query.split_once('\n'));
    queries.map(|(name, sql)| Query { name: name.trim(), template: sql.trim() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_suite_has_its_queries() {
        let counts = Suite::ALL.map(|suite| suite.queries().len());
        assert_eq!(counts, [22, 13, 3]);
        for query in Suite::ALL.iter().flat_map(|suite| suite.queries()) {
            assert!(query.name.starts_with('q') && query.sql(1.0).ends_with(';'), "{query:?}");
            assert_eq!(query.sql_hinted("PULL", 1.0), None);
        }
    }

    #[test]
    fn joins_name_the_tables_that_are_pulled() {
        let joins = Suite::Ssb.joins();
        assert_eq!(
            joins.iter().map(|join| join.name).collect::<Vec<_>>(),
            ["j1", "j2", "j3", "m1"]
        );
        let tables = [1, 2, 3, 1];
        for (join, tables) in joins.iter().zip(tables) {
            assert!(!join.sql(1.0).contains(['{', '+']), "{}", join.sql(1.0));
            for hint in ["PULL", "MULTICAST"] {
                let hinted = join.sql_hinted(hint, 1.0).expect("hints");
                assert_eq!(hinted.matches(&format!("{hint}(")).count(), tables, "{hinted}");
                assert!(hinted.starts_with(&format!("SELECT /*+ {hint}(")), "{hinted}");
            }
        }
    }
}
