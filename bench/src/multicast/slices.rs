//! When a buffer of rows leaves (W4, W14): sweeps of its size (MMS) and of how long its first row
//! waits (WTL), and of who moves it.

use millstream::cluster::Control;

use super::real::{MulticastPlan, Point, Time, Way, point};
use crate::BenchError;

/// Bytes of rows that are collected, at the usual wait.
const MMS_BYTES: [u64; 6] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Milliseconds for which rows wait, with the most bytes: what leaves then is what has waited.
const WTL_MS: [u64; 5] = [1, 3, 5, 10, 30];

/// The paper's: what is not swept.
const MMS_USUAL: u64 = 256 << 10;
const WTL_USUAL: u64 = 1;

/// The end that moves a frame: the sender writes it, or the receiver reads it, from a ring of its
/// own or from one region of the sender for all (W3). Rows are not sent two-sided: `bench wire` has
/// messages that are.
const MODES: [&str; 3] = ["write", "read", "region"];

/// One value of one sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SlicePoint {
    /// Bytes of rows that are collected.
    pub mms_bytes: u64,
    /// Milliseconds for which the first of them waits.
    pub wtl_ms: u64,
    /// Who moves them.
    pub mode: &'static str,
    /// The figures.
    pub point: Point,
}

/// The values of all sweeps, each once.
fn values() -> Vec<(u64, u64, &'static str)> {
    let [write, ..] = MODES;
    let by_bytes = MMS_BYTES.into_iter().map(|bytes| (bytes, WTL_USUAL, write));
    let by_wait = WTL_MS.into_iter().map(|ms| (*MMS_BYTES.last().unwrap_or(&MMS_USUAL), ms, write));
    let by_mode = MODES.into_iter().map(|mode| (MMS_USUAL, WTL_USUAL, mode));
    let mut values = vec![];
    for value in by_bytes.chain(by_wait).chain(by_mode) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Runs the sweeps with this many instances of each worker. Node 0 gets figures, the others none.
///
/// # Errors
/// The first failure; an instance that missed a request.
pub(super) fn run(
    plan: &MulticastPlan,
    instances: u32,
    control: &Control,
) -> Result<Vec<SlicePoint>, BenchError> {
    let mut points = vec![];
    for (mms_bytes, wtl_ms, mode) in values() {
        let settings = [
            ("millstream.shuffle_bytes", format!("{mms_bytes} B")),
            ("millstream.shuffle_wait", format!("{wtl_ms} ms")),
            ("millstream.ring_mode", mode.to_owned()),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let plan = MulticastPlan { settings, ..plan.clone() };
        // Without event time: a watermark would send what waits.
        let found = point(&plan, Way::Adaptive, instances, Time::Untold, control)?;
        points.extend(found.map(|point| SlicePoint { mms_bytes, wtl_ms, mode, point }));
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sweep_is_whole_and_no_value_comes_twice() {
        let values = values();
        let of =
            |wanted: fn(&(u64, u64, &str)) -> bool| values.iter().filter(|v| wanted(v)).count();
        assert_eq!(of(|v| v.1 == 1 && v.2 == "write"), MMS_BYTES.len());
        assert_eq!(of(|v| v.0 == 1 << 20 && v.2 == "write"), WTL_MS.len());
        assert_eq!([of(|v| v.2 == "read"), of(|v| v.2 == "region")], [1, 1]);
        assert_eq!(values.len(), MMS_BYTES.len() + WTL_MS.len() + 1);
    }
}
