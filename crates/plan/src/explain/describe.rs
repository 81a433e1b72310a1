//! Windows and lengths of time as EXPLAIN writes them.

use arrow::datatypes::{DataType, TimeUnit};

use crate::logical::windows::{Lengths, WindowCall, WindowShape};
use crate::text::interval::tick_ns;
use crate::text::units::span_ns;

/// The windows of a call.
pub(crate) fn window_text(window: &WindowCall) -> String {
    let Lengths { size_ns, slide_ns, offset_ns } = window.lengths;
    let (size, slide) = (span_ns(size_ns), span_ns(slide_ns));
    let (name, lengths) = match window.shape {
        WindowShape::Tumble => ("TUMBLE", vec![("SIZE", size)]),
        WindowShape::Hop => ("HOP", vec![("SLIDE", slide), ("SIZE", size)]),
        WindowShape::Cumulate => ("CUMULATE", vec![("STEP", slide), ("SIZE", size)]),
        WindowShape::Session => ("SESSION", vec![("GAP", size)]),
    };
    let offset = (offset_ns != 0).then(|| span_ns(offset_ns));
    dataflow::job::window_text(name, &window.time.human_display().to_string(), &lengths, offset)
}

/// A length of time in ticks of a timestamp type.
pub(super) fn span(ticks: i64, data_type: &DataType) -> String {
    span_ns(ticks.saturating_mul(tick_ns(unit_of(data_type))))
}

fn unit_of(data_type: &DataType) -> TimeUnit {
    match data_type {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Nanosecond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_units() {
        assert_eq!(span(1500, &DataType::Timestamp(TimeUnit::Millisecond, None)), "1500 ms");
    }
}
