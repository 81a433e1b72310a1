//! I-Store (I10): joins that pull their builds against joins that shuffle both sides, reads that
//! are requested ahead, builds that several processes need, by pull and by multicast, the
//! directory of a table that grows, the star schema on two processes against one and against local
//! memory, a skewed table, and streams that look up a large one.
//!
//! The tables of the star schema lie in memory servers that the caller has started. What needs
//! another network is simulated in virtual time, and said so.

use serde_json::Value;

use super::lists::lists;
use super::probes::{probes, skew};
use super::{
    Figures, PaperScale, Runner, Sweep, about, at_least, cell, measured, plot, report, section,
    within,
};
use super::{table, table_of_text};
use crate::report::{Axis, Bar, FigureOrigin, FigureReport, ReportSection, Series};

/// The scale of the tables in an ordinary sweep: 600,000 lines of orders.
const SCALE: f64 = 0.1;

/// The numbers of strips that are requested ahead.
const AHEAD: [u32; 6] = [1, 2, 4, 6, 8, 10];

/// Bytes of a block of the paper, and how many numbers it has.
const BLOCK_BYTES: f64 = 2048.0;
const STRIP_ROWS: u32 = 256;

/// The targets of pulls against shuffles, with one, two and three joins.
const ASKED: [f64; 3] = [1.0, 2.0, 3.0];

/// A network that is simulated: 100 Gb/s, 2 microseconds from a request to the first byte of its
/// answer, and 40 nanoseconds that an adapter takes for a READ.
const LINK_BYTES_PER_NS: f64 = 12.5;
const LATENCY_NS: f64 = 2000.0;
const READ_NS: f64 = 40.0;

/// Processes that need the same build: as many as in the paper at most.
const RECEIVERS: [u32; 5] = [1, 2, 4, 6, RECEIVERS_MAX];
const RECEIVERS_MAX: u32 = 8;

/// The bytes that two memory servers need for the tables of an ordinary sweep, each, times
/// [`PaperScale::rows`].
pub const SERVER_BYTES: u64 = 512 << 20;

/// The experiments of I-Store over the memory servers at these addresses, which stand behind
/// commas.
pub fn istore(bench: &mut dyn Runner, scale: PaperScale, pool: &str) -> FigureReport {
    let sweep = &mut Sweep { bench, scale, failed: Vec::new() };
    let about = about(sweep, "I-Store");
    let rows = sweep.scale.rows;
    let sections = vec![
        joins(sweep, pool),
        ahead(sweep, pool),
        multicast(sweep, pool),
        lists(pool, rows),
        suite(sweep, pool),
        skew(pool, rows),
        probes(pool, rows),
    ];
    report("I-Store: network-attached memory", about, sections)
}

/// The arguments of a run over tables in the pool.
fn arguments(sweep: &Sweep<'_>, pool: &str, more: &str) -> String {
    let PaperScale { rows, runs, .. } = sweep.scale;
    let scale = (SCALE * rows).max(crate::analytics::SCALE_MIN);
    format!("ssb --from pool --pool {pool} --scale {scale} --repeat {runs} {more}")
}

/// Seconds of a query by an exchange: the median, the least and the greatest.
fn seconds(values: &[Value], query: &str, exchange: &str) -> Option<[f64; 3]> {
    let found = values.iter().find(|of| of["query"] == query && of["exchange"] == exchange)?;
    let of = |name: &str| found["seconds"][name].as_f64();
    Some([of("median")?, of("least")?, of("greatest")?])
}

fn number(values: &[Value], query: &str, exchange: &str, name: &str) -> Option<f64> {
    let found = values.iter().find(|of| of["query"] == query && of["exchange"] == exchange)?;
    Figures(found).number(name)
}

fn range(seconds: Option<[f64; 3]>) -> [String; 2] {
    let ms = |at: usize| cell(seconds.map(|of| of[at] * 1e3), 2);
    [ms(0), format!("{} to {}", ms(1), ms(2))]
}

