//! Directories that are watched.

use std::fs;
use std::sync::Arc;

use arrow::array::Int64Array;
use connectors::FileConnector;
use dataflow::bad::BadRows;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use crate::bed::*;

const SECOND: u64 = 1_000_000_000;

/// All flows of a watched source, and the clock that they see.
struct Watch {
    source: Arc<dyn Source>,
    flows: Vec<Box<dyn SplitReader>>,
    clock: Arc<ManualClock>,
    bad: Arc<BadRows>,
}

impl Watch {
    fn new(path: &str, workers: u32, options: &[(&str, &str)]) -> Self {
        Self::going_on(path, workers, options, &[]).unwrap()
    }

    /// The same from positions of the flows, if there are some.
    fn going_on(
        path: &str,
        workers: u32,
        options: &[(&str, &str)],
        from: &[Position],
    ) -> Result<Self, ConnectorError> {
        let mut all = vec![("path", path)];
        all.extend(options);
        let mut table = table(&columns(&[("a", BIGINT), ("f", VARCHAR)]), &all);
        table.metadata.insert(1, "file".into());
        let source = source(&FileConnector::default(), &table).unwrap();
        assert!(!source.bounded());
        let (clock, bad) = (Arc::new(ManualClock::default()), Arc::new(BadRows::default()));
        let context = ReaderContext::new(clock.clone(), bad.clone());
        let splits = source.splits(workers, None).unwrap();
        // A plan of another job asks too, and these splits stay as they are.
        source.splits(workers + 3, None).unwrap();
        let open = |(at, split): (usize, &Split)| source.open(split, from.get(at), &context);
        let flows = splits.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(Self { source, flows, clock, bad })
    }

    /// The positions of the flows, as a checkpoint keeps them.
    fn positions(&self) -> Vec<Position> {
        let kept = self.flows.iter().map(|flow| flow.position().to_bytes());
        kept.map(|bytes| Position::from_bytes(&bytes).unwrap()).collect()
    }

    /// Asks the flows in turn for a few rows, `times` times; gives the values that come.
    fn some(&mut self, times: usize) -> Vec<String> {
        let mut found = Vec::new();
        for at in 0..times {
            let of = at % self.flows.len();
            if let Next::Batch(batch) = self.flows[of].next(2).unwrap() {
                found.extend(rows(&batch).iter().map(|row| row.split('|').next().unwrap().into()));
            }
        }
        found
    }

    /// What all flows have to give at a time: `value name`, sorted.
    fn at(&mut self, now_ns: u64) -> Vec<String> {
        self.clock.set(now_ns);
        let mut found = Vec::new();
        // Flows that owe rows wait until all of them have been asked twice.
        let mut quiet = 0;
        while quiet < 3 {
            quiet += 1;
            for flow in &mut self.flows {
                match flow.next(100).unwrap() {
                    Next::Batch(batch) => {
                        found.extend(rows(&batch));
                        quiet = 0;
                    }
                    Next::Wait { until_ns } => assert!(until_ns >= now_ns),
                    Next::Pending => panic!("nobody would wake it"),
                    Next::End => panic!("a watched table has no end"),
                }
            }
        }
        let name = |row: &String| {
            let (value, path) = row.split_once('|').unwrap();
            format!("{value} {}", path.rsplit('/').next().unwrap())
        };
        let mut found: Vec<String> = found.iter().map(name).collect();
        found.sort();
        found
    }
}

#[test]
fn a_new_file_is_read_once_when_it_has_settled() {
    let scratch = Scratch::new("watch");
    scratch.write("1.csv", "a\n1\n");
    let mut watch = Watch::new(&scratch.path(""), 1, &[("watch", "1s"), ("watch.settle", "2s")]);
    assert_eq!(watch.source.splits(1, None).unwrap().len(), 1);
    assert!(watch.at(0).is_empty());
    assert!(watch.at(SECOND).is_empty());
    assert_eq!(watch.at(2 * SECOND), ["1 1.csv"]);
    assert!(watch.at(3 * SECOND).is_empty());
    // One that still changes waits on.
    scratch.write("2.csv", "a\n2");
    assert!(watch.at(4 * SECOND).is_empty());
    scratch.write("2.csv", "a\n2\n3\n");
    assert!(watch.at(6 * SECOND).is_empty());
    assert_eq!(watch.at(8 * SECOND), ["2 2.csv", "3 2.csv"]);
    // Between two looks at the directory nothing is seen.
    scratch.write("3.csv", "a\n4\n");
    assert!(watch.at(8 * SECOND + 1).is_empty());
    assert!(watch.at(9 * SECOND).is_empty());
    assert_eq!(watch.at(11 * SECOND), ["4 3.csv"]);
    // A file of the same name with other bytes is another file.
    fs::remove_file(scratch.path("3.csv")).unwrap();
    assert!(watch.at(12 * SECOND).is_empty());
    scratch.write("3.csv", "a\n5\n6\n");
    assert!(watch.at(13 * SECOND).is_empty());
    assert_eq!(watch.at(15 * SECOND), ["5 3.csv", "6 3.csv"]);
    assert_eq!(watch.bad.count(), 0);
}

