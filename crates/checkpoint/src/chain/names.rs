//! Names of the objects of a job.

use crate::store::ObjectName;

/// The digits of a record's number in its name: names are in the order of numbers.
const RECORD_DIGITS: usize = 20;

pub(super) fn chain_folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/chain"))
}

pub(super) fn segment_folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/seg"))
}

pub(super) fn kept_folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/keep"))
}

/// The markers of collection: their numbers are those of the lowest records that were kept.
pub(super) fn collected_folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/collected"))
}

/// The marker that records below a number are collected.
pub(super) fn collected_marker(job: &ObjectName, number: u64) -> ObjectName {
    ObjectName::known(format!("{job}/collected/{number:0RECORD_DIGITS$}"))
}

/// The copies of records that begin generations.
pub(super) fn begun_folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/begun"))
}

/// The copy of the record that begins a generation.
pub(super) fn begun_name(job: &ObjectName, generation: u64) -> ObjectName {
    ObjectName::known(format!("{job}/begun/{generation:0RECORD_DIGITS$}"))
}

/// Whether a job is one of a script: that of its name, or one of several, which have numbers.
#[must_use]
pub fn is_job_of(job: &ObjectName, script: &str) -> bool {
    let rest = job.as_str().strip_prefix(script);
    let number = |rest: &str| rest.strip_prefix('.').is_some_and(|of| of.parse::<u32>().is_ok());
    rest.is_some_and(|rest| rest.is_empty() || number(rest))
}

/// The name of a record.
#[must_use]
pub fn record_name(job: &ObjectName, number: u64) -> ObjectName {
    ObjectName::known(format!("{job}/chain/{number:0RECORD_DIGITS$}"))
}

/// The number of a record or of a marker, by its name; `None` if the object is neither.
pub(super) fn record_number(name: &ObjectName) -> Option<u64> {
    let digits = name.last_part();
    let number: u64 = digits.parse().ok()?;
    (number > 0 && format!("{number:0RECORD_DIGITS$}") == digits).then_some(number)
}

/// The name of a segment that a record names.
#[must_use]
pub fn segment_name(job: &ObjectName, file: &str) -> Option<ObjectName> {
    segment_folder(job).join(file).ok().filter(|_| !file.contains('/'))
}

/// The file of the segment that a node writes for a checkpoint. No two writes have one name: a
/// generation belongs to one process of each node, and a round is saved once.
#[must_use]
pub fn segment_file(generation: u64, node: u32, number: u64) -> String {
    format!("g{generation}-n{node}-{number:06}.seg")
}

/// Generation and number in the name of a segment; `None` if it was not made by [`segment_file`].
pub(super) fn segment_numbers(file: &str) -> Option<(u64, u64)> {
    let mut words = file.strip_suffix(".seg")?.split('-');
    let (generation, node, number) = (words.next()?, words.next()?, words.next()?);
    let generation = generation.strip_prefix('g')?.parse().ok()?;
    let node = node.strip_prefix('n')?.parse().ok()?;
    let number = number.parse().ok()?;
    (segment_file(generation, node, number) == file).then_some((generation, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_jobs_of_its_name_and_of_numbers() {
        let is_of = |job: &str| is_job_of(&ObjectName::job(job).unwrap(), "clicks");
        assert!(["clicks", "clicks.1", "clicks.12"].into_iter().all(is_of));
        assert!(!["clicks.v2", "clicks.1.2", "clicks2", "click"].into_iter().any(is_of));
    }

    #[test]
    fn names_of_records_and_segments_are_read_as_they_were_made() {
        let job = ObjectName::job("clicks").unwrap();
        let name = record_name(&job, 412);
        assert_eq!(name.as_str(), "clicks/chain/00000000000000000412");
        assert_eq!(record_number(&name), Some(412));
        assert_eq!(record_number(&record_name(&job, u64::MAX)), Some(u64::MAX));
        for other in ["412", "00000000000000000000", "+0000000000000000412"] {
            assert_eq!(
                record_number(&ObjectName::known(format!("clicks/{}", other.replace('+', "x")))),
                None
            );
        }
        let file = segment_file(7, 2, 31);
        assert_eq!(file, "g7-n2-000031.seg");
        assert_eq!(segment_numbers(&file), Some((7, 31)));
        assert_eq!(segment_numbers(&segment_file(1, 0, 1_000_000)), Some((1, 1_000_000)));
        for other in ["g7-n2-31.seg", "g07-n2-000031.seg", "g7-n2-000031", "notes.txt"] {
            assert_eq!(segment_numbers(other), None);
        }
        assert!(segment_name(&job, "../x").is_none() && segment_name(&job, "a/b").is_none());
    }
}
