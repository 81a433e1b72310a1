//! Layer 4: where rows come from and where they go.
//!
//! One module per connector: [`file`](mod@file), which has tables of Delta Lake too, [`stdin`],
//! [`socket`], [`http`], [`flight`], [`pool`](mod@pool), [`generator`] (seeded rows and the
//! ready-made workloads of the papers, S14), [`stdout`] and [`blackhole`]. Each implements
//! [`dataflow::connector::Connector`]; nothing here knows SQL, operators or windows.
//!
//! Those that read bytes share layers: `format` turns bytes into rows wherever they come from;
//! `stored` makes a source of named bytes that can be read again, of files and of the objects of a
//! store (`object`); and `remote` waits for networks, so that a worker never does.
//!
//! Two invariants hold for every source: the list of flows is the same on every node, and a row
//! that cannot be read is counted in [`dataflow::bad::BadRows`] and takes no other row with it.
#![deny(unsafe_code)]

use std::sync::Arc;

use dataflow::connector::Connector;

pub mod blackhole;
pub mod file;
pub mod flight;
mod format;
pub mod generator;
#[doc(hidden)]
pub mod hostile;
pub mod http;
pub mod messages;
mod object;
mod options;
pub mod pool;
mod queued;
mod registry;
mod remote;
pub mod socket;
mod staged;
pub mod stdin;
pub mod stdout;
mod stored;

pub use self::pool::PoolConnector;
pub use blackhole::Blackhole;
pub use file::{AtomicFile, DeltaConnector, FileConnector};
pub use flight::FlightConnector;
pub use format::fnv;
pub use generator::Generator;
pub use http::Http;
pub use object::{BucketStore, is_url};
pub use options::{OptionReader, nearest, refuse};
pub use socket::Socket;
pub use staged::{StagedBatches, StagedFormat, StagedStream};
pub use stdin::Stdin;
pub use stdout::{Capture, Stdout, StdoutTarget};

/// Every connector, with the terminal of this process behind `stdout`.
pub fn all() -> Vec<Arc<dyn Connector>> {
    all_to(StdoutTarget::stdout())
}

/// Every connector, with `output` behind `stdout`: for libraries and tests that want to see it.
pub fn all_to(output: StdoutTarget) -> Vec<Arc<dyn Connector>> {
    vec![
        Arc::new(FileConnector::default()),
        Arc::new(DeltaConnector),
        Arc::new(Generator),
        Arc::new(Stdin::default()),
        Arc::new(Socket),
        Arc::new(Http),
        Arc::new(FlightConnector),
        Arc::new(PoolConnector::absent()),
        Arc::new(Stdout::new(output)),
        Arc::new(Blackhole::default()),
    ]
}
