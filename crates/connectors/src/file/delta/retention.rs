//! Removes commits and checkpoints of a log that are older than its retention.
//!
//! ```text
//! _delta_log/   3.json … 10.checkpoint 10.json … 20.checkpoint 20.json … 25.json
//!               └─ removed: below 10 ─┘          │
//!                                        10 is the newest checkpoint that is older than
//!                                        delta.logRetentionDuration: later versions can be read
//! ```
//!
//! A reader that has listed the log begins with the newest checkpoint of that time, so nothing that
//! is younger than [`LOG_STAYS_LEAST_MS`] is removed from under it, whatever the table says.

use super::LOG;
use super::interval::{HOUR_MS, interval_ms};
use super::log::{LogName, checkpoints};
use super::place::TablePlace;
use super::snapshot::Snapshot;
use crate::object::AgedName;

/// How long to wait before a log is listed again. It may have as many names as commits were made
/// within its retention.
pub(super) const CLEANED_EVERY_MS: i64 = HOUR_MS;
/// How long versions can be read, where the table does not say it.
const LOG_STAYS_MS: i64 = 30 * 24 * HOUR_MS;
/// How long they can be read at least.
const LOG_STAYS_LEAST_MS: i64 = HOUR_MS;
/// Names that are removed at a time at most: a commit waits for it.
const REMOVED_MAX: usize = 1000;

/// Removes what the log of a table does not need any more, as the table says. It stays where that
/// cannot be done.
pub(super) fn clean_log(place: &TablePlace, snapshot: &Snapshot) {
    let Some(stays) = log_stays(|key| snapshot.setting(key)) else { return };
    let names = place.aged_log();
    let removed = names.and_then(|names| {
        let mut names = expired(&names, snapshot.now_ms.saturating_sub(stays));
        names.truncate(REMOVED_MAX);
        let names: Vec<String> = names.iter().map(|name| format!("{LOG}/{name}")).collect();
        place.remove(&names).map(|()| names.len())
    });
    match removed {
        Ok(0) => {}
        Ok(count) => tracing::info!(table = place.display(""), count, "old versions are removed"),
        Err(error) => tracing::warn!(%error, "old versions stay: a later checkpoint tries again"),
    }
}

/// How long versions can be read; `None` if they are never removed, or the table says it in a way
/// that is not understood.
fn log_stays<'a>(setting: impl Fn(&str) -> Option<&'a str>) -> Option<i64> {
    if setting("delta.enableExpiredLogCleanup").is_some_and(|of| !of.eq_ignore_ascii_case("true")) {
        return None;
    }
    let given = setting("delta.logRetentionDuration");
    let stays = given.map_or(Some(LOG_STAYS_MS), interval_ms);
    stays.map(|stays| stays.max(LOG_STAYS_LEAST_MS))
}

