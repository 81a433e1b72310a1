//! Slash's figures 10a and 10b (S16): one process reads for another, which is stateful.

use super::{Figures, Sweep, at_least, cell, measured, plot, section, table};
use crate::report::{Axis, Bar, ReportSection};

/// The workloads that are read, and their names.
const READ: [(&str, &str); 2] = [("ro", "RO, 10 M keys"), ("ysb", "YSB, 100 campaigns")];

/// Two processes of two workers: those of the second one only read. One stateful worker would
/// have nobody to divide keys with.
const LAYOUT: &str = "--nodes 2 --workers 2 --set millstream.readers=2";

/// Buffers as they are read against rows by their keys: 11.2 GB/s and 5.9 in the paper.
const ASKED: f64 = 1.9;

/// One process only reads.
pub(super) fn ingestion(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes of two workers. Those of the second one only read \
                (millstream.readers): by merge each serves one worker of the first, batch by batch \
                as they were read, which filters, groups and merges; UpPar has it send each row to \
                the worker of its key. Sockets are the same over tcp. Bytes are those that a \
                reader sends.";
    let mut section = section("Ingestion over rings", &[text]);
    let mut rows = Vec::new();
    for (workload, name) in READ {
        for (fabric, by) in [("shm", "rings"), ("tcp", "sockets")] {
            let more = format!("{LAYOUT} --fabric {fabric} --exchange merge,uppar");
            let run = sweep.some_at_once(workload, &more, 0.25);
            let of = |variant| Figures::of(&run, variant);
            for variant in ["merge", "uppar"] {
                let Some(figures) = of(variant) else { continue };
                let (rate, bytes) = (figures.rate(), figures.per_row("bytes_sent"));
                let carried = rate.zip(bytes).map(|(rate, bytes)| rate * bytes * 1e-3);
                let cells = [
                    cell(rate, 1),
                    cell(bytes, 1),
                    cell(carried, 2),
                    cell(figures.number("busy_cycles_per_row"), 1),
                ];
                let names = [name, by, variant].map(str::to_owned);
                rows.push(names.into_iter().chain(cells).collect());
            }
            if fabric == "shm" {
                let rate = |variant| of(variant).and_then(|figures| figures.rate());
                section.bars.push(sent_bar(name, rate("merge"), rate("uppar")));
            }
        }
    }
    let columns = [
        "workload",
        "by",
        "exchange",
        "M records/s",
        "bytes of a record",
        "GB/s",
        "cycles a record",
    ];
    section.tables.push(table("One process reads for another", &columns, rows));
    buffers(sweep, &mut section);
    section.text.append(&mut sweep.failures());
    section
}

fn sent_bar(name: &str, merge: Option<f64>, uppar: Option<f64>) -> Bar {
    let times = merge.zip(uppar).map(|(merge, uppar)| merge / uppar);
    at_least(
        format!("{name}: rows of a process that only reads, merge against UpPar"),
        ASKED,
        times,
    )
}

/// Throughput and latency by the bytes of a slot.
fn buffers(sweep: &mut Sweep<'_>, section: &mut ReportSection) {
    let mut rates = [vec![], vec![]];
    let (mut medians, mut tails) = (vec![], vec![]);
    for kib in [4, 16, 64, 256, 1024] {
        let slot = format!("{LAYOUT} --slot-bytes {kib}KiB");
        let run = sweep.some_at_once("ro", &format!("{slot} --exchange merge,uppar"), 0.25);
        for (rates, variant) in rates.iter_mut().zip(["merge", "uppar"]) {
            let rate = Figures::of(&run, variant).and_then(|figures| figures.rate());
            rates.extend(rate.map(|rate| (f64::from(kib), rate)));
        }
        let [median, tail] = sweep.latency_of_cm(&slot);
        medians.extend(median.map(|ms| (f64::from(kib), ms)));
        tails.extend(tail.map(|ms| (f64::from(kib), ms)));
    }
    let x = || Axis::log("KiB of a slot");
    let [merge, uppar] = rates;
    let series = vec![measured("merge", merge), measured("UpPar", uppar)];
    section.plots.push(plot(
        "RO, read by another process",
        x(),
        Axis::linear("M records/s"),
        series,
    ));
    let series = vec![measured("median", medians), measured("p99", tails)];
    section.plots.push(plot("CM, read by another process: latency", x(), Axis::log("ms"), series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_much_faster_as_in_the_paper_or_is_not() {
        let met = |merge, uppar| sent_bar("RO", merge, uppar).met;
        assert_eq!(met(Some(19.0), Some(10.0)), Some(true));
        assert_eq!(met(Some(18.9), Some(10.0)), Some(false));
        assert_eq!([met(None, Some(1.0)), met(Some(1.0), None)], [None; 2]);
    }
}
