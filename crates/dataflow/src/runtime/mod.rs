//! The runtime of operators on a worker: coroutines and timers, links, reading, the builds that
//! scans wait for, and memory accounting.

pub(crate) mod accounting;
pub(crate) mod alignment;
pub(crate) mod builds;
pub(crate) mod external;
pub mod frame;
pub(crate) mod local_exchange;
pub mod metrics;
pub(crate) mod net;
pub(crate) mod place;
pub mod process;
pub(crate) mod reader;
pub mod reconnect;
pub(crate) mod rounds;
pub(crate) mod scheduler;
