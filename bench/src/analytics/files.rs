//! The tables of a suite as Parquet files, which are written once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream::{RowTarget, RunOptions, Session};

use super::{Suite, SuiteConnector};
use crate::run::BenchError;

impl Suite {
    /// The directory of the files of a scale within another: `tpch-1`.
    pub fn directory(self, within: &Path, scale: f64) -> PathBuf {
        within.join(format!("{self}-{scale}"))
    }

    /// The statements that declare its tables as the files in a directory.
    pub(super) fn declarations_of_files(self, directory: &Path) -> String {
        let declare = |table: &&str| {
            let path = file(directory, table).display().to_string().replace('\'', "''");
            format!("CREATE TABLE {table} WITH ('connector' = 'file', 'path' = '{path}');\n")
        };
        self.tables().iter().map(declare).collect()
    }

    /// Writes the tables of a scale into a directory, unless they are there.
    ///
    /// # Errors
    /// When the directory cannot be made or a file cannot be written.
    pub fn write(self, directory: &Path, scale: f64) -> Result<(), BenchError> {
        std::fs::create_dir_all(directory)
            .map_err(|error| BenchError::Directory { directory: directory.to_owned(), error })?;
        let connector = SuiteConnector::new(self);
        for table in self.tables() {
            let path = file(directory, table);
            if path.exists() {
                continue;
            }
            // The file gets its name when it is complete.
            let target = RowTarget::File { path: path.display().to_string(), format: None };
            let mut session = Session::builder()
                .rows_to(target)
                .connector(Arc::new(connector.clone()))
                .build()?;
            let sql = format!("{}SELECT * FROM {table};", self.declarations(scale));
            session.sql(&sql)?.run(&RunOptions::default())?;
            connector.forget();
        }
        Ok(())
    }
}

fn file(directory: &Path, table: &str) -> PathBuf {
    directory.join(format!("{table}.parquet"))
}
