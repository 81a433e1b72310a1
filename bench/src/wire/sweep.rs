//! Which figures the report has.

use std::sync::Arc;
use std::time::Duration;

use channel::{LinkError, RingConfig, Transfer, Tuning};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::{Fabric, Publish};

use super::published::{Published, ReadSetup};
use super::raw;
use super::run::{LinkSetup, StreamRun, Wait, ping, stream};
use super::sends::{SendRun, sends};
use super::{Effort, RoundTimes, Transport, WireError, bars, scatter};
use crate::report::{
    Axis, Bar, FigureOrigin, FigureReport, Plot, ReportSection, ReportTable, Series,
};

/// Bytes of messages that streams are of.
const STREAM_SIZES: [usize; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, FULL, 256 << 10, 1 << 20];
/// Bytes of messages that are written, read and sent.
const SEND_SIZES: [usize; 3] = [64, 256, 1 << 10];
/// Bytes of messages that go to and fro.
const PING_SIZES: [usize; 6] = [8, 64, 256, 4 << 10, 16 << 10, FULL];
/// A full slot of the usual 64 KiB.
const FULL: usize = (64 << 10) - 64;
/// Bytes of blocks of published memory that are read, and how many are on their way at a time.
const BLOCK_SIZES: [usize; 5] = [2 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
const WINDOWS: [usize; 4] = [1, 2, 4, 10];
/// Rounds of a ping at least and at most.
const ROUNDS: (u32, u32) = (40, 200_000);

const MODES: [(Publish, &str); 3] = [
    (Publish::InOrderPoll, "A: the last word is polled"),
    (Publish::Notify, "B: a notice a flush"),
    (Publish::NotifyCounted, "C: a notice a write"),
];

/// One transport under measurement.
struct SweepRunner<'a> {
    transport: &'a Transport,
    fabric: Arc<dyn Fabric>,
    effort: Effort,
}

pub(super) fn measure(transports: &[Transport], effort: Effort) -> FigureReport {
    let mut limits = Limits::default();
    let mut about = vec![
        "Two threads of one process on two processors, joined by nothing but the transport; the \
         receiver reads every byte."
            .into(),
        format!("Medians of {} runs of {} ms.", effort.runs, effort.span.as_millis()),
    ];
    let (mut sections, mut rates, mut ways) = (Vec::new(), Vec::new(), Vec::new());
    let mut met = Vec::new();
    for transport in transports {
        let fabric = match (transport.open)(None) {
            Ok(fabric) => fabric,
            Err(error) => {
                about.push(format!("{}: NOT MEASURED: {error}", transport.name));
                continue;
            }
        };
        let bench = SweepRunner { transport, fabric, effort };
        let failed = |error: WireError| format!("{}: NOT MEASURED: {error}", transport.name);
        match bench.bars(&mut limits) {
            Ok(bars) => met.extend(bars),
            Err(error) => {
                about.push(failed(error));
                met.push(bars::unmeasured(&transport.name));
            }
        }
        sections.push(bench.section(&mut rates, &mut ways));
    }
    let mut first = limits.section(met);
    let bytes = || Axis::log("bytes of a message");
    first.plots = vec![
        Plot { title: "Streams".into(), x: bytes(), y: Axis::log("GB/s"), series: rates },
        Plot { title: "One way, median".into(), x: bytes(), y: Axis::log("ns"), series: ways },
    ];
    sections.insert(0, first);
    if transports.iter().any(|transport| transport.name == "shm") {
        sections.push(scatter::section(effort));
    }
    FigureReport { title: "Wires".into(), about, sections }
}

/// Limits of the machine, each with all its measurements.
#[derive(Default)]
struct Limits(Vec<(String, String, Vec<f64>)>);

impl Limits {
    fn add(&mut self, name: &str, unit: &str, value: f64) {
        match self.0.iter_mut().find(|limit| limit.0 == name) {
            Some(limit) => limit.2.push(value),
            None => self.0.push((name.into(), unit.into(), vec![value])),
        }
    }

    fn section(&self, bars: Vec<Bar>) -> ReportSection {
        let columns = ["limit", "median", "least", "greatest", "unit"].map(String::from).to_vec();
        let rows = self.0.iter().map(|(name, unit, values)| {
            let at = |share| number(quantile(values, share));
            vec![name.clone(), at(0.5), at(0.0), at(1.0), unit.clone()]
        });
        let table = ReportTable {
            title: "What the machine does without a transport".into(),
            columns,
            rows: rows.collect(),
        };
        let text = vec![
            "Where a line of cache and a socket take longer, so does every transport: virtual \
             processors move."
                .into(),
        ];
        ReportSection {
            title: "Limits and bars".into(),
            text,
            bars,
            tables: vec![table],
            plots: vec![],
        }
    }
}

