//! A list of workers as a peer may send it.

use dataflow::worker_set::WorkerSet;

/// Reads a list of some of so many workers as the first two bytes say, and writes it again; gives
/// how many workers are in it, or nothing if it was refused.
///
/// # Panics
/// When it names workers that there are not, or is another one behind that.
pub fn read(bytes: &[u8]) -> Option<usize> {
    let (of, bytes) = bytes.split_first_chunk::<2>()?;
    let of = u32::from(u16::from_le_bytes(*of));
    let (set, used) = WorkerSet::decode(of, bytes).ok()?;
    assert!(used <= bytes.len() && !set.is_empty() && set.iter().all(|worker| worker < of));
    let mut again = vec![0; WorkerSet::bytes_max(of)];
    let length = set.encode(of, &mut again);
    assert_eq!(WorkerSet::decode(of, &again[..length]), Ok((set.clone(), length)));
    Some(set.iter().count())
}
