//! The memory that a stage is given, as a sum of named amounts.

use std::fmt::Write;

use channel::broadcast::InFlightPayloads;
use channel::{HUGE_PAGE_BYTES, Transfer};

use super::Explain;
use crate::Workers;
use crate::text::settings::InForce;
use crate::text::units::human;

/// A named amount of memory of each worker, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Its purpose.
    pub name: &'static str,
    /// How it comes about.
    pub sum: String,
    /// Bytes per worker; of worker 0 only if `once`.
    pub bytes: u64,
    /// Whether one worker of the job has it, rather than each.
    pub once: bool,
    /// Whether it is a limit up to which something asks before it grows, and whose end is an error
    /// of its own; else it is taken as rows travel, and nobody asks.
    pub asks: bool,
}

/// A named amount of memory that the transport has at each end of a link, besides the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndNeed {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub what: &'static str,
    /// Bytes; none where they are not counted.
    pub bytes: u64,
}

impl Explain {
    /// The memory that was given to the stage.
    pub fn memory(&self) -> &[Need] {
        &self.needs
    }

    pub(super) fn write_memory(&self, out: &mut String) {
        let Workers { nodes, per_node } = self.workers;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "memory, on {nodes} x {per_node} workers");
        let mut line = |name: &str, sum: &str, bytes: u64| {
            let _ = writeln!(out, "  {name:<12} {sum:<44} {:>10}", human(bytes));
        };
        for need in &self.needs {
            line(need.name, &need.sum, need.bytes);
        }
        let worker: u64 = self.needs.iter().filter(|n| !n.once).map(|n| n.bytes).sum();
        let once: u64 = self.needs.iter().filter(|n| n.once).map(|n| n.bytes).sum();
        line("per worker", "at most", worker);
        let node = worker * u64::from(per_node);
        line("per node", &format!("{per_node} x {}", human(worker)), node);
        if once > 0 {
            line("node 0", &format!("{} + {}", human(node), human(once)), node + once);
        }
    }
}

/// The memory of a stage. `ends` is what each end of a link needs besides the ring, `groupings` is
/// how many of its queries group rows. Links join workers of different nodes; those of one hand
/// rows over through queues, which hold as much as a ring.
pub(crate) fn needs(
    settings: &InForce,
    workers: Workers,
    ends: &[EndNeed],
    groupings: usize,
    batch: bool,
) -> Vec<Need> {
    let beside = u64::from(workers.per_node.max(1)) - 1;
    let links = u64::from(workers.total() - 1) - beside;
    let link = settings.job.ring.memory_bytes();
    let mut needs = vec![rings_need(settings, workers, links)];
    if links > 0 {
        needs.extend(ends.iter().map(|end| Need {
            name: end.name,
            sum: match end.bytes {
                0 => format!("{}, not counted", end.what),
                bytes => format!("{links} links x {} {}", human(bytes), end.what),
            },
            bytes: links * end.bytes,
            once: false,
            asks: false,
        }));
    }
    needs.extend(region_need(settings).filter(|_| links > 0));
    if beside > 0 {
        needs.push(Need {
            name: "queues",
            sum: format!("{beside} in the process x {}, a limit", human(link.ring as u64)),
            bytes: beside * link.ring as u64,
            once: false,
            asks: false,
        });
    }
    if groupings > 0 {
        needs.push(Need {
            name: "state",
            sum: match &settings.job.spill {
                None => "millstream.state_bytes, a limit".into(),
                Some(folder) => format!("millstream.state_bytes; what is beyond goes to {folder}"),
            },
            bytes: settings.job.state_bytes_max as u64,
            once: false,
            asks: true,
        });
    }
    if batch {
        needs.push(Need {
            name: "batch stage",
            sum: "millstream.batch_bytes, a limit, worker 0 only".into(),
            bytes: settings.batch_bytes as u64,
            once: true,
            asks: true,
        });
    }
    needs
}

/// The memory of the rings of a worker. Where they share slabs these are whole huge pages, and each
/// worker is counted its part.
fn rings_need(settings: &InForce, workers: Workers, links: u64) -> Need {
    let link = settings.job.ring.memory_bytes();
    let own = format!(
        "{links} links x ({} ring + {} staging)",
        human(link.ring as u64),
        human(link.staging as u64)
    );
    let per_node = u64::from(workers.per_node.max(1));
    let of_node = |bytes: usize| per_node * per_node * bytes as u64;
    let are_beside = links > 0 && settings.job.wires.ring_pages.are_beside(of_node(link.ring));
    let (sum, bytes) = if are_beside {
        let whole = |bytes| of_node(bytes).next_multiple_of(HUGE_PAGE_BYTES);
        let nodes = u64::from(workers.nodes.max(1)) - 1;
        let all = nodes * (whole(link.ring) + whole(link.staging));
        (format!("{own}, in huge pages"), all.div_ceil(per_node))
    } else {
        (own, links * link.total() as u64)
    };
    Need { name: "rings", sum, bytes, once: false, asks: false }
}

/// The memory of a worker from which others read rows, where rings have it.
fn region_need(settings: &InForce) -> Option<Need> {
    let ring = settings.job.ring;
    let slots = settings.job.region_slots();
    let slot_bytes = u64::from(ring.slot_bytes);
    (ring.transfer == Transfer::Region).then(|| Need {
        name: "region",
        sum: format!("{slots} slots of {} that receivers read", human(slot_bytes)),
        bytes: u64::from(slots) * slot_bytes,
        once: false,
        asks: false,
    })
}

