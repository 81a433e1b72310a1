//! The start of a run, which node 0 tells the others.

use checkpoint::chain::{Chain, Resumed};
use checkpoint::{BaseCheckpoint, ObjectName, Store};
use connectors::fnv;
use dataflow::checkpoint::RunId;

/// The message of node 0 to the others.
pub(super) struct Start {
    pub(super) run: RunId,
    /// The first round.
    pub(super) round: u64,
    /// The checkpoint that the job goes on from.
    pub(super) base: Option<BaseCheckpoint>,
}

impl Start {
    pub(super) fn of(job: u64, (chain, resumed): &(Chain, Option<Resumed>)) -> Self {
        Self {
            run: RunId { job, generation: chain.generation() },
            round: chain.first_round(),
            base: resumed.as_ref().map(|resumed| resumed.base.clone()),
        }
    }

    /// `None` where the job has ended.
    pub(super) fn encode(start: Option<&Self>) -> Vec<u8> {
        let Some(Self { run, round, base }) = start else { return b"ended".to_vec() };
        let mut text = format!("{}\t{}\t{round}", run.job, run.generation);
        if let Some(BaseCheckpoint { record, number, kept }) = base {
            text += &format!("\t{record}\t{number}");
            text.extend(kept.iter().map(|kept| format!("\t{kept}")));
        }
        text.into_bytes()
    }

    /// The value that [`encode`](Self::encode) was given.
    pub(super) fn decode(bytes: &[u8]) -> Option<Option<Self>> {
        let fields: Vec<&str> = std::str::from_utf8(bytes).ok()?.split('\t').collect();
        let (job, generation, round, base) = match fields[..] {
            ["ended"] => return Some(None),
            [job, generation, round, ref base @ ..] => (job, generation, round, base),
            _ => return None,
        };
        let (record, kept) = match *base {
            [] => (None, None),
            [record, number] => (Some((record, number)), None),
            [record, number, kept] => (Some((record, number)), Some(kept.to_owned())),
            _ => return None,
        };
        let base = match record {
            Some((record, number)) => {
                let (record, number) = (record.parse().ok()?, number.parse().ok()?);
                Some(BaseCheckpoint { record, number, kept })
            }
            None => None,
        };
        let run = RunId { job: job.parse().ok()?, generation: generation.parse().ok()? };
        Some(Some(Self { run, round: round.parse().ok()?, base }))
    }
}

/// The number of a job: equal however its directory is spelled.
pub(super) fn job_number(store: &dyn Store, name: &ObjectName) -> u64 {
    let place = store.place(name);
    let path = std::fs::canonicalize(&place);
    fnv(path.map_or(place, |path| path.display().to_string()).as_bytes())
}

#[cfg(test)]
mod tests {
    use checkpoint::{DirectoryStore, MemoryStore};

    use super::*;

    #[test]
    fn a_start_is_read_as_it_was_sent() {
        let base = |kept: Option<&str>| {
            Some(BaseCheckpoint { record: 5, number: 4, kept: kept.map(str::to_owned) })
        };
        for base in [None, base(None), base(Some("before"))] {
            let start = Start { run: RunId { job: u64::MAX, generation: 7 }, round: 9, base };
            let read = Start::decode(&Start::encode(Some(&start))).unwrap().unwrap();
            assert_eq!((read.run, read.round), (start.run, start.round));
            assert_eq!(read.base, start.base);
        }
        assert!(matches!(Start::decode(&Start::encode(None)), Some(None)));
        for bytes in [&b""[..], b"1\t2", b"1\t2\t3\t4", b"1\t2\tx", b"1\t2\t3\t4\t5\t6\t7", b"\xff"]
        {
            assert!(Start::decode(bytes).is_none());
        }
    }

    #[test]
    fn a_job_has_one_number_however_its_directory_is_spelled() {
        let root = std::env::temp_dir().join(format!("millstream-number-{}", std::process::id()));
        let name = ObjectName::job("j").unwrap();
        std::fs::create_dir_all(root.join("state/j")).unwrap();
        let spelled = ["state", "./state", "state/../state"]
            .map(|way| job_number(&DirectoryStore::new(root.join(way)), &name));
        let other = job_number(&MemoryStore::default(), &name);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(spelled, [spelled[0]; 3]);
        assert_ne!(spelled[0], other);
    }
}
