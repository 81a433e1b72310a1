//! The values of settings, read from text.

use std::num::NonZeroU64;

use channel::Transfer;
use channel::broadcast::Shape;
use dataflow::job::{
    Casting, CheckpointInterval, Exchange, FrequentKeys, Guarantee, Idle, MulticastChoice,
    ShuffleSettings, TreeChoice,
};
use dataflow::wires::{Checksum, Connection, ProgressMode, RingPages, Wires};
use state::KeyMode;

use super::ExchangeChoice;

/// Puts a value of how rows are shuffled in force. Lower case.
pub(super) fn set_shuffle(shuffle: &mut ShuffleSettings, name: &str, value: &str) -> Option<()> {
    match name {
        "millstream.frequent_keys" => shuffle.frequent_keys = frequent_keys(value)?,
        "millstream.shuffle_wait" => shuffle.wait_ns = nanos(value)?,
        _ => shuffle.bytes = bytes(value).filter(|n| (1..=16 << 20).contains(n))? as usize,
    }
    Some(())
}

/// Puts a value of how rows reach every worker in force. Lower case.
pub(super) fn set_casting(casting: &mut Casting, name: &str, value: &str) -> Option<()> {
    match name {
        "millstream.multicast" => casting.multicast = multicast(value)?,
        "millstream.multicast_tree" => casting.tree = tree(value)?,
        _ => {
            let frames = bytes(value).filter(|frames| (1..=1 << 16).contains(frames))?;
            casting.queue_frames = frames as u32;
        }
    }
    Some(())
}

/// Puts a value of how nodes are connected in force. Lower case.
pub(super) fn set_wires(wires: &mut Wires, name: &str, value: &str) -> Option<()> {
    match name {
        "millstream.checksum" => wires.checksum = checksum(value)?,
        "millstream.connection" => wires.connection = connection(value)?,
        "millstream.progress" => wires.progress = progress(value)?,
        "millstream.ring_pages" => wires.ring_pages = ring_pages(value)?,
        _ if value == "auto" => wires.credit_slots = 0,
        _ => wires.credit_slots = bytes(value).filter(|slots| (1..=64).contains(slots))? as u32,
    }
    Some(())
}

/// Which rows carry checksums. Lower case.
pub(super) fn checksum(text: &str) -> Option<Checksum> {
    Some(match text {
        "auto" => Checksum::Auto,
        "on" => Checksum::On,
        "off" => Checksum::Off,
        _ => return None,
    })
}

/// How rows of different workers meet. Lower case.
pub(super) fn exchange(text: &str) -> Option<ExchangeChoice> {
    Some(match text {
        "auto" => ExchangeChoice::Auto,
        "merge" => ExchangeChoice::Fixed(Exchange::Merge),
        "shuffle" => ExchangeChoice::Fixed(Exchange::Shuffle),
        "uppar" => ExchangeChoice::Fixed(Exchange::UpPar),
        "forward" => ExchangeChoice::Fixed(Exchange::Forward),
        _ => return None,
    })
}

/// How groups are found, where that is not left open. Lower case.
pub(super) fn key_mode(text: &str) -> Option<Option<KeyMode>> {
    let mut modes = KeyMode::ALL.into_iter().filter(|&mode| mode != KeyMode::One);
    if text == "auto" { Some(None) } else { modes.find(|mode| mode.name() == text).map(Some) }
}

/// The treatment of rows with frequent keys. Lower case.
pub(super) fn frequent_keys(text: &str) -> Option<FrequentKeys> {
    Some(match text {
        "auto" => FrequentKeys::Auto,
        "on" => FrequentKeys::On,
        "off" => FrequentKeys::Off,
        _ => return None,
    })
}

