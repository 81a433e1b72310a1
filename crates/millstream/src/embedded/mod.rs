//! Parts for programs that hold the engine in their own process: jobs in the background, rows that
//! are read while a query runs, tables in memory, and tables that the program appends to.

mod appended;
mod background;
mod failed_rows;
mod row_queue;
pub(crate) mod tables;

pub use appended::{APPENDED_BYTES_MAX, AppendResult, AppendSource};
pub use background::{RunningJob, StartOptions};
pub use failed_rows::{FAILED_ROW_BYTES_MAX, FAILED_ROWS_MAX, FailedRows};
pub use row_queue::{QueuedRows, ROW_QUEUE_BYTES_MAX, RowQueue, TakenRows};
pub use tables::MemoryTable;
pub(crate) use tables::MemoryTables;
