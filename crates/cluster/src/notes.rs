//! Notes from one node to another, beside the exchanges in which all take part: what two nodes have
//! to agree upon while the job runs, and nobody else.
//!
//! A note is about something, by a number that both know. What a node has been told about one thing
//! it reads in the order in which it was told; what is about different things does not wait for
//! each other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::control::{Control, Shared, wait};
use crate::error::ClusterError;
use crate::frame::Frame;

/// Bytes of a note at most.
pub const NOTE_BYTES_MAX: usize = 64 << 10;

/// Notes of one node that may wait to be read, and their bytes.
const UNREAD_MAX: usize = 1 << 16;
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// Notes that have come and were not read.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// By sender, and what they are about.
    unread: HashMap<(u32, u64), VecDeque<Vec<u8>>>,
    /// How many there are of each sender, and how many bytes.
    held: HashMap<u32, (usize, usize)>,
}

impl Notes {
    /// # Errors
    /// When more wait than anybody who is in his senses sends.
    pub(crate) fn add(&mut self, from: u32, about: u64, note: Vec<u8>) -> Result<(), &'static str> {
        let (count, bytes) = self.held.entry(from).or_default();
        let full = *count >= UNREAD_MAX || *bytes + note.len() > UNREAD_BYTES_MAX;
        if full || note.len() > NOTE_BYTES_MAX {
            return Err("its notes are too many or too long");
        }
        (*count, *bytes) = (*count + 1, *bytes + note.len());
        self.unread.entry((from, about)).or_default().push_back(note);
        Ok(())
    }

    fn take(&mut self, from: u32, about: u64) -> Option<Vec<u8>> {
        let waiting = self.unread.get_mut(&(from, about))?;
        let note = waiting.pop_front();
        if waiting.is_empty() {
            self.unread.remove(&(from, about));
        }
        if let (Some((count, bytes)), Some(note)) = (self.held.get_mut(&from), &note) {
            (*count, *bytes) = (*count - 1, *bytes - note.len());
        }
        note
    }
}

impl Control {
    /// Tells one other node something (at most [`NOTE_BYTES_MAX`] bytes), which it reads by
    /// [`read_note`](Self::read_note). A node that is gone is told nothing.
    ///
    /// # Errors
    /// When the note is too long.
    pub fn tell(&self, to: u32, about: u64, note: Vec<u8>) -> Result<(), ClusterError> {
        self.send_note(to, about, false, note)
    }

    /// As [`tell`](Self::tell), of a place: see [`all_gather_places`](Self::all_gather_places).
    ///
    /// # Errors
    /// When the note is too long.
    pub fn tell_place(&self, to: u32, about: u64, note: Vec<u8>) -> Result<(), ClusterError> {
        self.send_note(to, about, true, note)
    }

    fn send_note(
        &self,
        to: u32,
        about: u64,
        places: bool,
        note: Vec<u8>,
    ) -> Result<(), ClusterError> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(ClusterError::TooLarge { bytes: note.len() });
        }
        self.shared().lock().send(to, &Frame::Note { about, places, bytes: note });
        self.shared().wake();
        Ok(())
    }

    /// The next note of a node about this, waiting for one up to `limit`; `None` when there is
    /// none by then.
    ///
    /// # Errors
    /// When a node failed or the job has ended: no note comes any more.
    pub fn read_note(
        &self,
        from: u32,
        about: u64,
        limit: Duration,
    ) -> Result<Option<Vec<u8>>, ClusterError> {
        let deadline = Instant::now() + limit;
        let shared: &Shared = self.shared();
        let mut state = shared.lock();
        loop {
            if let Some(note) = state.notes.take(from, about) {
                return Ok(Some(note));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            if state.ended || state.closed[from as usize] || state.gone[from as usize] {
                return Err(ClusterError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = wait(shared.changed(), state, Some(left));
        }
    }

    /// Drops what was not read. Behind an exchange that is all that was told before it.
    pub fn forget_notes(&self) {
        self.shared().lock().notes = Notes::default();
    }

    /// What unread notes are about, and whose they are.
    pub fn unread_notes(&self) -> Vec<(u32, u64)> {
        self.shared().lock().notes.unread.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn notes_about_one_thing_are_read_in_order_and_others_do_not_wait() {
        let controls = crate::in_process(3).unwrap();
        std::thread::scope(|scope| {
            for control in &controls[1..] {
                scope.spawn(|| {
                    for n in 0..50u8 {
                        let about = u64::from(n % 2);
                        control.tell(0, about, vec![control.rank() as u8, n]).unwrap();
                    }
                });
            }
            for (from, about) in [(2, 1), (1, 0), (1, 1), (2, 0)] {
                for n in (0..50u8).filter(|n| u64::from(n % 2) == about) {
                    let note = controls[0].read_note(from, about, SOON).unwrap();
                    assert_eq!(note, Some(vec![from as u8, n]));
                }
            }
        });
        assert_eq!(controls[0].unread_notes(), []);
        assert!(controls[0].read_note(1, 7, Duration::from_millis(5)).unwrap().is_none());
        let long = vec![0; NOTE_BYTES_MAX + 1];
        let refused = controls[1].tell(0, 0, long);
        assert!(matches!(refused, Err(ClusterError::TooLarge { .. })), "{refused:?}");
        controls[1].tell(0, 9, vec![1]).unwrap();
        controls[2].tell(0, 8, vec![1]).unwrap();
        assert_eq!(controls[0].read_note(2, 8, SOON).unwrap(), Some(vec![1]));
        std::thread::scope(|scope| {
            for control in &controls {
                scope.spawn(|| control.all_gather("step", vec![]).unwrap());
            }
        });
        assert_eq!(controls[0].unread_notes(), [(1, 9)]);
        controls[0].forget_notes();
        assert_eq!(controls[0].unread_notes(), []);
    }

    #[test]
    fn who_waits_for_a_note_learns_of_a_failure() {
        let controls = crate::in_process(2).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| controls[1].fail("the disk is full"));
            let waited = controls[0].read_note(1, 0, SOON);
            let Err(ClusterError::Node(failure)) = waited else { panic!("{waited:?}") };
            assert_eq!(failure.cause, Cause::Reported("the disk is full".into()));
        });
    }

    #[test]
    fn notes_that_nobody_reads_have_a_bound() {
        let mut notes = Notes::default();
        for n in 0..UNREAD_MAX as u64 {
            notes.add(1, n % 3, vec![]).unwrap();
        }
        assert!(notes.add(1, 0, vec![]).is_err());
        notes.add(2, 0, vec![]).unwrap();
        assert!(notes.add(2, 0, vec![0; NOTE_BYTES_MAX + 1]).is_err());
        assert_eq!(notes.take(1, 2), Some(vec![]));
        notes.add(1, 0, vec![]).unwrap();
        assert_eq!(notes.take(1, 5), None);
        let long = || vec![0; NOTE_BYTES_MAX];
        for _ in 0..UNREAD_BYTES_MAX / NOTE_BYTES_MAX {
            notes.add(3, 0, long()).unwrap();
        }
        assert!(notes.add(3, 0, vec![0]).is_err());
        assert_eq!(notes.take(3, 0), Some(long()));
        notes.add(3, 0, long()).unwrap();
    }
}
