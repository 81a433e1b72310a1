//! How many children a source can afford (W6).
//!
//! Frames arrive at a source at rate λ and wait in a queue; sending one takes `t_s` for encoding,
//! once, and `t_d` for each child. As an M/D/1 queue its mean length is, with ρ = λ·(d·t_d + t_s),
//!
//! ```text
//!   E(L) = ρ² / (2·(1 − ρ)) + ρ            E(L) ≤ Q  ⇔  ρ ≤ Q + 1 − √(Q² + 1)
//! ```
//!
//! so the largest degree is `((Q + 1 − √(Q² + 1)) / λ − t_s) / t_d`. The paper's equation 3 has
//! the bound in the denominator; its equation 4 agrees with this one.
//!
//! A tree saves the source's time and costs hops: a binomial tree over `n` members takes
//! r = ⌈log₂(n + 1)⌉ rounds of a send and a hop, while the last of `n` sends of the source itself
//! is one hop from its member. Where sends are cheap against hops, by measurement, and the queue
//! fits with `n` children, the source sends to everybody itself:
//!
//! ```text
//!   n·t_d + h ≤ r·(t_d + h)
//! ```

/// The load of a source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceLoad {
    /// λ: frames that arrive in a second.
    pub per_second: f64,
    /// `t_s`: nanoseconds to encode a frame.
    pub encode_ns: f64,
    /// `t_d`: nanoseconds to send a frame to one child.
    pub send_ns: f64,
    /// h: nanoseconds from when a frame was sent to a child until the child has sent it on; 0 if
    /// nobody has measured it.
    pub hop_ns: f64,
}

/// The most children that are of use in a tree over `n` members: ⌈log₂(n + 1)⌉, those of the source
/// of a binomial tree; at least one.
pub fn degree_max(n: u32) -> u32 {
    (u64::from(n) + 1).next_power_of_two().trailing_zeros().max(1)
}

/// d*: the most children with which the mean queue stays within `queue` frames, from 1 to
/// [`degree_max`]; or `n` if it stays within with all of them, and they have a frame sooner from
/// the source itself ([`is_direct_sooner`]).
pub fn degree(queue: u32, load: SourceLoad, n: u32) -> u32 {
    let children = affordable(queue, load);
    if children >= f64::from(n) && is_direct_sooner(load, n) {
        return n.max(1);
    }
    // What is exactly affordable must not be lost to rounding.
    children.floor().clamp(1.0, f64::from(degree_max(n))) as u32
}

/// Children with which the mean queue stays within `queue` frames; infinitely many if nothing is
/// known that they would cost.
fn affordable(queue: u32, load: SourceLoad) -> f64 {
    let per_ns = load.per_second / 1e9;
    if per_ns <= 0.0 || load.send_ns <= 0.0 {
        return f64::INFINITY;
    }
    let q = f64::from(queue);
    // The same as Q + 1 − √(Q² + 1), which loses its digits where Q is large.
    let bound = 2.0 * q / (q + 1.0 + (q * q + 1.0).sqrt());
    (bound / per_ns - load.encode_ns) / load.send_ns + 1e-9
}

/// Whether the last of `n` members has a frame sooner if the source sends it to each of them than
/// by a binomial tree. False while hops are not measured.
pub fn is_direct_sooner(load: SourceLoad, n: u32) -> bool {
    let SourceLoad { send_ns, hop_ns, .. } = load;
    let rounds = f64::from(degree_max(n));
    hop_ns > 0.0 && f64::from(n) * send_ns + hop_ns <= rounds * (send_ns + hop_ns)
}