/// The names of a log that no version from `before_ms` on needs, the oldest first.
fn expired(names: &[AgedName], before_ms: i64) -> Vec<&str> {
    let old = names.iter().filter(|of| of.modified_ms < before_ms).map(|of| of.name.as_str());
    let old: Vec<&str> = old.collect();
    // All parts of it are old, so its version was the newest one before that time, or an older one.
    let Some((first, _)) = checkpoints(old.iter().copied()).pop() else { return vec![] };
    let last = |name: &str| match LogName::of(name)? {
        (_, LogName::Compacted { to }) => Some(to),
        (version, _) => Some(version),
    };
    let all = old.iter().filter_map(|name| Some((last(name)?, *name)));
    let mut needless: Vec<(u64, &str)> = all.filter(|(last, _)| *last < first).collect();
    needless.sort_unstable();
    needless.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::log::{VERSION_DIGITS, checkpoint_name, commit_name};
    use super::*;

    fn bare(name: &str) -> String {
        name.rsplit('/').next().unwrap().to_owned()
    }

    /// Whether a version can be read from these names.
    fn is_readable(version: u64, names: &BTreeSet<String>) -> bool {
        let has_commits =
            |from: u64| (from..=version).all(|of| names.contains(&bare(&commit_name(of))));
        let has_checkpoint = |of: &u64| {
            let part = |part: u32| {
                format!("{of:0VERSION_DIGITS$}.checkpoint.{part:010}.{:010}.parquet", 2)
            };
            names.contains(&bare(&checkpoint_name(*of)))
                || names.contains(&part(1)) && names.contains(&part(2))
        };
        has_commits(0) || (0..=version).filter(has_checkpoint).any(|of| has_commits(of + 1))
    }

    /// What is written beside a version.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Beside {
        Nothing,
        Checkpoint,
        TwoParts,
        /// Of a checkpoint whose other part is missing.
        OnePart,
        Others,
    }

    fn beside() -> impl Strategy<Value = Beside> {
        use Beside::*;
        prop::sample::select(vec![Nothing, Nothing, Checkpoint, TwoParts, OnePart, Others])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn versions_within_the_retention_can_be_read(
            versions in prop::collection::vec((0i64..4, 0i64..6, beside()), 1..25),
            before in 0i64..60,
            cleaned_before in 0i64..60,
        ) {
            let (mut names, mut committed, mut now) = (vec![], vec![], 0);
            for (version, (pause, late, beside)) in versions.into_iter().enumerate() {
                now += pause;
                committed.push(now);
                let aged = |name: String, modified_ms: i64| {
                    AgedName { name, bytes: 0, modified_ms }
                };
                names.push(aged(bare(&commit_name(version as u64)), now));
                let part = |part: u32| {
                    format!("{version:0VERSION_DIGITS$}.checkpoint.{part:010}.{:010}.parquet", 2)
                };
                match beside {
                    Beside::Nothing => {}
                    // A checkpoint may come later than versions behind it.
                    Beside::Checkpoint => {
                        names.push(aged(bare(&checkpoint_name(version as u64)), now + late));
                    }
                    Beside::TwoParts => {
                        names.push(aged(part(1), now));
                        names.push(aged(part(2), now + late));
                    }
                    Beside::OnePart => names.push(aged(part(2), now)),
                    Beside::Others => {
                        names.push(aged(format!("{version:0VERSION_DIGITS$}.crc"), now));
                        names.push(aged("_last_checkpoint".into(), now));
                    }
                }
            }
            // What was removed earlier makes no difference.
            let before_that = cleaned_before.min(before);
            let gone: Vec<String> =
                expired(&names, before_that).into_iter().map(str::to_owned).collect();
            names.retain(|of| !gone.contains(&of.name));
            let removed: BTreeSet<String> =
                expired(&names, before).into_iter().map(str::to_owned).collect();
            // Whatever was removed when it ended early.
            let in_order = expired(&names, before);
            for count in 0..=in_order.len() {
                let left: BTreeSet<String> = names
                    .iter()
                    .map(|of| of.name.clone())
                    .filter(|name| !in_order[..count].contains(&name.as_str()))
                    .collect();
                for (version, at) in committed.iter().enumerate() {
                    // It was the newest until the next one came.
                    let until = committed.get(version + 1).copied().unwrap_or(i64::MAX);
                    prop_assert!(
                        until < before || is_readable(version as u64, &left),
                        "version {} of {}, without {:?}", version, at, removed
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_in_front_of_an_old_checkpoint_is_removed_and_nothing_else() {
        let name = |name: &str, modified_ms: i64| AgedName {
            name: format!("{:020}.{name}", modified_ms / 10),
            bytes: 1,
            modified_ms,
        };
        let mut names = vec![
            name("json", 10),
            name("crc", 10),
            name("json", 20),
            name("checkpoint.parquet", 20),
            name("00000000000000000004.compacted.json", 20),
            name("00000000000000000002.compacted.json", 20),
            name("json", 30),
            name("checkpoint.0000000001.0000000001.parquet", 30),
            name("json", 40),
            name("checkpoint.parquet", 40),
            name("json", 50),
        ];
        let other = ["_last_checkpoint", "_commits", ".00000000000000000001.json.tmp-1", "x.json"];
        names.extend(other.map(|name| AgedName { name: name.into(), bytes: 1, modified_ms: 0 }));
        let count = |before: i64| expired(&names, before).len();
        assert_eq!([count(0), count(20), count(21), count(30)], [0, 0, 2, 2]);
        let gone = [1, 1, 2, 2, 2].map(|version| format!("{version:020}"));
        let kinds = ["crc", "json", "00000000000000000002.compacted.json"];
        let kinds = kinds.into_iter().chain(["checkpoint.parquet", "json"]);
        let gone: Vec<String> =
            gone.iter().zip(kinds).map(|(version, kind)| format!("{version}.{kind}")).collect();
        assert_eq!(expired(&names, 31), gone);
        assert_eq!(count(i64::MAX), 7, "those of version 4 stay");
    }

    #[test]
    fn a_table_says_how_long_its_versions_stay() {
        let stays = |key: &'static str, value: &'static str| {
            log_stays(|of| (of == key).then_some(value)).map(|ms| ms / HOUR_MS)
        };
        let key = "delta.logRetentionDuration";
        assert_eq!(stays("", ""), Some(720));
        assert_eq!(stays(key, "interval 2 days"), Some(48));
        assert_eq!(stays(key, "interval 0 days"), Some(1), "a reader may have listed it");
        assert_eq!(stays(key, "a while"), None);
        assert_eq!(stays("delta.enableExpiredLogCleanup", "false"), None);
        assert_eq!(stays("delta.enableExpiredLogCleanup", "true"), Some(720));
    }
}
