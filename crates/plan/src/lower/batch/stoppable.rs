//! Memory that a stopped query gets no more of.
//!
//! A sort of DataFusion sorts all rows in memory within one poll, and no caller of it can look
//! meanwhile whether the query is stopped. But it asks for memory behind each run of rows that it
//! has sorted. A pool that refuses then ends it with an error, which nobody sees.

use std::fmt;
use std::sync::Arc;

use dataflow::job::StopCheck;
use datafusion::common::exec_err;
use datafusion::error::Result as DfResult;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// A memory pool that refuses once the query is stopped.
pub(crate) struct StoppablePool {
    pool: Arc<dyn MemoryPool>,
    is_stopped: StopCheck,
}

impl StoppablePool {
    pub(crate) fn new(pool: Arc<dyn MemoryPool>, is_stopped: StopCheck) -> Self {
        Self { pool, is_stopped }
    }
}

impl fmt::Debug for StoppablePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoppablePool").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl fmt::Display for StoppablePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.pool, f)
    }
}

impl MemoryPool for StoppablePool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, of: &MemoryReservation, additional: usize) {
        self.pool.grow(of, additional);
    }

    fn shrink(&self, of: &MemoryReservation, shrink: usize) {
        self.pool.shrink(of, shrink);
    }

    fn try_grow(&self, of: &MemoryReservation, additional: usize) -> DfResult<()> {
        if (self.is_stopped)() {
            return exec_err!("the query is stopped");
        }
        self.pool.try_grow(of, additional)
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
