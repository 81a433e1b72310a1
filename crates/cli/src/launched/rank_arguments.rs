//! The arguments of a rank: all have the same, except for those that each may have of its own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream::cluster::Assignment;

use crate::args::RunArgs;
use crate::script::SqlText;
use crate::session::job_number;

/// Characters of a text that a message quotes.
const QUOTE_MAX: usize = 60;

/// Program, options and SQL of a rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankArguments {
    /// Its clock; that of rank 0 counts.
    pub(super) started: SystemTime,
    /// Its number for the job; that of rank 0 counts.
    pub(super) job: u128,
    /// Threads from its arguments, or those that it can have.
    pub(super) workers: u32,
    /// The script that it read; empty for a rank that leaves reading to rank 0.
    pub(super) sql: String,
    /// Whether it did.
    reads: bool,
    /// Names and values of all else that has to be equal.
    options: Vec<(String, String)>,
}

impl RankArguments {
    pub(super) fn new(args: &RunArgs, script: &SqlText, assignment: &Assignment) -> Self {
        let layout = &args.job.layout;
        let set: Vec<_> = layout.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let workers = layout.workers.map_or(String::new(), |workers| workers.to_string());
        let rows = &args.rows;
        let format = rows.format.map_or("", |format| format.name());
        let output = rows.output.as_ref().map_or(String::new(), |path| path.display().to_string());
        let options = [
            ("its version", env!("CARGO_PKG_VERSION").to_owned()),
            ("--fabric", layout.fabric.to_string()),
            ("--workers", workers),
            ("--set", set.join(", ")),
            ("--format", format.to_owned()),
            ("--output", output),
            ("--chart", rows.chart.to_string()),
            ("--pool", layout.pool.pool.join(",")),
            ("--state", args.state.state.clone().unwrap_or_default()),
            ("--job", args.state.job.clone().unwrap_or_default()),
        ];
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let neighbours = assignment.local.unwrap_or(assignment.nodes).max(1);
        Self {
            started: SystemTime::now(),
            job: job_number(),
            workers: layout.workers.unwrap_or_else(|| cores() / neighbours),
            sql: script.sql.clone(),
            reads: args.job.file.as_os_str() != "-" || assignment.rank == 0,
            options: options.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        }
    }

    /// `nanoseconds since 1970 u64 | job u128 | workers u32 | reads u8 |` texts, each behind its
    /// length: the SQL, then names and values in turn.
    pub(super) fn encode(&self) -> Vec<u8> {
        let since = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let mut out = ns.to_le_bytes().to_vec();
        out.extend_from_slice(&self.job.to_le_bytes());
        out.extend_from_slice(&self.workers.to_le_bytes());
        out.push(self.reads.into());
        let options = self.options.iter().flat_map(|(name, value)| [name, value]);
        for text in std::iter::once(&self.sql).chain(options) {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    /// The inverse of [`RankArguments::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (ns, rest) = bytes.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (workers, rest) = rest.split_first_chunk()?;
        let (&reads, mut rest) = rest.split_first()?;
        let mut texts = Vec::new();
        while let Some((len, behind)) = rest.split_first_chunk() {
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            texts.push(String::from_utf8(text.to_vec()).ok()?);
            rest = behind;
        }
        let (sql, pairs) = texts.split_first()?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        let known = rest.is_empty() && odd.is_empty() && reads <= 1;
        known.then_some(Self {
            started: UNIX_EPOCH + Duration::from_nanos(u64::from_le_bytes(*ns)),
            job: u128::from_le_bytes(*job),
            workers: u32::from_le_bytes(*workers),
            sql: sql.clone(),
            reads: reads == 1,
            options: pairs.iter().map(|[name, value]| (name.clone(), value.clone())).collect(),
        })
    }

    /// The arguments of another rank that this one, rank 0, does not have.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let pairs = self.options.iter().zip(&other.options);
        for ((name, ours), (their_name, theirs)) in pairs {
            if name != their_name {
                return Some("its options: its version is another".into());
            }
            if ours != theirs {
                return Some(format!("{name}: {}, not {}", quoted(theirs), quoted(ours)));
            }
        }
        if self.options.len() != other.options.len() {
            return Some("its options: its version is another".into());
        }
        if !other.reads || self.sql == other.sql {
            return None;
        }
        let (ours, theirs) = (self.sql.lines(), other.sql.lines());
        let alike = ours.clone().zip(theirs.clone()).take_while(|(a, b)| a == b).count();
        let line = |mut lines: std::str::Lines<'_>| {
            lines.nth(alike).map_or("the end".into(), |line| quoted(line.trim()))
        };
        let (ours, theirs) = (line(ours), line(theirs));
        Some(format!("line {} of the SQL: {theirs}, not {ours}", alike + 1))
    }
}

fn quoted(text: &str) -> String {
    if text.is_empty() {
        return "nothing".into();
    }
    let short: String = text.chars().take(QUOTE_MAX).collect();
    if short.len() < text.len() { format!("'{short}…'") } else { format!("'{short}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(sql: &str) -> RankArguments {
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        RankArguments {
            started: UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789),
            job: 7 << 100,
            workers: 3,
            sql: sql.into(),
            reads: true,
            options: vec![option("its version", "0.1.0"), option("--set", "")],
        }
    }

    #[test]
    fn what_is_told_is_understood_and_damage_is_not() {
        let sent = arguments("SELECT 'é'");
        let bytes = sent.encode();
        assert_eq!(RankArguments::decode(&bytes), Some(sent));
        for end in 0..bytes.len() {
            assert_ne!(
                RankArguments::decode(&bytes[..end]).map(|arguments| arguments.options.len()),
                Some(2)
            );
        }
    }

    #[test]
    fn the_first_difference_is_quoted() {
        let ours = arguments("SELECT 1;\nSELECT 2;\n");
        assert_eq!(ours.difference(&ours), None);
        let difference = |other: &RankArguments| ours.difference(other).unwrap();
        let other = arguments("SELECT 1;\nSELECT 3;\n");
        assert_eq!(difference(&other), "line 2 of the SQL: 'SELECT 3;', not 'SELECT 2;'");
        let other = arguments("SELECT 1;\n");
        assert_eq!(difference(&other), "line 2 of the SQL: the end, not 'SELECT 2;'");
        let mut other = ours.clone();
        other.options[0].1 = "0.2.0".into();
        assert_eq!(difference(&other), "its version: '0.2.0', not '0.1.0'");
        other.options[0].1 = "0.1.0".into();
        other.options[1].1 = "a=b".into();
        assert_eq!(difference(&other), "--set: 'a=b', not nothing");
        // A rank that leaves reading to rank 0 has read nothing.
        let other = RankArguments { reads: false, ..arguments("") };
        assert_eq!(ours.difference(&other), None);
    }
}
