//! The decisions of a job's first plan, which the job keeps when it goes on.

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::CheckpointError;
use checkpoint::chain;

use super::{CheckpointOptions, opening};
use crate::error::Error;

/// The kind of a source in the text of an operator, before its table.
pub(super) const SOURCE: &str = "Source ";

/// The version that stands for a table that is read as a stream, among the decisions that are
/// sent. No table has it.
const STREAMED: u64 = u64::MAX;

/// The decisions that a job has made when it began, as its checkpoint has them. All nodes plan with
/// the same ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDecisions {
    /// The tables that it reads as streams. Where all input ends, the others are tables of lookups.
    pub streamed: Vec<String>,
    /// The versions of the tables of a pool that it reads. The same ones are pinned again.
    pub versions: Vec<(String, u64)>,
}

impl PlanDecisions {
    /// The decisions in the checkpoints that the jobs of a script go on from; none where they begin
    /// anew.
    ///
    /// # Errors
    /// When the store fails, or a record is damaged.
    pub fn of(options: &CheckpointOptions) -> Result<Self, Error> {
        let store = &*options.store;
        let (mut streamed, mut versions) = (BTreeSet::new(), BTreeMap::new());
        for job in chain::jobs(store)
            .map_err(CheckpointError::from)?
            .into_iter()
            .filter(|job| chain::is_job_of(job, &options.job))
        {
            // The run reports the error.
            let Ok(view) = chain::look(store, &job) else { continue };
            let resumed = match chain::resolve(store, &view, options.goes_on_from(job.as_str())) {
                // Only one of several jobs may have it; the run that needs it says so.
                Err(CheckpointError::NotFound { .. }) => continue,
                resumed => resumed?,
            };
            let Some(resumed) = resumed.filter(|of| !opening::has_ended(&of.manifest)) else {
                continue;
            };
            let tables = resumed.manifest.tables.iter();
            versions.extend(tables.map(|of| (of.table.clone(), of.version)));
            let texts = resumed.manifest.operators.iter().map(|of| &of.text);
            streamed.extend(texts.filter_map(|text| text.strip_prefix(SOURCE)).map(str::to_owned));
        }
        let (streamed, versions) = (streamed.into_iter(), versions.into_iter());
        Ok(Self { streamed: streamed.collect(), versions: versions.collect() })
    }

    /// The decisions for another node: `{length u32 | text | version u64}`, with the version
    /// [`STREAMED`] of tables that are read as streams.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let streamed = self.streamed.iter().map(|table| (table, STREAMED));
        let versions = self.versions.iter().map(|(table, version)| (table, *version));
        let each = streamed.chain(versions).map(|(table, version)| {
            let length = (table.len() as u32).to_le_bytes();
            [&length, table.as_bytes(), &version.to_le_bytes()].concat()
        });
        each.collect::<Vec<_>>().concat()
    }

    /// The inverse of [`encode`](Self::encode).
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut decisions = Self::default();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let (version, rest) = rest.split_first_chunk()?;
            let table = std::str::from_utf8(text).ok()?.to_owned();
            match u64::from_le_bytes(*version) {
                STREAMED => decisions.streamed.push(table),
                version => decisions.versions.push((table, version)),
            }
            bytes = rest;
        }
        Some(decisions)
    }
}
