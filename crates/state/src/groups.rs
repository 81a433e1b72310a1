//! Which group each row of a batch belongs to.

use crate::vector;

/// The group of each row of a batch.
///
/// Keeps this invariant, on which [`crate::kernel`] relies: no id is greater than `reach`, which
/// was computed from the very slice that is borrowed here.
#[derive(Debug, Clone, Copy)]
pub struct Groups<'a> {
    ids: Ids<'a>,
    reach: u32,
}

/// The two shapes of [`Groups`].
#[derive(Debug, Clone, Copy)]
pub enum Ids<'a> {
    /// All rows are of one group.
    One {
        /// The group.
        id: u32,
        /// How many rows.
        rows: usize,
    },
    /// A group per row.
    Each(&'a [u32]),
}

impl<'a> Groups<'a> {
    /// `rows` rows of group `id`.
    pub fn one(id: u32, rows: usize) -> Self {
        Self { ids: Ids::One { id, rows }, reach: id }
    }

    /// Row `i` is of group `ids[i]`. Rows that all have the same group are recognised.
    pub fn each(ids: &'a [u32]) -> Self {
        let (any, all) = vector::any_all(ids);
        match ids.first() {
            Some(&id) if any == all => Self::one(id, ids.len()),
            _ => Self { ids: Ids::Each(ids), reach: any },
        }
    }

    /// The ids.
    pub fn ids(&self) -> Ids<'a> {
        self.ids
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        match self.ids {
            Ids::One { rows, .. } => rows,
            Ids::Each(ids) => ids.len(),
        }
    }

    /// The group of each row, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + 'a {
        let (one, rows, each) = match self.ids {
            Ids::One { id, rows } => (id, rows, &[][..]),
            Ids::Each(ids) => (0, 0, ids),
        };
        std::iter::repeat_n(one, rows).chain(each.iter().copied())
    }

    /// A bound that no id exceeds; less than twice the greatest id, or 1.
    pub fn reach(&self) -> usize {
        self.reach as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_group_are_recognised() {
        assert!(matches!(Groups::each(&[7, 7, 7]).ids(), Ids::One { id: 7, rows: 3 }));
        assert!(matches!(Groups::each(&[7, 6]).ids(), Ids::Each(_)));
        assert_eq!(Groups::each(&[]).rows(), 0);
        assert_eq!(Groups::each(&[5, 5]).iter().collect::<Vec<_>>(), [5, 5]);
        assert_eq!(Groups::each(&[5, 2]).iter().collect::<Vec<_>>(), [5, 2]);
    }

    #[test]
    fn no_id_is_beyond_reach() {
        for ids in [vec![0, 1, 2, 3], vec![1023, 4], vec![u32::MAX, 0], vec![0, 0]] {
            let reach = Groups::each(&ids).reach();
            assert!(ids.iter().all(|&id| id as usize <= reach));
        }
    }
}