/// One to three joins, by pulled builds and by a shuffle of both sides.
fn joins(sweep: &mut Sweep<'_>, pool: &str) -> ReportSection {
    let text = "Measured. The lines of orders are joined with customers, parts and suppliers, and \
                grouped. All tables lie in two memory servers of this machine. With pull each \
                process reads the smaller tables itself, and no row travels in front of the \
                groups; with shuffle both sides of each join go to the workers of their keys. \
                Results are held against those of another engine.";
    let mut section = section("Joins", &[text]);
    let mut rows = Vec::new();
    let (mut by_pull, mut by_shuffle) = (Vec::new(), Vec::new());
    for nodes in sweep.nodes().filter(|nodes| *nodes > 1) {
        let more = format!("--nodes {nodes} --exchange pull,shuffle --queries j1,j2,j3 --check");
        let values = sweep.run(&arguments(sweep, pool, &more));
        for (query, (joins, asked)) in ["j1", "j2", "j3"].iter().zip((1_u32..).zip(ASKED)) {
            let [pull, shuffle] =
                ["pull", "shuffle"].map(|exchange| seconds(&values, query, exchange));
            let ratio = pull.zip(shuffle).map(|(pull, shuffle)| shuffle[0] / pull[0]);
            let mib = |exchange: &str, name: &str| {
                cell(number(&values, query, exchange, name).map(|of| of / 1048576.0), 2)
            };
            let mut row = vec![joins.to_string(), nodes.to_string()];
            row.extend(range(pull));
            row.extend([mib("pull", "sent_bytes"), mib("pull", "pool_bytes")]);
            row.extend(range(shuffle));
            row.extend([mib("shuffle", "sent_bytes"), mib("shuffle", "pool_bytes")]);
            row.push(cell(ratio, 2));
            rows.push(row);
            if nodes == 2 {
                by_pull.extend(pull.map(|of| (f64::from(joins), of[0] * 1e3)));
                by_shuffle.extend(shuffle.map(|of| (f64::from(joins), of[0] * 1e3)));
                let what = format!("pull against shuffle, {joins} joins, 2 processes");
                section.bars.push(at_least(what, asked, ratio));
            }
        }
    }
    let columns = [
        "joins",
        "processes",
        "pull, ms",
        "range",
        "sent, MiB",
        "read, MiB",
        "shuffle, ms",
        "range",
        "sent, MiB",
        "read, MiB",
        "times",
    ];
    section.tables.push(table("Pull against shuffle", &columns, rows));
    let (x, y) = (Axis::linear("joins"), Axis::linear("ms"));
    let series = vec![measured("pull", by_pull), measured("shuffle", by_shuffle)];
    section.plots.push(plot("Two processes", x, y, series));
    section.text.append(&mut sweep.failures());
    section
}

/// Reads with 1 to 10 strips on their way.
fn ahead(sweep: &mut Sweep<'_>, pool: &str) -> ReportSection {
    let text = "Measured: one worker reads the tables of the first join over TCP, in strips of 256 \
                rows, whose widest blocks have 2 KiB, with so many strips requested ahead. \
                Simulated, in virtual time: blocks of 2 KiB over 100 Gb/s, with 2 us from a \
                request to its answer and 40 ns of the adapter for each.";
    let mut section = section("Reading ahead", &[text]);
    let (mut rows, mut points, mut simulated_points) = (Vec::new(), Vec::new(), Vec::new());
    for ahead in AHEAD {
        let more = format!(
            "--pool-fabric tcp --strip-rows {STRIP_ROWS} --queries j1 --exchange auto --set \
             millstream.prefetch={ahead}"
        );
        let values = sweep.run(&arguments(sweep, pool, &more));
        let found = seconds(&values, "j1", "auto");
        let blocks = number(&values, "j1", "auto", "pool_blocks");
        let rate = found.zip(blocks).map(|([median, ..], blocks)| blocks / median * 1e-3);
        let simulated = simulated_blocks_per_us(ahead);
        points.extend(rate.map(|rate| (f64::from(ahead), rate)));
        simulated_points.push((f64::from(ahead), simulated));
        let [median, range] = range(found);
        rows.push(vec![ahead.to_string(), median, range, cell(rate, 1), cell(Some(simulated), 2)]);
    }
    section.bars.push(gain("measured, TCP", &points, 3.0));
    section.bars.push(gain("simulated, 100 Gb/s", &simulated_points, 8.0));
    let columns = ["ahead", "ms", "range", "K blocks/s", "simulated, M blocks/s"];
    section.tables.push(table("Strips requested ahead", &columns, rows));
    let (x, y) = (Axis::linear("requested ahead"), Axis::linear("K blocks/s"));
    section.plots.push(plot("TCP", x, y, vec![measured("measured", points)]));
    let (x, y) = (Axis::linear("requested ahead"), Axis::linear("M blocks/s"));
    let name = "simulated".to_owned();
    let series = Series { name, origin: FigureOrigin::Simulated, points: simulated_points };
    section.plots.push(plot("100 Gb/s", x, y, vec![series]));
    section.text.append(&mut sweep.failures());
    section
}

