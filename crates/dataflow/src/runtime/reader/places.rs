//! Where the splits of a table stood when a round was saved.

use std::collections::BTreeMap;

use crate::checkpoint::SplitSnapshot;
use crate::connector::position::refused;
use crate::connector::source::Split;
use crate::error::{ConnectorError, DataflowError};

/// By split where those are to be read on, and those that were read to their end.
pub(super) type Places = (BTreeMap<usize, SplitSnapshot>, BTreeMap<usize, SplitSnapshot>);

/// Finds saved splits among those of a table, and takes those of a reader. One that is not listed
/// `is_elsewhere` if another reader alone has to know it.
pub(super) fn places(
    splits: &[Split],
    saved: &[SplitSnapshot],
    is_own: impl Fn(usize) -> bool,
    is_elsewhere: impl Fn(&str) -> bool,
) -> Result<Places, DataflowError> {
    let place = |saved: &SplitSnapshot| {
        let found = splits.iter().position(|split| split.name == saved.position.split());
        match found {
            Some(number) => Some(Ok((number, saved.clone()))),
            // It was read: whoever took it away need not keep it.
            None if saved.ended => None,
            // This process has not heard of it yet.
            None if is_elsewhere(saved.position.split()) => None,
            None => Some(Err(refused(saved.position.split(), "it is not there any more".into()))),
        }
    };
    let placed = saved.iter().filter_map(place).collect::<Result<Vec<_>, ConnectorError>>()?;
    let own = placed.into_iter().filter(|(number, _)| is_own(*number));
    let (ended, open) = own.partition(|(_, saved)| saved.ended);
    Ok((open, ended))
}

/// Marks the splits of an unbounded table that were not there when the round was saved: a job opens
/// all that are there.
pub(super) fn mark_new(splits: &mut [Split], saved: &[SplitSnapshot]) {
    if saved.is_empty() {
        return;
    }
    let is_saved = |split: &Split| saved.iter().any(|of| of.position.split() == split.name);
    splits.iter_mut().for_each(|split| split.is_new = !is_saved(split));
}
