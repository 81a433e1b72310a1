//! Records as most are: of as many fields as there must be, whose quotes are around whole fields,
//! on one line. They are found in one pass, without the states of the library.

use std::ops::Range;

use super::Dialect;
use crate::format::quick::{find2, find3};

/// The mark of a field whose text is not as it stands in the batch's bytes.
const UNQUOTED: u32 = 1 << 31;

/// Where the text of a field stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldAt {
    from: u32,
    to: u32,
}

impl FieldAt {
    /// In the unquoted text.
    pub(super) fn unquoted(from: usize, to: usize) -> Self {
        Self { from: from as u32 | UNQUOTED, to: to as u32 }
    }

    /// Where it stands in the unquoted text, or else in the batch's bytes.
    #[inline(always)]
    pub(super) fn place(self) -> (bool, Range<usize>) {
        let from = self.from & !UNQUOTED;
        (self.from != from, from as usize..self.to as usize)
    }
}

/// Finds the fields of a plain record of so many fields that begins at `from`; gives where it ends,
/// and how many line ends come before that. What the library would read is the same. `None`: it is
/// none, or has not come as a whole. Some `fields` may have been added then.
#[inline(always)]
pub(super) fn plain_fields(
    come: &[u8],
    from: usize,
    (dialect, width): (&Dialect, usize),
    fields: &mut Vec<FieldAt>,
) -> Option<(usize, u64)> {
    let Dialect { delimiter, quote, comment, .. } = *dialect;
    if delimiter == quote {
        return None;
    }
    let (mut at, mut lines) = (from, 0);
    while let Some(blank @ (b'\n' | b'\r')) = come.get(at) {
        lines += u64::from(*blank == b'\n');
        at += 1;
    }
    if comment.is_some() && come.get(at).copied() == comment {
        return None;
    }
    let mut left = width;
    while left > 0 {
        let is_quoted = *come.get(at)? == quote;
        let begin = at + usize::from(is_quoted);
        let end = if is_quoted {
            let end = find2(quote, b'\n', come, begin);
            if come.get(end) != Some(&quote) {
                return None;
            }
            end
        } else {
            find3([delimiter, b'\n', b'\r'], come, begin)
        };
        fields.push(FieldAt { from: begin as u32, to: end as u32 });
        at = end + usize::from(is_quoted);
        left -= 1;
        match *come.get(at)? {
            byte if byte == delimiter && left > 0 => {}
            b'\n' if left == 0 => lines += 1,
            b'\r' if left == 0 => {}
            _ => return None,
        }
        at += 1;
    }
    (width > 0).then_some((at, lines))
}