impl SweepRunner<'_> {
    fn stream(&self, setup: &LinkSetup) -> Result<StreamRun, WireError> {
        self.stream_over(&self.fabric, setup)
    }

    /// The run of median rate.
    fn stream_over(
        &self,
        fabric: &Arc<dyn Fabric>,
        setup: &LinkSetup,
    ) -> Result<StreamRun, WireError> {
        let runs = (0..self.effort.runs).map(|_| stream(&**fabric, setup, self.effort.span));
        let mut runs: Vec<StreamRun> =
            runs.collect::<Result<_, _>>().map_err(|source| self.failed(source))?;
        runs.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        Ok(runs[runs.len() / 2])
    }

    fn ping(&self, setup: &LinkSetup) -> Result<RoundTimes, WireError> {
        self.ping_over(&self.fabric, setup)
    }

    /// As many rounds as fit the time of all runs together.
    fn ping_over(
        &self,
        fabric: &Arc<dyn Fabric>,
        setup: &LinkSetup,
    ) -> Result<RoundTimes, WireError> {
        let failed = |source| self.failed(source);
        let first = ping(&**fabric, setup, ROUNDS.0).map_err(failed)?;
        let span = self.effort.span.as_nanos() as f64 * self.effort.runs as f64;
        let rounds = (span / (2.0 * first.p50())) as u32;
        ping(&**fabric, setup, rounds.clamp(ROUNDS.0, ROUNDS.1)).map_err(failed)
    }

    fn failed(&self, source: LinkError) -> WireError {
        WireError::Link { transport: self.transport.name.clone(), source }
    }

    /// The targets of this transport, measured in turns with the limits.
    fn bars(&self, limits: &mut Limits) -> Result<Vec<Bar>, WireError> {
        match self.transport.name.as_str() {
            "shm" => self.shm_bars(limits),
            "tcp" => self.tcp_bars(limits),
            _ => Ok(Vec::new()),
        }
    }

    fn shm_bars(&self, limits: &mut Limits) -> Result<Vec<Bar>, WireError> {
        let memory = ShmFabric::new(ShmOptions { prefault: true, ..ShmOptions::default() })
            .map_err(|error| WireError::Raw(error.to_string()))?;
        let (mut shares, mut ways, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.turns() {
            let bare = raw::ring(&*memory, 64 << 10, 8, self.effort.span)
                .map_err(|error| WireError::Raw(error.to_string()))?;
            limits.add("ring of 8 slots of 64 KiB in shared memory", "GB/s", bare / 1e9);
            let ours = stream(&*self.fabric, &LinkSetup::of(FULL), self.effort.span);
            shares.push(ours.map_err(|source| self.failed(source))?.rate() / bare);
            let line = raw::ping_pong(20_000).p50();
            limits.add("cache line, one way", "ns", line);
            lines.push(line);
            ways.push(self.ping(&LinkSetup::of(64))?.p50());
        }
        let [share, way, line] = [&shares, &ways, &lines].map(|values| quantile(values, 0.5));
        Ok(vec![bars::share_of_a_ring(share), bars::one_way(way, line)])
    }

    fn tcp_bars(&self, limits: &mut Limits) -> Result<Vec<Bar>, WireError> {
        let raw_error = |error: std::io::Error| WireError::Raw(error.to_string());
        let (mut shares, mut slower) = (Vec::new(), Vec::new());
        let mut installed = true;
        for _ in 0..self.turns() {
            let bare = raw::socket_stream(self.effort.span).map_err(raw_error)?;
            limits.add("TCP socket, 128 KiB calls that block", "GB/s", bare / 1e9);
            let ours = stream(&*self.fabric, &LinkSetup::of(FULL), self.effort.span);
            let ours = ours.map_err(|source| self.failed(source))?.rate();
            if installed {
                let theirs = raw::iperf3(self.effort.span);
                installed = theirs.is_some();
                if let Some(theirs) = theirs {
                    limits.add("iperf3, one stream", "GB/s", theirs / 1e9);
                    shares.push(ours / theirs);
                }
            }
            let line = raw::socket_ping(64, 1_000, true).map_err(raw_error)?.p50();
            limits.add("TCP socket, one way of 64 bytes, spinning", "ns", line);
            let asleep = raw::socket_ping(64, 200, false).map_err(raw_error)?.p50();
            limits.add("TCP socket, one way of 64 bytes, blocking", "ns", asleep);
            slower.push(self.ping(&LinkSetup::of(64))?.p50() / line);
        }
        let share = installed.then(|| quantile(&shares, 0.5));
        Ok(vec![bars::share_of_iperf3(share), bars::against_a_socket(quantile(&slower, 0.5))])
    }

    fn turns(&self) -> usize {
        self.effort.runs.max(3)
    }

    /// The figures of this transport. A part that fails is named, and the others are measured.
    fn section(&self, rates: &mut Vec<Series>, ways: &mut Vec<Series>) -> ReportSection {
        let caps = self.fabric.caps();
        let text = vec![format!(
            "Publishes by {:?}; {} bytes by value, {} operations outstanding.",
            caps.publish, caps.max_inline, caps.max_ops
        )];
        let title = format!("Transport {}", self.transport.name);
        let mut section = ReportSection { title, text, ..ReportSection::default() };
        let mut take = |part: &str, tables: Result<Vec<ReportTable>, WireError>| match tables {
            Ok(tables) => section.tables.extend(tables),
            Err(error) => section.text.push(format!("{part}: NOT MEASURED: {error}")),
        };
        take("streams by size", self.sizes(rates));
        take("one way by size", self.ways(ways));
        type Part<'a> = fn(&SweepRunner<'a>) -> Result<Vec<ReportTable>, WireError>;
        let parts: [(&str, Part<'_>); 9] = [
            ("credits", |own| Ok(vec![own.credits()?])),
            ("operations that are signalled", |own| own.signals()),
            ("messages that are gathered", |own| Ok(vec![own.gathers()?])),
            ("how the ends wait", |own| own.waits()),
            ("writes and reads", |own| Ok(own.transfers()?.into())),
            ("messages that are sent", |own| Ok(vec![own.sends()?])),
            ("frames by value", |own| Ok(own.inline()?.into())),
            ("publish modes", |own| Ok(own.modes(&LinkSetup::of_slots(4 << 10, 16))?.into())),
            ("published memory", |own| Ok(vec![own.published()?])),
        ];
        for (name, part) in parts {
            take(name, part(self));
        }
        section
    }

    fn sizes(&self, rates: &mut Vec<Series>) -> Result<Vec<ReportTable>, WireError> {
        let mut points = Vec::new();
        let mut sizes = streams("Streams by size of a message, a frame each", "bytes");
        for bytes in STREAM_SIZES.into_iter().filter(|&bytes| self.fits(bytes)) {
            let run = self.stream(&LinkSetup::of(bytes))?;
            points.push((bytes as f64, run.rate() / 1e9));
            sizes.rows.push(stream_row(bytes.to_string(), &run));
        }
        rates.push(self.line(points));
        Ok(vec![sizes])
    }

    fn ways(&self, ways: &mut Vec<Series>) -> Result<Vec<ReportTable>, WireError> {
        let mut points = Vec::new();
        let mut pings = pings("One way by size of a message", "bytes");
        for bytes in PING_SIZES {
            let times = self.ping(&LinkSetup::of(bytes))?;
            points.push((bytes as f64, times.p50()));
            pings.rows.push(ping_row(bytes.to_string(), &times));
        }
        ways.push(self.line(points));
        Ok(vec![pings])
    }

    fn credits(&self) -> Result<ReportTable, WireError> {
        let full = LinkSetup::of(FULL);
        let mut credits = streams("Credits: slots of 64 KiB", "slots");
        for slots in [2, 4, 8, 16, 32, 64] {
            let control_slots = if slots < 4 { 1 } else { 2 };
            let ring = RingConfig { slots, control_slots, ..full.ring };
            let run = self.stream(&LinkSetup { ring, ..full })?;
            credits.rows.push(stream_row(slots.to_string(), &run));
        }
        Ok(credits)
    }

    fn signals(&self) -> Result<Vec<ReportTable>, WireError> {
        let setup = LinkSetup::of_slots(4 << 10, 64);
        let mut signals =
            streams("One of so many operations is signalled; 64 slots of 4 KiB", "one of");
        for signal_every in [1, 2, 4, 8, 16] {
            let setup = LinkSetup { tuning: Tuning { signal_every, ..setup.tuning }, ..setup };
            signals.rows.push(stream_row(signal_every.to_string(), &self.stream(&setup)?));
        }
        let mut returns =
            streams("Credit of its own after so many slots; 64 slots of 4 KiB", "slots");
        for credit_slots in [1, 4, 16, 32] {
            let setup = LinkSetup { tuning: Tuning { credit_slots, ..setup.tuning }, ..setup };
            returns.rows.push(stream_row(credit_slots.to_string(), &self.stream(&setup)?));
        }
        Ok(vec![signals, returns])
    }

    fn gathers(&self) -> Result<ReportTable, WireError> {
        let mut gathers = streams("Messages of 64 bytes, gathered up to", "bytes");
        for gather_bytes in [0, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10] {
            let setup = LinkSetup { gather_bytes, ..LinkSetup::of(64) };
            gathers.rows.push(stream_row(gather_bytes.to_string(), &self.stream(&setup)?));
        }
        Ok(gathers)
    }

    fn waits(&self) -> Result<Vec<ReportTable>, WireError> {
        let (full, small) = (LinkSetup::of(FULL), LinkSetup::of(64));
        let mut waits = streams("Full slots, by how the ends wait", "ends");
        let mut naps = pings("One way of 64 bytes, by how the ends wait", "ends");
        for (wait, name) in [(Wait::Spin, "spin"), (Wait::Block, "block")] {
            waits.rows.push(stream_row(name.into(), &self.stream(&LinkSetup { wait, ..full })?));
            naps.rows.push(ping_row(name.into(), &self.ping(&LinkSetup { wait, ..small })?));
        }
        Ok(vec![waits, naps])
    }

    fn transfers(&self) -> Result<[ReportTable; 2], WireError> {
        let mut rates =
            streams("Slots filled anew, written by the sender or read by the receiver", "by");
        let mut ways = pings("One way of 64 bytes, written or read", "by");
        for (transfer, name) in [(Transfer::Write, "write"), (Transfer::Read, "read")] {
            let with = |setup: LinkSetup| LinkSetup {
                ring: RingConfig { transfer, ..setup.ring },
                ..setup
            };
            // Filled anew each time: what nobody has changed would stay in the reader's cache.
            let filled = LinkSetup { gather_bytes: FULL, ..LinkSetup::of(FULL) };
            rates.rows.push(stream_row(name.into(), &self.stream(&with(filled))?));
            ways.rows.push(ping_row(name.into(), &self.ping(&with(LinkSetup::of(64)))?));
        }
        Ok([rates, ways])
    }

    /// Messages by who moves them: a frame each in a ring, written or read, or sent.
    fn sends(&self) -> Result<ReportTable, WireError> {
        let columns = ["bytes", "by", "GB/s", "M messages/s", "CPU s/GiB"].map(String::from);
        let mut rows = vec![];
        for bytes in SEND_SIZES.into_iter().filter(|&bytes| bytes <= self.fabric.caps().max_send) {
            let mut row = |by: &str, figures: [f64; 3]| {
                let cells = [bytes.to_string(), by.into()].into_iter();
                rows.push(cells.chain(figures.map(number)).collect());
            };
            for (transfer, by) in [(Transfer::Write, "write"), (Transfer::Read, "read")] {
                let setup = LinkSetup::of(bytes);
                let ring = RingConfig { transfer, ..setup.ring };
                // Filled as what is sent is, and no frame for several.
                let run = self.stream(&LinkSetup { ring, gather_bytes: bytes, ..setup })?;
                row(by, [run.rate() / 1e9, run.message_rate() / 1e6, run.cpu_s_per_gib()]);
            }
            let runs = (0..self.effort.runs).map(|_| sends(&*self.fabric, bytes, self.effort.span));
            let mut runs: Vec<SendRun> =
                runs.collect::<Result<_, _>>().map_err(|source| self.failed(source))?;
            runs.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
            let Some(run) = runs.get(runs.len() / 2) else { continue };
            row("send", [run.rate() / 1e9, run.message_rate() / 1e6, run.cpu_s_per_gib()]);
        }
        let title = format!(
            "Messages written, read or sent; {} bytes are sent at most",
            self.fabric.caps().max_send
        );
        Ok(ReportTable { title, columns: columns.to_vec(), rows })
    }

    /// Blocks of published memory, read by copies and in place.
    fn published(&self) -> Result<ReportTable, WireError> {
        let failed = |source| self.failed(source);
        let mut published = Published::new(&self.fabric).map_err(failed)?;
        let windows = WINDOWS.iter().map(|window| format!("GB/s, {window} on the way"));
        let columns = [vec!["bytes".to_string()], windows.collect(), vec!["GB/s in place".into()]];
        let mut rows = Vec::new();
        for block_bytes in BLOCK_SIZES.into_iter().filter(|&bytes| self.fits(bytes)) {
            let mut row = vec![block_bytes.to_string()];
            for window in WINDOWS.map(Some).into_iter().chain([None]) {
                let setup = ReadSetup { block_bytes, window };
                let mut rates = Vec::new();
                for _ in 0..self.effort.runs {
                    let run = published.read(setup, self.effort.span).map_err(failed)?;
                    rates.extend(run.map(|run| run.rate() / 1e9));
                }
                let none = rates.is_empty();
                row.push(if none { "-".into() } else { number(quantile(&rates, 0.5)) });
            }
            rows.push(row);
        }
        let title = "Reads of published memory, by bytes of a block".into();
        Ok(ReportTable { title, columns: columns.concat(), rows })
    }

    fn inline(&self) -> Result<[ReportTable; 2], WireError> {
        let mut rates = streams("Frames of 128 bytes, by value or fetched", "source");
        let mut ways = pings("One way of 64 bytes, by value or fetched", "source");
        for (inline_bytes, name) in [(0, "fetched"), (220, "by value")] {
            let setup = LinkSetup::of(64);
            let setup = LinkSetup { tuning: Tuning { inline_bytes, ..setup.tuning }, ..setup };
            rates.rows.push(stream_row(name.into(), &self.stream(&setup)?));
            ways.rows.push(ping_row(name.into(), &self.ping(&setup)?));
        }
        Ok([rates, ways])
    }

    /// The publish modes that this transport can keep.
    fn modes(&self, page: &LinkSetup) -> Result<[ReportTable; 2], WireError> {
        let mut rates = streams("Publish modes, slots of 4 KiB", "mode");
        let mut ways = pings("Publish modes, one way of 64 bytes", "mode");
        for (publish, name) in MODES {
            let fabric = (self.transport.open)(Some(publish));
            let Some(fabric) = fabric.ok().filter(|fabric| fabric.caps().publish == publish) else {
                continue;
            };
            rates.rows.push(stream_row(name.into(), &self.stream_over(&fabric, page)?));
            ways.rows.push(ping_row(name.into(), &self.ping_over(&fabric, &LinkSetup::of(64))?));
        }
        Ok([rates, ways])
    }

    fn fits(&self, bytes: usize) -> bool {
        bytes + 64 <= self.fabric.caps().max_msg
    }

    fn line(&self, points: Vec<(f64, f64)>) -> Series {
        Series { name: self.transport.name.clone(), origin: FigureOrigin::Measured, points }
    }
}

