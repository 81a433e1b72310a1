//! The workloads without SQL, for programs that compute them by other means.

use crate::workload::Workload;

/// The task of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadTask {
    /// A value for each key in each window.
    Groups(WorkloadGroups),
    /// Rows of one kind for each row of another, for each key in each window that has both.
    Ratio(Ratio),
    /// Rows of two tables with equal keys that are in one window.
    Join(WorkloadJoin),
}

/// Groups of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadGroups {
    /// The table with its rows, in the SQL.
    pub table: &'static str,
    /// The window, if there is one.
    pub window: Option<WorkloadWindow>,
    /// The column of the key, and by what it is divided.
    pub key: (&'static str, i64),
    /// The column of the value, if it matters.
    pub value: Option<&'static str>,
    /// A column and the word that it must have.
    pub filter: Option<(&'static str, &'static str)>,
    /// The aggregate.
    pub answer: WorkloadAggregate,
}

/// Windows of one length, of which one begins every so often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadWindow {
    /// The column of event time.
    pub time: &'static str,
    /// Its length in milliseconds: a multiple of the slide.
    pub size_ms: i64,
    /// Milliseconds from the beginning of one to that of the next.
    pub slide_ms: i64,
}

/// The aggregate over the rows of a key in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadAggregate {
    /// How many there are.
    Count,
    /// The greatest value.
    Max,
    /// The mean of the values.
    Mean,
}

/// How many rows of one kind there are for each row of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    /// The table with its rows, in the SQL.
    pub table: &'static str,
    /// The window.
    pub window: WorkloadWindow,
    /// The column of the key, and by what it is divided.
    pub key: (&'static str, i64),
    /// The column of the kind.
    pub kind: &'static str,
    /// The kinds: what is counted, and for each of which.
    pub kinds: [&'static str; 2],
}

/// Rows of two tables that meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadJoin {
    /// The table whose values are in the result.
    pub left: WorkloadInput,
    /// The column of the value: a whole number.
    pub value: &'static str,
    /// The other table.
    pub right: WorkloadInput,
    /// When rows are together.
    pub span: WorkloadSpan,
}

/// A table that is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadInput {
    /// The table, in the SQL.
    pub table: &'static str,
    /// The column of the key.
    pub key: &'static str,
    /// The column of event time.
    pub time: &'static str,
    /// The other columns that are read.
    pub others: &'static [&'static str],
}

/// When rows of one key are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadSpan {
    /// In one window of this many milliseconds.
    Tumble(i64),
    /// With no pause of more milliseconds between them, in both tables together.
    Session(i64),
}

/// The columns of an auction that NB8 reads, beside its key and the value.
const AUCTION: [&str; 7] =
    ["item_name", "description", "initial_bid", "reserve", "expires", "category", "extra"];

/// The columns of a person that NB8 reads, beside the key.
const PERSON: [&str; 6] = ["name", "email_address", "credit_card", "city", "state", "extra"];

impl WorkloadWindow {
    fn tumble(time: &'static str, size_ms: i64) -> Self {
        Self { time, size_ms, slide_ms: size_ms }
    }
}

impl WorkloadGroups {
    /// The columns that the workload reads: key, time, filter, value.
    pub fn columns(&self) -> Vec<&'static str> {
        let time = self.window.map(|window| window.time);
        let filter = self.filter.map(|(filter, _)| filter);
        [Some(self.key.0), time, filter, self.value].into_iter().flatten().collect()
    }
}

impl Workload {
    /// Its task.
    pub fn task(self) -> WorkloadTask {
        let ysb = WorkloadGroups {
            table: "events",
            window: Some(WorkloadWindow::tumble("event_time", 10_000)),
            key: ("ad_id", 10),
            value: None,
            filter: Some(("event_type", "view")),
            answer: WorkloadAggregate::Count,
        };
        let bids = WorkloadGroups {
            table: "bids",
            window: Some(WorkloadWindow::tumble("date_time", 60_000)),
            key: ("auction", 1),
            value: Some("price"),
            filter: None,
            answer: WorkloadAggregate::Max,
        };
        let side = |table, key, others| WorkloadInput { table, key, time: "date_time", others };
        match self {
            Workload::Ysb => WorkloadTask::Groups(ysb),
            Workload::YsbKeys => WorkloadTask::Groups(WorkloadGroups {
                window: Some(WorkloadWindow::tumble("event_time", 600_000)),
                key: ("key", 1),
                ..ysb
            }),
            Workload::YsbStar => WorkloadTask::Ratio(Ratio {
                table: "events",
                window: WorkloadWindow::tumble("event_time", 10_000),
                key: ("ad_id", 10),
                kind: "event_type",
                kinds: ["click", "view"],
            }),
            Workload::Ro => WorkloadTask::Groups(WorkloadGroups {
                window: None,
                key: ("key", 1),
                filter: None,
                ..ysb
            }),
            Workload::Cm => WorkloadTask::Groups(WorkloadGroups {
                table: "tasks",
                window: Some(WorkloadWindow::tumble("event_time", 2_000)),
                key: ("job_id", 1),
                value: Some("cpu"),
                filter: None,
                answer: WorkloadAggregate::Mean,
            }),
            Workload::Nb7 => WorkloadTask::Groups(bids),
            Workload::Swa => WorkloadTask::Groups(WorkloadGroups {
                window: Some(WorkloadWindow {
                    time: "event_time",
                    size_ms: 10_000,
                    slide_ms: 2_000,
                }),
                key: ("ad_id", 1),
                filter: None,
                ..ysb
            }),
            Workload::Nb8 => WorkloadTask::Join(WorkloadJoin {
                left: side("auctions", "seller", &AUCTION),
                value: "id",
                right: side("persons", "id", &PERSON),
                span: WorkloadSpan::Tumble(12 * 3_600_000),
            }),
            Workload::Nb11 => WorkloadTask::Join(WorkloadJoin {
                left: side("bids", "bidder", &["auction"]),
                value: "price",
                right: side("persons", "id", &["name"]),
                span: WorkloadSpan::Session(10_000),
            }),
        }
    }

    /// The windows of its result, if they begin at `window_start` and have one length.
    pub fn window(self) -> Option<WorkloadWindow> {
        match self.task() {
            WorkloadTask::Groups(shape) => shape.window,
            WorkloadTask::Ratio(ratio) => Some(ratio.window),
            WorkloadTask::Join(_) => None,
        }
    }
}
