//! Whether transports keep up with the limits of the machine.

use crate::report::Bar;

/// A stream over shared memory against a bare ring.
pub(super) fn share_of_a_ring(share: f64) -> Bar {
    Bar {
        what: "shm, share of a bare ring of 64 KiB slots".into(),
        needed: "≥ 80 %".into(),
        got: format!("{:.0} %", 100.0 * share),
        met: Some(share >= 0.8),
    }
}

/// Nanoseconds of one way over shared memory, and of a cache line.
pub(super) fn one_way(way: f64, line: f64) -> Bar {
    Bar {
        what: "shm, one way of 64 bytes, median".into(),
        needed: "≤ 300 ns, or 2.2 times a cache line that takes longer than 137 ns".into(),
        got: format!("{way:.0} ns, and a cache line takes {line:.0} ns"),
        met: Some(way <= (line * 300.0 / 137.0).max(300.0)),
    }
}

/// A stream over TCP against `iperf3`, if that is installed.
pub(super) fn share_of_iperf3(share: Option<f64>) -> Bar {
    Bar {
        what: "tcp, share of iperf3 on loopback".into(),
        needed: "≥ 90 %".into(),
        got: share.map_or("iperf3 is not installed".into(), |s| format!("{:.0} %", 100.0 * s)),
        met: share.map(|share| share >= 0.9),
    }
}

/// One way over TCP, in those of a bare socket.
pub(super) fn against_a_socket(slower: f64) -> Bar {
    Bar {
        what: "tcp, one way of 64 bytes against a bare spinning socket".into(),
        needed: "≤ 2 times".into(),
        got: format!("{slower:.2} times"),
        met: Some(slower <= 2.0),
    }
}

/// Rows scattered to eight peers, as a share of `memcpy` of the same bytes.
pub(super) fn scattered(share: Option<f64>) -> Bar {
    let percent = share.map(|share| format!("{:.0} %", 100.0 * share));
    Bar {
        what: "rows of 64 bytes scattered to 8 peers, share of memcpy of the same bytes".into(),
        needed: "≥ 50 %".into(),
        got: percent.unwrap_or_else(|| "not measured".into()),
        met: share.map(|share| share >= 0.5),
    }
}

/// A transport that failed beside the limits: nothing is known.
pub(super) fn unmeasured(transport: &str) -> Bar {
    Bar {
        what: format!("{transport}, against the limits of the machine"),
        needed: "measured".into(),
        got: "nothing".into(),
        met: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_met_and_missed() {
        let ring = [0.8, 0.79].map(|share| share_of_a_ring(share).met);
        let way = [(300.0, 1.0), (301.0, 137.0), (430.0, 200.0), (440.0, 200.0)];
        let way = way.map(|(way, line)| one_way(way, line).met);
        let iperf3 = [Some(0.9), Some(0.89), None].map(|share| share_of_iperf3(share).met);
        let socket = [2.0, 2.1].map(|slower| against_a_socket(slower).met);
        assert_eq!(ring, [Some(true), Some(false)]);
        assert_eq!(way, [Some(true), Some(false), Some(true), Some(false)]);
        assert_eq!(iperf3, [Some(true), Some(false), None]);
        assert_eq!(socket, [Some(true), Some(false)]);
        assert_eq!(unmeasured("shm").met, None);
        let scattered = [Some(0.5), Some(0.49), None].map(|share| scattered(share).met);
        assert_eq!(scattered, [Some(true), Some(false), None]);
        // Nothing measured is not a number, and not met.
        assert_eq!(share_of_a_ring(f64::NAN).met, Some(false));
        assert_eq!(against_a_socket(f64::NAN).met, Some(false));
    }
}