/// Ten requests ahead against one.
fn gain(how: &str, points: &[(f64, f64)], asked: f64) -> Bar {
    let at = |ahead: f64| points.iter().find(|point| point.0 == ahead).map(|point| point.1);
    let times = at(10.0).zip(at(1.0)).map(|(ten, one)| ten / one);
    at_least(format!("10 strips ahead against 1, {how}"), asked, times)
}

/// A large build that 1 to 8 processes need: by pull, and by multicast.
fn multicast(sweep: &mut Sweep<'_>, pool: &str) -> ReportSection {
    let text = "Measured: the lines of orders are the build of a join, which each of 1 to 8 \
                processes needs whole. They are read over TCP, also where the processes are on the \
                machine of the memory servers. With pull each process reads all strips; with \
                multicast each strip is read by one, which passes its rows on along the tree of \
                the broadcast. The memory servers are the same, and passive. More processes than \
                processors share them: the seconds tell what that costs, and not what a network of \
                as many machines would do.";
    let mut section = section("Multicast", &[text]);
    let (mut rows, mut points) = (Vec::new(), [Vec::new(), Vec::new()]);
    for receivers in RECEIVERS {
        let more = format!(
            "--pool-fabric tcp --nodes {receivers} --exchange pull,multicast --queries m1 --check"
        );
        let values = sweep.run(&arguments(sweep, pool, &more));
        let mut row = vec![receivers.to_string()];
        for (way, points) in ["pull", "multicast"].iter().zip(&mut points) {
            let left = number(&values, "m1", way, "pool_bytes").map(|of| of / 1048576.0);
            points.extend(left.map(|left| (f64::from(receivers), left)));
            let sent = number(&values, "m1", way, "sent_bytes").map(|of| of / 1048576.0);
            let [median, range] = range(seconds(&values, "m1", way));
            row.extend([cell(left, 2), cell(sent, 2), median, range]);
        }
        rows.push(row);
    }
    let [pulled, multicast] = points;
    section.bars.push(growth("multicast", &multicast, [0.98, 1.02]));
    let all = f64::from(RECEIVERS_MAX);
    section.bars.push(growth("pull", &pulled, [0.75 * all, 1.1 * all]));
    let columns = [
        "receivers",
        "pull: out of the servers, MiB",
        "sent, MiB",
        "ms",
        "range",
        "multicast: out of the servers, MiB",
        "sent, MiB",
        "ms",
        "range",
    ];
    section.tables.push(table("A build that several processes need", &columns, rows));
    let (x, y) = (Axis::linear("receivers"), Axis::linear("MiB out of the servers"));
    let series = vec![measured("pull", pulled), measured("multicast", multicast)];
    section.plots.push(plot("Bytes that leave the memory servers", x, y, series));
    section.text.append(&mut sweep.failures());
    section
}

/// How many times as many bytes leave the servers with the most receivers as with one.
fn growth(way: &str, points: &[(f64, f64)], asked: [f64; 2]) -> Bar {
    let at = |receivers: u32| {
        points.iter().find(|point| point.0 == f64::from(receivers)).map(|point| point.1)
    };
    let times = at(RECEIVERS_MAX).zip(at(1)).map(|(all, one)| all / one);
    let what = format!("bytes out of the servers, {way}, {RECEIVERS_MAX} receivers against 1");
    within(what, asked, times)
}

/// The queries of the star schema.
const STAR: &str = "q1.1,q1.2,q1.3,q2.1,q2.2,q2.3,q3.1,q3.2,q3.3,q3.4,q4.1,q4.2,q4.3";

