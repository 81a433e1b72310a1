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
        self.template.replace("{fraction}", &format!("{:.10}", 0.0001 / scale))
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
        // Each begins with its name in a comment.
        let queries = text.split("-- Query ").skip(1).filter_map(|query| query.split_once('\n'));
        queries.map(|(name, sql)| Query { name: name.trim(), template: sql.trim() }).collect()
    }
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
        }
    }
}
