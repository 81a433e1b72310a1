//! Files that queries name in the place of tables: `FROM 'flights.parquet'`.
//!
//! Such a table has the columns that its connector tells, and no watermark. It lives as long as the
//! script that names it: the next looks at the file anew.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dataflow::connector::{Connector, Options};

use crate::catalog::{Places, Table};
use crate::text::file_names::file_stem;

/// The files of a script by what they are called there.
#[derive(Default, Clone)]
pub(crate) struct Files {
    /// The connector that reads them; without it no name is that of a file.
    connector: Option<Arc<dyn Connector>>,
    named: Arc<Mutex<BTreeMap<String, Arc<Table>>>>,
}

impl Files {
    /// Files that `connector` reads, if there is one.
    pub(crate) fn of(connector: Option<Arc<dyn Connector>>) -> Self {
        Self { connector, ..Self::default() }
    }

    /// Forgets the files of the script before.
    pub(crate) fn begin_script(&mut self) {
        self.named = Arc::default();
    }

    /// The table of a name that is a file's: the same wherever a script names it.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Table>> {
        let connector = self.connector.as_ref()?;
        file_stem(name)?;
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let table = named.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Table {
                name: name.to_owned(),
                connector: connector.clone(),
                event_time: None,
                options: Options::from([("path".into(), name.to_owned())]),
                buckets: vec![],
                schema: OnceLock::new(),
                derived: BTreeMap::new(),
                bounded: OnceLock::new(),
                // Errors are shown where the name stands.
                places: Places { stale: AtomicBool::new(true), ..Places::default() },
                stream: None,
                dead_letters: Arc::default(),
                side_output: None,
            })
        });
        Some(table.clone())
    }
}
