//! Metrics as data: a list of definitions becomes counters, snapshots and pages.
//!
//! The macro `metrics` takes the definitions of a scope and makes two types of them: the live
//! counters, which one worker writes, and their [`Snapshot`], which is added up, sent to other
//! nodes and shown. Pages, JSON and the reference are made from [`Snapshot::METRICS`]; a layout for
//! people reads the snapshot's fields.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use state::{KeyMode, KeyModes};

/// The definition of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in JSON; Prometheus has `millstream_` before it, and `_total` after it if it is a
    /// counter.
    pub name: &'static str,
    /// How it changes over time.
    pub kind: MetricKind,
    /// The unit of its value.
    pub unit: MetricUnit,
    /// One sentence.
    pub help: &'static str,
}

/// How a number changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A gauge of the highest value so far.
    Peak,
}

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// A count of the things in its name: rows, frames.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds, shown in seconds.
    Nanoseconds,
    /// Milliseconds since 1970, shown in seconds; absent before the first watermark, `i64::MIN`,
    /// and after the last, `i64::MAX`. The lowest one of several workers counts.
    Watermark,
    /// Nanoseconds, shown in seconds. The longest of several workers counts.
    Longest,
    /// The number of a round. The lowest of several workers counts; absent before the first, 0, and
    /// where no round is waited for any more, `u64::MAX`.
    Round,
    /// Events that the processor counts; absent where it counted none.
    Hardware,
    /// A set of key modes, shown by their names.
    KeyModes,
}

/// A value as it is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// A whole number.
    Whole(u64),
    /// Seconds.
    Seconds(f64),
    /// Key modes.
    KeyModes(KeyModes),
}

impl MetricValue {
    /// The value as a number; `None` if it is not one.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Whole(number) => Some(number as f64),
            Self::Seconds(seconds) => Some(seconds),
            Self::KeyModes(_) => None,
        }
    }

    /// The key modes with these names; others are ignored.
    pub fn key_modes<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut modes = KeyModes::default();
        for name in names {
            let named = KeyMode::ALL.into_iter().find(|mode| mode.name() == name);
            named.into_iter().for_each(|mode| modes.insert(mode));
        }
        Self::KeyModes(modes)
    }
}

/// The watermark, unless it is the start or the end of time.
pub fn finite_watermark(watermark_ms: i64) -> Option<i64> {
    Some(watermark_ms).filter(|ms| ![i64::MIN, i64::MAX].contains(ms))
}

impl MetricUnit {
    /// The value of a worker that has counted nothing yet.
    pub(super) const fn start(self) -> u64 {
        match self {
            Self::Watermark => i64::MIN as u64,
            _ => 0,
        }
    }

    /// The value that changes no sum.
    pub(super) const fn neutral(self) -> u64 {
        match self {
            Self::Watermark => i64::MAX as u64,
            Self::Round => u64::MAX,
            _ => 0,
        }
    }

    fn sum(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Watermark => (a as i64).min(b as i64) as u64,
            Self::KeyModes => a | b,
            Self::Longest => a.max(b),
            Self::Round => a.min(b),
            // Counters of other nodes are hostile.
            _ => a.wrapping_add(b),
        }
    }

    fn value(self, word: u64) -> Option<MetricValue> {
        match self {
            Self::Count | Self::Bytes => Some(MetricValue::Whole(word)),
            Self::Hardware => Some(word).filter(|&count| count > 0).map(MetricValue::Whole),
            Self::Round => (1..u64::MAX).contains(&word).then_some(MetricValue::Whole(word)),
            Self::Nanoseconds | Self::Longest => Some(MetricValue::Seconds(word as f64 / 1e9)),
            Self::Watermark => {
                let watermark_ms = finite_watermark(word as i64);
                watermark_ms.map(|ms| MetricValue::Seconds(ms as f64 / 1e3))
            }
            Self::KeyModes => Some(MetricValue::KeyModes(KeyModes::from_bits(word))),
        }
    }

    fn word(self, value: Option<MetricValue>) -> u64 {
        match (self, value) {
            (_, None) => self.start(),
            (Self::Watermark, Some(MetricValue::Seconds(seconds))) => {
                (seconds * 1e3).round() as i64 as u64
            }
            (_, Some(MetricValue::Seconds(seconds))) => (seconds * 1e9).round() as u64,
            (_, Some(MetricValue::Whole(number))) => number,
            (_, Some(MetricValue::KeyModes(modes))) => modes.bits(),
        }
    }
}