fn streams(title: &str, first: &str) -> ReportTable {
    let columns = [
        first,
        "GB/s",
        "M messages/s",
        "requests each",
        "completions each",
        "wire bytes each",
        "CPU s/GiB",
        "stalls each",
    ];
    ReportTable {
        title: title.into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
    }
}

fn stream_row(name: String, run: &StreamRun) -> Vec<String> {
    vec![
        name,
        number(run.rate() / 1e9),
        number(run.message_rate() / 1e6),
        number(run.requests()),
        number(run.completions()),
        number(run.wire_bytes()),
        number(run.cpu_s_per_gib()),
        number(run.stalls()),
    ]
}

fn pings(title: &str, first: &str) -> ReportTable {
    let columns = [first, "p50 ns", "p99 ns"].map(String::from).to_vec();
    ReportTable { title: title.into(), columns, rows: Vec::new() }
}

fn ping_row(name: String, times: &RoundTimes) -> Vec<String> {
    vec![name, format!("{:.0}", times.p50()), format!("{:.0}", times.p99())]
}

/// Three digits that count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// The value that a share of all does not exceed.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f64) as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The least that gives figures: for tests and for a first look.
impl Default for Effort {
    fn default() -> Self {
        Self { span: Duration::from_millis(40), runs: 3, peers_max: 64 }
    }
}
