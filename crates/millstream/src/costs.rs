//! The costs of a job's sources, as its nodes measure them and tell each other (I8).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use dataflow::costs::{PARTS_TAKEN_MAX, PartCost, ReadCosts};
use dataflow::job::JobGraph;

use crate::packed::{put_number, take_number};

/// The sources of a job whose costs are measured, in the order of its inputs.
#[derive(Default)]
pub(crate) struct JobCosts(Vec<Arc<dyn ReadCosts>>);

impl JobCosts {
    pub(crate) fn of(job: &JobGraph) -> Self {
        Self(job.inputs().filter_map(|input| input.source.costs()).collect())
    }

    /// Fixes the costs of all sources. Gives a number that two nodes have alone if they know the
    /// same, and 0 if nothing is known.
    pub(crate) fn fix(&self) -> u64 {
        let numbers: Vec<u64> = self.0.iter().map(|source| source.fix()).collect();
        if numbers.iter().all(|number| *number == 0) {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        numbers.hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// What this node has measured, for all: of each source the number of parts, and of each part
    /// its number, size and work.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, self.0.len() as u64);
        for source in &self.0 {
            let costs = source.take();
            put_number(out, costs.len() as u64);
            for PartCost { part, size, work_ns } in costs {
                [u64::from(part), size, work_ns].into_iter().for_each(|of| put_number(out, of));
            }
        }
    }

    /// Takes what a node has measured off the front of what it sent, and adds it to `all`; `None`
    /// where it is not of these sources.
    pub(crate) fn decode(&self, bytes: &mut &[u8], all: &mut MeasuredCosts) -> Option<()> {
        let sources = take_number(bytes)?;
        if sources != self.0.len() as u64 {
            return None;
        }
        all.0.resize(self.0.len(), Vec::new());
        for of_source in &mut all.0 {
            let parts = take_number(bytes).filter(|parts| *parts <= PARTS_TAKEN_MAX as u64)?;
            for _ in 0..parts {
                let part = u32::try_from(take_number(bytes)?).ok()?;
                let (size, work_ns) = (take_number(bytes)?, take_number(bytes)?);
                of_source.push(PartCost { part, size, work_ns });
            }
        }
        Some(())
    }

    /// Keeps what all nodes have measured for later statements.
    pub(crate) fn keep(&self, all: &MeasuredCosts) {
        self.0.iter().zip(&all.0).for_each(|(source, costs)| source.keep(costs));
    }
}

/// The costs that nodes have measured, by source.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MeasuredCosts(Vec<Vec<PartCost>>);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Source {
        number: u64,
        measured: Vec<PartCost>,
        kept: Mutex<Vec<PartCost>>,
    }

    impl ReadCosts for Source {
        fn fix(&self) -> u64 {
            self.number
        }

        fn take(&self) -> Vec<PartCost> {
            self.measured.clone()
        }

        fn keep(&self, costs: &[PartCost]) {
            self.kept.lock().unwrap().extend(costs);
        }
    }

    fn cost(part: u32) -> PartCost {
        PartCost { part, size: 7, work_ns: u64::MAX }
    }

    fn costs(measured: [&[PartCost]; 2]) -> (JobCosts, [Arc<Source>; 2]) {
        let sources =
            measured.map(|of| Arc::new(Source { measured: of.to_vec(), ..Source::default() }));
        (JobCosts(sources.iter().map(|source| Arc::clone(source) as _).collect()), sources)
    }

    #[test]
    fn all_nodes_keep_what_all_have_measured() {
        let nodes = [costs([&[cost(1)], &[]]), costs([&[cost(1), cost(3)], &[cost(u32::MAX)]])];
        let mut all = MeasuredCosts::default();
        let (first, kept) = &nodes[0];
        for (node, _) in &nodes {
            let mut bytes = Vec::new();
            node.encode(&mut bytes);
            // Behind it something else may come.
            bytes.push(0xff);
            let mut rest = &bytes[..];
            assert_eq!(first.decode(&mut rest, &mut all), Some(()));
            assert_eq!(rest, [0xff]);
            for cut in 0..bytes.len() - 1 {
                let mut none = MeasuredCosts::default();
                assert_eq!(first.decode(&mut &bytes[..cut], &mut none), None, "{cut}");
            }
        }
        first.keep(&all);
        assert_eq!(*kept[0].kept.lock().unwrap(), [cost(1), cost(1), cost(3)]);
        assert_eq!(*kept[1].kept.lock().unwrap(), [cost(u32::MAX)]);
    }

    #[test]
    fn reports_of_strangers_are_refused() {
        let (node, _) = costs([&[], &[]]);
        let decoded = |numbers: &[u64]| {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put_number(&mut bytes, *number));
            node.decode(&mut &bytes[..], &mut MeasuredCosts::default())
        };
        assert_eq!(decoded(&[2, 0, 0]), Some(()));
        assert_eq!(decoded(&[1, 0]), None, "other sources");
        assert_eq!(decoded(&[2, u64::MAX, 0]), None, "too many parts");
        assert_eq!(decoded(&[2, 1, 1 << 32, 1, 1, 0]), None, "no such part");
    }

    #[test]
    fn the_number_tells_what_is_known_apart() {
        let number = |numbers: [u64; 2]| {
            let source = |number| Arc::new(Source { number, ..Source::default() }) as _;
            JobCosts(numbers.map(source).into()).fix()
        };
        assert_eq!(number([0, 0]), 0);
        assert_ne!(number([1, 0]), 0);
        assert_ne!(number([1, 0]), number([0, 1]));
        assert_eq!(number([1, 2]), number([1, 2]));
    }
}
