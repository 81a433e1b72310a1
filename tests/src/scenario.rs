//! A random stream with a random query, ready to run on any cluster by any exchange.

use std::sync::Arc;

use dataflow::error::DataflowError;
use dataflow::job::Exchange;
use plan::{Planner, Stage, Workers};

use crate::cluster::{Cluster, Run};
use crate::memory::Memory;
use crate::random::{
    Aggregate, BESIDE_COLUMNS, COLUMNS, DELAY_MS, IDLE_MS, Key, Query, Random, Stream, beside,
    query, stream,
};
use crate::rows::sorted;

/// A stream and a query.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed that made it.
    pub seed: u64,
    /// The rows.
    pub stream: Stream,
    /// What is asked of them.
    pub query: Query,
}

/// What the engine answered.
#[derive(Debug)]
pub struct Answer {
    /// The rows, sorted.
    pub rows: Vec<String>,
    /// Rows counted as late.
    pub late: u64,
    /// How the run went.
    pub run: Run,
}

impl Scenario {
    /// The scenario of a seed. Without a window the stream is bounded.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut stream = stream(&mut random);
        let windowed = random.chance(80);
        if !windowed {
            stream.table.bounded = true;
        }
        let mut query = query(&mut random, windowed);
        if stream.idle {
            // Every row can be accounted for, on time or late.
            query.aggregates = vec![Aggregate::SumV, Aggregate::Count];
            query.more_than = None;
        }
        Self { seed, stream, query }
    }

    /// The script that the engine runs.
    pub fn script(&self, exchange: Exchange, epoch_bytes: u64) -> String {
        let idle = match self.stream.idle {
            true => format!("IDLE TIMEOUT INTERVAL '{}' SECOND", IDLE_MS / 1_000),
            false => String::new(),
        };
        let beside = match self.query.keys.contains(&Key::OfB) {
            true => format!("CREATE TABLE b ({BESIDE_COLUMNS}) WITH ('connector' = 'memory');"),
            false => String::new(),
        };
        format!(
            "SET millstream.exchange = {exchange};
             SET millstream.frequent_keys = '{}';
             SET millstream.epoch_bytes = {epoch_bytes};
             SET millstream.epoch_stretch = {};
             SET millstream.epoch_latency = '{} ms';
             CREATE TABLE t ({COLUMNS},
               WATERMARK FOR ts AS ts - INTERVAL '{}' SECOND {idle}) WITH ('connector' = 'memory');
             {beside} {};",
            ["on", "off"][(self.seed % 2) as usize],
            [1, 4, 64][(self.seed % 3) as usize],
            [1, 1_000][(self.seed / 3 % 2) as usize],
            DELAY_MS / 1_000,
            self.query.ours()
        )
    }

    /// Runs it in the simulator.
    ///
    /// # Errors
    /// When a worker fails.
    ///
    /// # Panics
    /// When the script cannot be planned.
    pub fn run(&self, cluster: &Cluster, exchange: Exchange) -> Result<Answer, DataflowError> {
        self.run_with(cluster, exchange, "")
    }

    /// The same with more settings.
    ///
    /// # Errors
    /// When a worker fails.
    ///
    /// # Panics
    /// When the script cannot be planned.
    pub fn run_with(
        &self,
        cluster: &Cluster,
        exchange: Exchange,
        more: &str,
    ) -> Result<Answer, DataflowError> {
        let memory = Memory::new(None);
        memory.add("t", self.stream.table.clone());
        memory.add("b", beside());
        // Small epochs, so that there are many.
        let script = format!("{more} {}", self.script(exchange, 4_096));
        let stage = plan(&memory, &script, cluster.nodes, cluster.workers);
        let run = cluster.run(&Arc::new(stage.job))?;
        let rows = sorted(&memory.all_committed());
        let late = run.sum(|metrics| &metrics.late);
        Ok(Answer { rows, late, run })
    }
}

/// Plans a script of one stage.
///
/// # Panics
/// When it cannot be planned.
pub fn plan(memory: &Memory, script: &str, nodes: u32, per_node: u32) -> Stage {
    let connector = Arc::new(memory.clone());
    let mut planner = Planner::new(vec![connector.clone()], Workers { nodes, per_node });
    planner.set_default_sink(connector, Default::default());
    let mut stages = planner.plan(script).unwrap_or_else(|errors| {
        let errors: Vec<String> =
            errors.iter().map(|error| error.render("test.sql", script, false)).collect();
        panic!("{}", errors.join("\n"))
    });
    assert_eq!(stages.len(), 1, "one stage: {script}");
    stages.remove(0)
}