/// E(L): frames that wait, on average, with this many children; infinite where more arrive than can
/// be sent.
pub fn expected_queue(load: SourceLoad, children: u32) -> f64 {
    let busy = load.per_second / 1e9 * (load.encode_ns + f64::from(children) * load.send_ns);
    if busy < 1.0 { busy * busy / (2.0 * (1.0 - busy)) + busy } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_degree_is_the_largest_whose_queue_fits() {
        for queue in [1, 2, 8, 64, 1024] {
            for per_second in [10.0, 1e3, 1e4, 5e4, 1e5, 1e6] {
                for (encode_ns, send_ns) in [(0.0, 1_000.0), (4_000.0, 900.0), (100.0, 30_000.0)] {
                    let load = SourceLoad { per_second, encode_ns, send_ns, hop_ns: 0.0 };
                    let n = 479;
                    let fits = |d: u32| expected_queue(load, d) <= f64::from(queue) * (1.0 + 1e-6);
                    let largest = (1..=degree_max(n)).rev().find(|&d| fits(d)).unwrap_or(1);
                    assert_eq!(degree(queue, load, n), largest, "queue {queue}, {load:?}");
                }
            }
        }
    }

    #[test]
    fn the_bound_of_the_paper_s_equation_4() {
        // λ ≤ (Q + 1 − √(Q² + 1)) / (d₀·tₑ), at the rate at which three children just fit.
        let (queue, send_ns) = (10_u32, 2_000.0);
        let q = f64::from(queue);
        let per_second = (q + 1.0 - (q * q + 1.0).sqrt()) / (3.0 * send_ns) * 1e9;
        let load = |per_second| SourceLoad { per_second, encode_ns: 0.0, send_ns, hop_ns: 0.0 };
        assert_eq!(degree(queue, load(per_second), 100), 3);
        assert_eq!(degree(queue, load(per_second * 1.001), 100), 2);
    }

    #[test]
    fn bounds() {
        let idle = SourceLoad { per_second: 0.0, encode_ns: 0.0, send_ns: 0.0, hop_ns: 0.0 };
        let flood = SourceLoad { per_second: 1e12, encode_ns: 1e6, send_ns: 1e6, hop_ns: 1e9 };
        for (n, most) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (480, 9)] {
            assert_eq!(degree_max(n), most, "{n}");
            assert_eq!(degree(64, idle, n), most);
            assert_eq!(degree(64, flood, n), 1);
        }
    }

    #[test]
    fn the_source_sends_to_all_where_sends_are_cheap_and_it_can_afford_them() {
        let load = |per_second, send_ns, hop_ns| SourceLoad {
            per_second,
            encode_ns: 1_000.0,
            send_ns,
            hop_ns,
        };
        // 29 members and 5 rounds: 24 sends are to take no longer than 4 hops.
        assert_eq!(degree(64, load(1e3, 1_000.0, 6_000.0), 29), 29);
        assert_eq!(degree(64, load(1e3, 1_000.0, 5_999.0), 29), 5);
        assert_eq!(degree(64, load(1e3, 1_000.0, 0.0), 29), 5, "hops are not measured");
        // 30 µs for each frame: more than 33,000 in a second are too many.
        assert_eq!(degree(64, load(32e3, 1_000.0, 6_000.0), 29), 29);
        assert_eq!(degree(64, load(34e3, 1_000.0, 6_000.0), 29), 5);
        assert_eq!(degree(64, load(900e3, 1_000.0, 6_000.0), 29), 1);
        // Where a tree has as many children, it is the same.
        for n in 0..3 {
            assert_eq!(degree(64, load(1e3, 1.0, 1e6), n), n.max(1), "{n}");
        }
    }

    #[test]
    fn a_send_to_all_is_sooner_as_the_rounds_of_a_tree_say() {
        use crate::broadcast::{BroadcastTree, Shape};
        for n in 1..200 {
            let rounds = f64::from(BroadcastTree::new(Shape::Binomial, n).depth());
            for (send_ns, hop_ns) in [(1.0, 0.5), (1.0, 4.0), (1.0, 40.0), (10.0, 40.0)] {
                let load = SourceLoad { per_second: 1.0, encode_ns: 0.0, send_ns, hop_ns };
                let (direct, tree) = (f64::from(n) * send_ns + hop_ns, rounds * (send_ns + hop_ns));
                assert_eq!(is_direct_sooner(load, n), direct <= tree, "{n} members, {load:?}");
            }
        }
    }
}