/// The values of all metrics of a scope at one moment, or their sum over several workers.
///
/// [`Default`] is the value that changes no sum.
pub trait Snapshot: Sized + Copy + Default {
    /// The definitions, in the order of the fields.
    const METRICS: &'static [Metric];

    /// The values as words, in the order of the definitions.
    fn words(&self) -> Vec<u64>;

    /// The inverse of [`words`](Self::words); `None` if there is no `next` word.
    fn from_words(next: impl FnMut(&'static Metric) -> Option<u64>) -> Option<Self>;

    /// The values as they are shown; `None` for those that are absent.
    fn values(&self) -> impl Iterator<Item = (&'static Metric, Option<MetricValue>)> {
        let words = Self::METRICS.iter().zip(self.words());
        words.map(|(metric, word)| (metric, metric.unit.value(word)))
    }

    /// The inverse of [`values`](Self::values).
    fn of_values(mut value: impl FnMut(&'static Metric) -> Option<MetricValue>) -> Self {
        Self::from_words(|metric| Some(metric.unit.word(value(metric)))).unwrap_or_default()
    }

    /// Adds the values of other workers.
    fn add(&mut self, other: &Self) {
        *self = self.merged(other, |metric, own, other| metric.unit.sum(own, other));
    }

    /// Adds what the same workers did in the next job.
    fn add_next(&mut self, next: &Self) {
        *self = self.merged(next, |metric, own, next| match metric.kind {
            MetricKind::Counter => metric.unit.sum(own, next),
            MetricKind::Gauge => next,
            MetricKind::Peak => own.max(next),
        });
    }

    /// The counts since an `earlier` snapshot; gauges are as they are now.
    fn since(&self, earlier: &Self) -> Self {
        self.merged(earlier, |metric, now, earlier| match metric.kind {
            MetricKind::Counter => now.saturating_sub(earlier),
            MetricKind::Gauge | MetricKind::Peak => now,
        })
    }

    /// The counters alone: gauges of a job that has ended have no values.
    fn counters_only(&self) -> Self {
        self.merged(self, |metric, own, _| match metric.kind {
            MetricKind::Counter => own,
            MetricKind::Gauge | MetricKind::Peak => metric.unit.neutral(),
        })
    }

    /// Merges each value with the `other` snapshot's.
    fn merged(&self, other: &Self, merge: impl Fn(&Metric, u64, u64) -> u64) -> Self {
        let mut words = self.words().into_iter().zip(other.words());
        let merged = Self::from_words(|metric| {
            let (own, other) = words.next()?;
            Some(merge(metric, own, other))
        });
        merged.unwrap_or_default()
    }
}

/// A value that one worker writes and others read while it runs.
pub trait CellValue: Copy {
    /// Where a worker counts it.
    type Cell;

    /// A cell with this value.
    fn cell(self) -> Self::Cell;
    /// The value of a cell now.
    fn load(cell: &Self::Cell) -> Self;
    /// The value as a word.
    fn to_word(self) -> u64;
    /// The inverse of [`to_word`](Self::to_word).
    fn from_word(word: u64) -> Self;
}

impl CellValue for u64 {
    type Cell = AtomicU64;

    fn cell(self) -> AtomicU64 {
        self.into()
    }

    fn load(cell: &AtomicU64) -> Self {
        cell.load(Ordering::Relaxed)
    }

    fn to_word(self) -> u64 {
        self
    }

    fn from_word(word: u64) -> Self {
        word
    }
}

impl CellValue for i64 {
    type Cell = AtomicI64;

    fn cell(self) -> AtomicI64 {
        self.into()
    }

    fn load(cell: &AtomicI64) -> Self {
        cell.load(Ordering::Relaxed)
    }

    fn to_word(self) -> u64 {
        self as u64
    }

    fn from_word(word: u64) -> Self {
        word as i64
    }
}

impl CellValue for KeyModes {
    type Cell = AtomicU64;

    fn cell(self) -> AtomicU64 {
        self.bits().into()
    }

    fn load(cell: &AtomicU64) -> Self {
        Self::from_bits(cell.load(Ordering::Relaxed))
    }

    fn to_word(self) -> u64 {
        self.bits()
    }

    fn from_word(word: u64) -> Self {
        Self::from_bits(word)
    }
}

/// Makes the live counters and the snapshot of a scope from its definitions:
/// `field: type = Kind("name", Unit, "help");`. A worker counts what stands under `counted`; what
/// stands under `derived` is in the snapshot only, for the function that reads the live counters.
macro_rules! metrics {
    (
        $(#[$live_doc:meta])*
        live $Live:ident { $($extra:ident: $extra_type:ty,)* }
        $(#[$snapshot_doc:meta])*
        snapshot $Snapshot:ident
        counted { $(
            $field:ident: $value:ty = $kind:ident($name:literal, $unit:ident, $help:literal);
        )* }
        derived { $(
            $own:ident: $own_value:ty =
                $own_kind:ident($own_name:literal, $own_unit:ident, $own_help:literal);
        )* }
    ) => {
        $(#[$live_doc])*
        #[derive(Debug)]
        pub struct $Live {
            $(#[doc = $help] pub $field: <$value as CellValue>::Cell,)*
            $(pub(crate) $extra: $extra_type,)*
        }

        impl Default for $Live {
            fn default() -> Self {
                Self {
                    $($field: <$value>::from_word(MetricUnit::$unit.start()).cell(),)*
                    $($extra: Default::default(),)*
                }
            }
        }

        impl $Live {
            /// The counts of this worker, without derived metrics.
            pub(super) fn counted(&self) -> $Snapshot {
                $Snapshot {
                    $($field: <$value>::load(&self.$field),)*
                    $($own: <$own_value>::from_word(MetricUnit::$own_unit.neutral()),)*
                }
            }
        }

        $(#[$snapshot_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $Snapshot {
            $(#[doc = $help] pub $field: $value,)*
            $(#[doc = $own_help] pub $own: $own_value,)*
        }

        impl Default for $Snapshot {
            fn default() -> Self {
                Self {
                    $($field: <$value>::from_word(MetricUnit::$unit.neutral()),)*
                    $($own: <$own_value>::from_word(MetricUnit::$own_unit.neutral()),)*
                }
            }
        }

        impl Snapshot for $Snapshot {
            const METRICS: &'static [Metric] = &[
                $(Metric {
                    name: $name,
                    kind: MetricKind::$kind,
                    unit: MetricUnit::$unit,
                    help: $help,
                },)*
                $(Metric {
                    name: $own_name,
                    kind: MetricKind::$own_kind,
                    unit: MetricUnit::$own_unit,
                    help: $own_help,
                },)*
            ];

            fn words(&self) -> Vec<u64> {
                vec![$(self.$field.to_word(),)* $(self.$own.to_word(),)*]
            }

            fn from_words(
                mut next: impl FnMut(&'static Metric) -> Option<u64>,
            ) -> Option<Self> {
                let mut metrics = Self::METRICS.iter();
                Some(Self {
                    $($field: <$value>::from_word(next(metrics.next()?)?),)*
                    $($own: <$own_value>::from_word(next(metrics.next()?)?),)*
                })
            }
        }
    };
}

pub(super) use metrics;