#[test]
fn files_that_are_renamed_into_place_are_read_at_once_and_hidden_ones_never() {
    let scratch = Scratch::new("watch-rename");
    let options = [("watch", "1s"), ("watch.settle", "0s")];
    let mut watch = Watch::new(&scratch.path("*.csv"), 3, &options);
    assert!(watch.at(0).is_empty());
    for file in 0..20 {
        scratch.write("_next.csv", format!("a\n{file}\n"));
        assert!(watch.at(u64::from(file as u32) * 2 * SECOND + SECOND).is_empty());
        fs::rename(scratch.path("_next.csv"), scratch.path(&format!("{file}.csv"))).unwrap();
        let expected = [format!("{file} {file}.csv")];
        assert_eq!(watch.at(u64::from(file as u32) * 2 * SECOND + 2 * SECOND), expected);
    }
}

#[test]
fn a_file_that_cannot_be_read_does_not_end_the_table() {
    let scratch = Scratch::new("watch-bad");
    let options = [("watch", "1s"), ("watch.settle", "0s"), ("format", "csv")];
    let mut watch = Watch::new(&scratch.path(""), 2, &options);
    assert!(watch.at(0).is_empty());
    scratch.write("cut.csv.gz", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b]);
    scratch.write("other.csv", "b\n1\n");
    scratch.write("good.csv", "a\n7\n");
    assert_eq!(watch.at(SECOND), ["7 good.csv"]);
    let kept = watch.bad.kept();
    assert_eq!(kept.len(), 2);
    let of = |name: &str| kept.iter().find(|row| row.place.contains(name)).unwrap();
    assert!(of("cut.csv.gz").reason.contains("ends too early"));
    assert!(of("other.csv").reason.contains("column 'a'"), "{}", of("other.csv").reason);
}

#[test]
fn what_cannot_be_watched_is_refused_before_it_runs() {
    let scratch = Scratch::new("watch-refused");
    let error = |path: &str, options: &[(&str, &str)]| {
        let mut all = vec![("path", path)];
        all.extend(options);
        refused(FileConnector::default().source(&table(&columns(&[("a", BIGINT)]), &all), &[0]))
    };
    let here = scratch.path("");
    assert!(hint(&error(&here, &[("watch", "1s")])).contains("'format' = 'csv'"));
    assert!(hint(&error(&here, &[("watch", "1ms"), ("format", "csv")])).contains("'1s'"));
    assert!(hint(&error(&here, &[("watch.settle", "1s")])).contains("'watch' = '1s'"));
    let gone = error(&scratch.path("nowhere"), &[("watch", "1s"), ("format", "csv")]);
    assert!(gone.to_string().contains("no such file"), "{gone}");
    scratch.write("t.csv", "b\n");
    let wrong = error(&here, &[("watch", "1s")]);
    assert_eq!(hint(&wrong), "its columns are b");
}

#[test]
fn files_that_are_found_are_owed_by_their_flows_until_they_are_read() {
    let scratch = Scratch::new("watch-owed");
    let options = [("watch", "1s"), ("watch.settle", "0s")];
    let mut watch = Watch::new(&scratch.path("*.csv"), 2, &options);
    assert!(watch.at(0).is_empty());
    for file in 0..6 {
        scratch.write(&format!("{file}.csv"), format!("a\n{file}\n"));
    }
    watch.clock.set(SECOND);
    // One flow lists for both, and none gives rows before the other was asked twice.
    for _ in 0..5 {
        assert!(matches!(watch.flows[0].next(100).unwrap(), Next::Wait { .. }));
        assert!(watch.flows[0].owes() && watch.flows[1].owes());
    }
    assert!(matches!(watch.flows[1].next(100).unwrap(), Next::Wait { .. }));
    assert!(matches!(watch.flows[0].next(100).unwrap(), Next::Wait { .. }));
    assert!(matches!(watch.flows[1].next(100).unwrap(), Next::Batch(_)));
    assert!(matches!(watch.flows[0].next(100).unwrap(), Next::Batch(_)));
    assert_eq!(watch.at(SECOND).len(), 4);
    assert!(!watch.flows[0].owes() && !watch.flows[1].owes());
    // One that has not settled is owed, too.
    let mut watch = Watch::new(&scratch.path("*.csv"), 1, &[("watch", "1s")]);
    assert!(watch.at(0).is_empty());
    assert!(watch.flows[0].owes());
    assert_eq!(watch.at(SECOND).len(), 6);
    assert!(!watch.flows[0].owes());
}

