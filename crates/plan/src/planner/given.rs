//! Facts that a planner cannot find out itself.

use std::time::SystemTime;

use super::Planner;
use crate::explain::EndNeed;

impl Planner {
    /// Says what the transport has at each end of a link, and bytes of a worker's for the network's
    /// multicast; none where there is none.
    pub fn set_transport_needs(&mut self, ends: Vec<EndNeed>, member_bytes: u64) {
        self.ends = ends;
        self.member_bytes = member_bytes;
    }

    /// Says what `now()` gives from here on. Without it `now()` is not a constant.
    pub fn set_now(&mut self, instant: SystemTime) {
        self.engine.set_now(instant);
    }

    /// Says which tables were read as streams by the job that goes on from a checkpoint, by the
    /// titles that [`Labels::table`](dataflow::job::Labels::table) has. Where all input ends,
    /// statistics decide which side of a join is the table of a lookup, and whether it is one at
    /// all; a job that goes on keeps what was decided when it began, for its tables may have grown.
    pub fn set_streamed(&mut self, tables: Vec<String>) {
        self.streamed = tables;
    }
}
