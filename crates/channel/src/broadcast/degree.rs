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

/// The load of a source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourceLoad {
    /// λ: frames that arrive in a second.
    pub per_second: f64,
    /// `t_s`: nanoseconds to encode a frame.
    pub encode_ns: f64,
    /// `t_d`: nanoseconds to send a frame to one child.
    pub send_ns: f64,
}

/// The most children that are of use for `n` members: ⌈log₂(n + 1)⌉, those of the source of a
/// binomial tree; at least one.
pub fn degree_max(n: u32) -> u32 {
    (u64::from(n) + 1).next_power_of_two().trailing_zeros().max(1)
}

/// d*: the most children with which the mean queue stays within `queue` frames, from 1 to
/// [`degree_max`].
pub fn degree(queue: u32, load: SourceLoad, n: u32) -> u32 {
    let most = degree_max(n);
    let per_ns = load.per_second / 1e9;
    if per_ns <= 0.0 || load.send_ns <= 0.0 {
        return most;
    }
    let q = f64::from(queue);
    // The same as Q + 1 − √(Q² + 1), which loses its digits where Q is large.
    let bound = 2.0 * q / (q + 1.0 + (q * q + 1.0).sqrt());
    let children = (bound / per_ns - load.encode_ns) / load.send_ns;
    // What is exactly affordable must not be lost to rounding.
    (children + 1e-9).floor().clamp(1.0, f64::from(most)) as u32
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
                    let load = SourceLoad { per_second, encode_ns, send_ns };
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
        let load = |per_second| SourceLoad { per_second, encode_ns: 0.0, send_ns };
        assert_eq!(degree(queue, load(per_second), 100), 3);
        assert_eq!(degree(queue, load(per_second * 1.001), 100), 2);
    }

    #[test]
    fn bounds() {
        let idle = SourceLoad { per_second: 0.0, encode_ns: 0.0, send_ns: 0.0 };
        let flood = SourceLoad { per_second: 1e12, encode_ns: 1e6, send_ns: 1e6 };
        for (n, most) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (480, 9)] {
            assert_eq!(degree_max(n), most, "{n}");
            assert_eq!(degree(64, idle, n), most);
            assert_eq!(degree(64, flood, n), 1);
        }
    }
}
