//! How far a flow of a watched directory has come, as a position.
//!
//! ```text
//! numbers   files that were read, 1 if one is being read
//! note      number of each file | number, split u64 | path, position: length u32, bytes
//! ```

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::Position;

const FORMAT: &str = "watch";
const VERSION: u32 = 1;

/// The files that a flow has read and that are still there, and the one that it reads.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WatchProgress {
    /// By number.
    pub(super) done: HashSet<u64>,
    pub(super) begun: Option<Begun>,
}

/// A file that was read in part.
#[derive(Debug, PartialEq)]
pub(super) struct Begun {
    pub(super) path: PathBuf,
    /// The number of its version.
    pub(super) number: u64,
    /// Its split, by its number.
    pub(super) split: usize,
    /// The place in that; `None` at its beginning.
    pub(super) position: Option<Position>,
}

impl WatchProgress {
    /// As the position of a split.
    pub(super) fn position(&self, split: &str) -> Position {
        let mut done: Vec<u64> = self.done.iter().copied().collect();
        done.sort_unstable();
        let mut note: Vec<u8> = done.iter().flat_map(|number| number.to_le_bytes()).collect();
        if let Some(Begun { path, number, split, position }) = &self.begun {
            note.extend([*number, *split as u64].map(u64::to_le_bytes).as_flattened());
            let position = position.as_ref().map(Position::to_bytes).unwrap_or_default();
            for bytes in [path.as_os_str().as_bytes(), &position] {
                note.extend((bytes.len() as u32).to_le_bytes());
                note.extend(bytes);
            }
        }
        let numbers = [done.len() as u64, u64::from(self.begun.is_some())];
        Position::new(FORMAT, VERSION, split, &numbers).with_note(note)
    }

    /// The progress that became this position.
    ///
    /// # Errors
    /// When the position is none of a watched directory, or is of another split.
    pub(super) fn of(position: &Position, split: &str) -> Result<Self, ConnectorError> {
        let [count, begun] = position.numbers(FORMAT, VERSION, split)?;
        let progress = decoded(position.note(), count, begun == 1);
        progress.ok_or_else(|| refused(split, "the list of its files is damaged".into()))
    }
}

/// Reads the list of files of a position, if it is one of a watched directory; gives whether it is.
///
/// # Errors
/// When the list is damaged.
///
/// # Panics
/// When it is written otherwise than it was read.
pub(crate) fn watched(position: &Position) -> Result<bool, ConnectorError> {
    let split = position.split();
    if position.numbers::<2>(FORMAT, VERSION, split).is_err() {
        return Ok(false);
    }
    let progress = WatchProgress::of(position, split)?;
    let again = WatchProgress::of(&progress.position(split), split)?;
    assert_eq!(again.done, progress.done, "the same files were read");
    assert_eq!(again.begun.is_some(), progress.begun.is_some(), "the same file is read");
    Ok(true)
}

fn decoded(note: &[u8], count: u64, has_begun: bool) -> Option<WatchProgress> {
    let bytes = usize::try_from(count).ok()?.checked_mul(8)?;
    let (done, mut rest) = note.split_at_checked(bytes)?;
    let done = done.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    if !has_begun {
        return rest.is_empty().then_some(WatchProgress { done, begun: None });
    }
    let mut number = || {
        let (number, behind) = rest.split_first_chunk::<8>()?;
        rest = behind;
        Some(u64::from_le_bytes(*number))
    };
    let (number, split) = (number()?, usize::try_from(number()?).ok()?);
    let mut bytes = || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (bytes, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        Some(bytes)
    };
    let (path, position) = (bytes()?, bytes()?);
    let position =
        if position.is_empty() { None } else { Some(Position::from_bytes(position).ok()?) };
    let path = PathBuf::from(OsStr::from_bytes(path));
    let begun = Some(Begun { path, number, split, position });
    rest.is_empty().then_some(WatchProgress { done, begun })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_as_it_was_written_and_damage_is_refused() {
        let done: HashSet<u64> = [7, u64::MAX, 9].into();
        let inner = Position::new("csv", 2, "in/a.csv", &[9, 8, 7]);
        let begun = |position| Begun { path: "in/a.csv".into(), number: 5, split: 3, position };
        for begun in [None, Some(begun(None)), Some(begun(Some(inner)))] {
            let progress = WatchProgress { done: done.clone(), begun };
            let position = progress.position("in/ part 0 of 2");
            let position = Position::from_bytes(&position.to_bytes()).unwrap();
            assert_eq!(WatchProgress::of(&position, "in/ part 0 of 2").unwrap(), progress);
            assert!(WatchProgress::of(&position, "in/ part 1 of 2").is_err());
            for end in 0..position.note().len() {
                let cut = position.clone().with_note(position.note()[..end].to_vec());
                assert!(WatchProgress::of(&cut, "in/ part 0 of 2").is_err(), "{end} bytes");
            }
        }
        let none = WatchProgress::default().position("s");
        assert_eq!(WatchProgress::of(&none, "s").unwrap(), WatchProgress::default());
        let many = Position::new(FORMAT, VERSION, "s", &[u64::MAX, 0]);
        assert!(WatchProgress::of(&many, "s").is_err());
    }
}