/// Whether something is done. Lower case.
pub(super) fn on(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Pieces of input that are asked for ahead; no number where their bytes decide.
pub(super) fn prefetch(text: &str) -> Option<Option<usize>> {
    match text {
        "auto" => Some(None),
        number => number.parse().ok().filter(|pieces| (1..=64).contains(pieces)).map(Some),
    }
}

/// The behaviour of an idle worker. Lower case.
pub(super) fn idle(text: &str) -> Option<Idle> {
    Some(match text {
        "block" => Idle::Block,
        "spin" => Idle::Spin,
        _ => return None,
    })
}

/// The agent that moves rows between two nodes. Lower case.
pub(super) fn transfer(text: &str) -> Option<Transfer> {
    Some(match text {
        "write" => Transfer::Write,
        "read" => Transfer::Read,
        "region" => Transfer::Region,
        _ => return None,
    })
}

/// The pages of rings. Lower case.
fn ring_pages(text: &str) -> Option<RingPages> {
    match text {
        "auto" => Some(RingPages::Auto),
        "huge" => Some(RingPages::Huge),
        "small" => Some(RingPages::Small),
        _ => None,
    }
}

/// The owner of a connection with another node. Lower case.
pub(super) fn connection(text: &str) -> Option<Connection> {
    Some(match text {
        "auto" => Connection::Auto,
        "process" => Connection::Process,
        "worker" => Connection::Worker,
        _ => return None,
    })
}

/// The agent that serves shared connections. Lower case.
pub(super) fn progress(text: &str) -> Option<ProgressMode> {
    Some(match text {
        "spin" => ProgressMode::Spin,
        "thread" => ProgressMode::Thread,
        _ => return None,
    })
}

/// The agent that copies rows for every worker. Lower case.
pub(super) fn multicast(text: &str) -> Option<MulticastChoice> {
    Some(match text {
        "auto" => MulticastChoice::Auto,
        "tree" => MulticastChoice::Tree,
        "hardware" => MulticastChoice::Hardware,
        _ => return None,
    })
}

/// The tree of a broadcast. Lower case.
pub(super) fn tree(text: &str) -> Option<TreeChoice> {
    Some(match text {
        "auto" => TreeChoice::Adaptive,
        "sequential" => TreeChoice::Fixed(Shape::Sequential),
        "binomial" => TreeChoice::Fixed(Shape::Binomial),
        "copies" => TreeChoice::Copies,
        _ => {
            let children = text.parse().ok().filter(|children| (1..=64).contains(children))?;
            TreeChoice::Fixed(Shape::Capped(children))
        }
    })
}

/// A directory to spill to, or `Some(None)` for no directory.
pub(super) fn spill_dir(text: &str) -> Option<Option<String>> {
    if text.eq_ignore_ascii_case("none") {
        return Some(None);
    }
    text.contains('/').then(|| Some(text.to_owned()))
}

/// Racks by node: each label gets a number, in the order in which they come.
pub(super) fn racks(text: &str) -> Option<Vec<u32>> {
    let labels: Vec<&str> = text.split(',').map(str::trim).collect();
    let first = |label: &&str| labels.iter().position(|other| other == label).map(|at| at as u32);
    match labels.as_slice() {
        ["none"] => Some(vec![]),
        [_] => None,
        _ if labels.contains(&"") => None,
        _ => labels.iter().map(first).collect(),
    }
}

/// A number of bytes: digits, then `b`, `k…`, `m…` or `g…` for powers of 1024. Lower case.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    text[..end].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A time in nanoseconds: digits and a unit. Lower case.
pub(super) fn nanos(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let unit: u64 = match text[end..].trim() {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" | "sec" | "second" | "seconds" => 1_000_000_000,
        "m" | "min" | "minute" | "minutes" => 60_000_000_000,
        "h" | "hour" | "hours" => 3_600_000_000_000,
        _ => return None,
    };
    let ns = text[..end].parse::<u64>().ok()?.checked_mul(unit)?;
    (ns <= i64::MAX as u64).then_some(ns)
}

/// How often a job is saved; the inner `None` is for never.
pub(super) fn checkpoint(text: &str) -> Option<Option<CheckpointInterval>> {
    match text {
        "auto" => Some(Some(CheckpointInterval::Auto)),
        "off" => Some(None),
        _ => Some(Some(CheckpointInterval::Every(NonZeroU64::new(nanos(text)?)?))),
    }
}

/// The guarantee of a job that is saved; the inner `None` where each table is as exact as it can.
pub(super) fn guarantee(text: &str) -> Option<Option<Guarantee>> {
    let all = [Guarantee::ExactlyOnce, Guarantee::AtLeastOnce];
    match text {
        "auto" => Some(None),
        _ => all.into_iter().find(|guarantee| guarantee.name() == text).map(Some),
    }
}