/// Reads a directory by many runs, each of which breaks off somewhere; gives all values, sorted.
fn read_by_runs(scratch: &Scratch, files: usize, rows: usize, format: &str) -> Vec<usize> {
    let options = [("watch", "1s"), ("watch.settle", "0s"), ("format", format)];
    let (mut found, mut from) = (Vec::new(), vec![]);
    for run in 0_usize.. {
        let mut watch = Watch::going_on(&scratch.path(""), 3, &options, &from).unwrap();
        watch.clock.set(SECOND);
        // Rows behind the positions are lost with the run.
        let taken = watch.some(5 + run * 7 % 23);
        from = watch.positions();
        let lost = watch.some(9);
        found.extend(taken);
        assert!(from.iter().all(Position::can_be_replayed) && watch.source.replays());
        if found.len() >= files * rows && lost.is_empty() {
            break;
        }
        assert!(run < 100_000, "{} rows", found.len());
    }
    let mut found: Vec<usize> = found.iter().map(|value| value.parse().unwrap()).collect();
    found.sort_unstable();
    found
}

#[test]
fn runs_that_break_off_read_each_row_of_each_file_once() {
    let (files, rows) = (12, 9);
    let scratch = Scratch::new("watch-runs");
    for file in 0..files {
        let lines = (0..rows).map(|row| format!("{}\n", file * rows + row)).collect::<String>();
        scratch.write(&format!("{file}.csv"), format!("a\n{lines}"));
    }
    let found = read_by_runs(&scratch, files, rows, "csv");
    assert!(found.into_iter().eq(0..files * rows));
    // Files of several splits.
    let scratch = Scratch::new("watch-runs-arrow");
    for file in 0..files {
        let path = scratch.path(&format!("{file}.arrow"));
        let table = table(&columns(&[("a", BIGINT)]), &[("path", &path)]);
        let sink = FileConnector::default().sink(&table).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        for part in 0..3 {
            let from = (file * rows + part * rows / 3) as i64;
            let values = Int64Array::from_iter_values(from..from + rows as i64 / 3);
            writer.write(&batch(&[("a", Arc::new(values))])).unwrap();
        }
        writer.commit().unwrap();
    }
    let found = read_by_runs(&scratch, files, rows, "arrow");
    assert!(found.into_iter().eq(0..files * rows));
}

#[test]
fn a_position_has_the_files_that_are_there_and_refuses_one_that_was_read_in_part_and_is_gone() {
    let scratch = Scratch::new("watch-position");
    let options = [("watch", "1s"), ("watch.settle", "0s")];
    let path = scratch.path("*.csv");
    (0..10).for_each(|file| _ = scratch.write(&format!("{file}.csv"), format!("a\n{file}\n")));
    let mut watch = Watch::new(&path, 1, &options);
    assert_eq!(watch.at(SECOND).len(), 10);
    let all = watch.positions()[0].to_bytes().len();
    (0..9).for_each(|file| fs::remove_file(scratch.path(&format!("{file}.csv"))).unwrap());
    assert!(watch.at(2 * SECOND).is_empty());
    let from = watch.positions();
    assert!(from[0].to_bytes().len() <= all - 9 * 8, "files that are gone are forgotten");
    drop(watch);
    // One that comes again is new, and so is one that was written over.
    scratch.write("3.csv", "a\n33\n");
    scratch.write("9.csv", "a\n98\n99\n");
    let mut watch = Watch::going_on(&path, 1, &options, &from).unwrap();
    watch.clock.set(SECOND);
    let mut found = Vec::new();
    while found.is_empty() {
        found = watch.some(1);
    }
    let from = watch.positions();
    found.extend(watch.some(20));
    found.sort();
    assert_eq!(found, ["33", "98", "99"]);
    drop(watch);
    // The first of them, which is the older one, was read in part, or to its end.
    let refused_with = |what: &str| {
        let error = refused(Watch::going_on(&path, 1, &options, &from).map(drop)).to_string();
        assert!(error.contains("3.csv") && error.contains(what), "{error}");
    };
    scratch.write("3.csv", "a\n34\n35\n");
    refused_with("was replaced since");
    fs::remove_file(scratch.path("3.csv")).unwrap();
    refused_with("is gone");
}