/// The memory of operators whose rows go to every worker: frames that wait at a source, and
/// those of others that are passed on. Within one process rows are handed over by reference. Where
/// the network may carry payloads, with `member_bytes` in the transport, a source keeps them until
/// all have had them, and others put them together.
pub(crate) fn broadcast_needs(
    settings: &InForce,
    workers: Workers,
    broadcasts: usize,
    member_bytes: u64,
) -> Vec<Need> {
    let others = u64::from(workers.nodes - 1);
    let (ring, casting) = (settings.job.ring, &settings.job.casting);
    if broadcasts == 0 || others == 0 {
        return vec![];
    }
    let frame = u64::from(ring.slot_bytes);
    let queue = u64::from(casting.queue_frames);
    let relayed = others * u64::from(ring.slots);
    let mut needs = vec![Need {
        name: "broadcast",
        sum: format!("{broadcasts} x ({queue} + {relayed}) frames of {}", human(frame)),
        bytes: broadcasts as u64 * (queue + relayed) * frame,
        once: false,
        asks: false,
    }];
    if casting.wants_groups(workers.nodes) && member_bytes > 0 {
        let kept = InFlightPayloads::<()>::retained_max(ring.slots as usize) as u64;
        let datagrams = human(member_bytes);
        needs.push(Need {
            name: "multicast",
            sum: format!(
                "{datagrams} of datagrams + {broadcasts} x {kept} payloads of {} x {} nodes, where \
                 the network has it",
                human(frame),
                workers.nodes
            ),
            bytes: member_bytes + broadcasts as u64 * kept * frame * u64::from(workers.nodes),
            once: false,
            asks: false,
        });
    }
    needs
}

/// The memory of rows that other workers have sent and that are not processed yet, by the number
/// of receive windows.
pub(crate) fn receive_needs(settings: &InForce, windows: u64) -> Option<Need> {
    let window = settings.job.receive_bytes;
    (windows > 0).then(|| Need {
        name: "received",
        sum: format!("{windows} receive windows x {}, a limit", human(window)),
        bytes: windows.saturating_mul(window),
        once: false,
        asks: false,
    })
}

#[cfg(test)]
mod tests {
    use dataflow::wires::RingPages;

    use super::*;
    use crate::explain::{RecoveryAsked, RingMode};

    #[test]
    fn memory_is_a_sum_of_named_needs() {
        let workers = Workers { nodes: 2, per_node: 2 };
        let ends = [EndNeed { name: "inboxes", what: "for notices", bytes: 1 << 20 }];
        let needs = needs(&InForce::default(), workers, &ends, 1, true);
        assert_eq!(
            needs.iter().map(|n| n.name).collect::<Vec<_>>(),
            ["rings", "inboxes", "queues", "state", "batch stage"]
        );
        assert_eq!((needs[0].bytes, needs[1].bytes, needs[2].bytes), (2 << 20, 2 << 20, 1 << 19));
        let rings = |pages, nodes, per_node| {
            let mut settings = InForce::default();
            settings.job.wires.ring_pages = pages;
            super::needs(&settings, Workers { nodes, per_node }, &[], 0, false).swap_remove(0).bytes
        };
        let all = |pages| [rings(pages, 1, 4), rings(pages, 2, 1), rings(pages, 2, 2)];
        assert_eq!(all(RingPages::Huge), [0, 4 << 20, 2 << 20]);
        assert_eq!(all(RingPages::Auto), [0, 1 << 20, 2 << 20], "one ring fills no page");
        assert_eq!(all(RingPages::Small), [0, 1 << 20, 2 << 20]);
        assert_eq!(rings(RingPages::Auto, 3, 3), 8 << 20, "9 rings of 512 KiB in 3 pages");
        assert_eq!(rings(RingPages::Small, 3, 3), 6 << 20);
        assert_eq!(broadcast_needs(&InForce::default(), workers, 0, 9), []);
        assert_eq!(receive_needs(&InForce::default(), 0), None);
        let received = receive_needs(&InForce::default(), 6).map(|need| need.bytes);
        assert_eq!(received, Some(6 * (256 << 10)));
        let names = |nodes, member_bytes| -> Vec<_> {
            let workers = Workers { nodes, ..workers };
            let needs = broadcast_needs(&InForce::default(), workers, 1, member_bytes);
            needs.iter().map(|need| (need.name, need.bytes)).collect()
        };
        let frame = 1 << 16;
        assert_eq!(names(2, 9), [("broadcast", (64 + 8) * frame)], "too few for the network");
        assert_eq!(names(4, 0), [("broadcast", (64 + 24) * frame)], "there are no groups");
        assert_eq!(names(4, 9)[1], ("multicast", 9 + 4 * 16 * frame));
        let (statements, operators) = (vec![], vec![]);
        let epoch = InForce::default().job.epoch;
        let recovery = RecoveryAsked::default();
        let functions = vec![];
        let only_readers = 0;
        let ring_mode = RingMode::of(&InForce::default(), 2, false);
        let explain = Explain {
            statements,
            operators,
            needs,
            workers,
            only_readers,
            ring_mode,
            epoch,
            recovery,
            functions,
        };
        assert!(explain.text().contains("node 0       8.0 GiB + 2.0 GiB"), "{}", explain.text());
    }
}