/// The star schema from the pool, where it is mapped: by one process and by two, and against the
/// memory of the process.
fn suite(sweep: &mut Sweep<'_>, pool: &str) -> ReportSection {
    let text = "Measured: the 13 queries of the star schema, the tables in two memory servers of \
                this machine, whose memory is mapped; and the same with the tables in the memory \
                of the process. Seconds are sums of medians. Results are held against those of \
                another engine.";
    let mut section = section("Star schema", &[text]);
    let PaperScale { rows, runs, .. } = sweep.scale;
    let scale = (SCALE * rows).max(crate::analytics::SCALE_MIN);
    let queries = format!("--queries {STAR} --check");
    let local = format!("ssb --scale {scale} --repeat {runs} --nodes 1 {queries}");
    let of_pool = [1, 2].map(|nodes| arguments(sweep, pool, &format!("--nodes {nodes} {queries}")));
    let mut total = |text: &str| {
        let values = sweep.run(text);
        let medians = STAR.split(',').map(|query| seconds(&values, query, "auto"));
        medians.map(|of| of.map(|of| of[0])).sum::<Option<f64>>()
    };
    let memory = total(&local);
    let [one, two] = of_pool.map(|text| total(&text));
    let row = |from: &str, nodes: u32, seconds: Option<f64>| {
        vec![from.to_owned(), nodes.to_string(), cell(seconds.map(|of| of * 1e3), 2)]
    };
    let rows = vec![row("memory", 1, memory), row("pool", 1, one), row("pool", 2, two)];
    section.tables.push(table("Star schema", &["from", "processes", "ms"], rows));
    let times = one.zip(two).map(|(one, two)| one / two);
    let what = "star schema from the pool, two processes against one";
    section.bars.push(at_least(what.into(), 1.8, times));
    let against = memory.zip(one).map(|(memory, one)| one / memory);
    let what = "star schema from the pool against local memory, one process";
    section.bars.push(within(what.into(), [0.9, 1.1], against));
    section.text.append(&mut sweep.failures());
    section
}

/// Blocks a microsecond of a reader with so many requests on their way: a slot is requested anew
/// when its block has come, and the link carries one block after another.
fn simulated_blocks_per_us(ahead: u32) -> f64 {
    const BLOCKS: usize = 10_000;
    let mut slots = vec![0.0_f64; ahead.max(1) as usize];
    let mut link_free_ns = 0.0_f64;
    for block in 0..BLOCKS {
        let slot = block % slots.len();
        let begins = (slots[slot] + LATENCY_NS).max(link_free_ns);
        link_free_ns = begins + (BLOCK_BYTES / LINK_BYTES_PER_NS).max(READ_NS);
        slots[slot] = link_free_ns;
    }
    BLOCKS as f64 / link_free_ns * 1e3
}

/// The tables of a report as text.
pub fn tables_text(report: &FigureReport) -> String {
    let tables = report.sections.iter().flat_map(|section| &section.tables);
    tables.map(table_of_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ahead_gain_and_bytes_grow_as_asked_or_do_not() {
        let gained = |ten| gain("TCP", &[(1.0, 2.0), (4.0, 9.0), (10.0, ten)], 3.0).met;
        assert_eq!([gained(6.0), gained(5.9)], [Some(true), Some(false)]);
        assert_eq!(gain("TCP", &[(1.0, 2.0)], 3.0).met, None);
        let all = f64::from(RECEIVERS_MAX);
        let grown = |most| growth("multicast", &[(1.0, 10.0), (all, most)], [0.98, 1.02]).met;
        assert_eq!([grown(9.8), grown(10.2)], [Some(true); 2]);
        assert_eq!([grown(9.7), grown(10.3)], [Some(false); 2]);
        assert_eq!(growth("multicast", &[(all, 10.0)], [0.98, 1.02]).met, None);
    }

    #[test]
    fn one_request_waits_and_many_fill_the_link() {
        // A block takes 2,000 ns and 163.84 ns on the link.
        assert!((simulated_blocks_per_us(1) - 1e3 / 2163.84).abs() < 1e-3);
        assert!((simulated_blocks_per_us(10) / simulated_blocks_per_us(1) - 10.0).abs() < 0.1);
        // Fourteen fill the link: 13.2 blocks come in 2,163.84 ns.
        let full = LINK_BYTES_PER_NS / BLOCK_BYTES * 1e3;
        assert!((simulated_blocks_per_us(14) / full - 1.0).abs() < 0.01);
        assert!((simulated_blocks_per_us(64) / full - 1.0).abs() < 0.01);
    }
}
