//! How far each helper's event time has come.

/// The watermark of a helper whose input has ended.
pub const END_OF_STREAM: i64 = i64::MAX;

/// The low watermark of each helper, in ticks of event time (S11).
///
/// A helper that has said nothing is at the beginning of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VectorClock {
    watermarks: Vec<i64>,
}

impl VectorClock {
    /// A clock of so many helpers.
    pub fn new(helpers: u32) -> Self {
        Self { watermarks: vec![i64::MIN; helpers as usize] }
    }

    /// Moves a helper forward; a watermark behind the one it has is ignored, and so is a helper
    /// that is not there.
    pub fn advance(&mut self, helper: u32, watermark: i64) {
        if let Some(own) = self.watermarks.get_mut(helper as usize) {
            *own = (*own).max(watermark);
        }
    }

    /// The watermark that every helper has reached: no row before it will come. [`END_OF_STREAM`]
    /// if there are none.
    pub fn min(&self) -> i64 {
        self.watermarks.iter().copied().min().unwrap_or(END_OF_STREAM)
    }

    /// The watermark of a helper.
    pub fn of(&self, helper: u32) -> Option<i64> {
        self.watermarks.get(helper as usize).copied()
    }
}
