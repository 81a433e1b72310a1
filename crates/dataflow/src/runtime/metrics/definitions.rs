//! All metrics of workers and operators. A new one is a line here and the code that counts it.

use std::sync::{Arc, OnceLock};

use state::KeyModes;

use crate::connector::backlog::SourceBacklog;
use crate::connector::gauge::SinkGauge;
use crate::runtime::metrics::metric::{
    CellValue, Metric, MetricKind, MetricUnit, Snapshot, metrics,
};

metrics! {
    /// The counters of one worker. That worker alone writes them, with relaxed stores: each is
    /// right by itself, and a reader sees it late by microseconds.
    live Metrics { operators: OnceLock<Box<[OperatorMetrics]>>, }
    /// A snapshot of the metrics of a worker, or their sum over several.
    snapshot Counters
    counted {
        rows_in: u64 = Counter("input_rows", Count, "Rows read from sources.");
        bytes_in: u64 = Counter("input_bytes", Bytes, "Bytes of Arrow buffers read from sources.");
        splits_done: u64 =
            Counter("splits_done", Count, "Splits of bounded input read to their end.");
        skipped_row_groups: u64 = Counter("skipped_row_groups", Count,
            "Row groups of which no row was read because a Bloom filter or the page index says \
             that none matches.");
        skipped_pages: u64 = Counter("skipped_pages", Count,
            "Pages that were not read because the page index says that no row matches.");
        skipped_rows: u64 = Counter("skipped_rows", Count,
            "Rows of row groups that were opened which sources did not give because they cannot \
             match.");
        pool_blocks: u64 = Counter("pool_blocks", Count,
            "Blocks of tables of a pool that were read, also where they lay mapped.");
        pool_bytes: u64 = Counter("pool_bytes", Bytes, "Bytes of these blocks.");
        pool_mapped_blocks: u64 = Counter("pool_mapped_blocks", Count,
            "Those of these blocks that were read in mapped memory, without a copy.");
        pool_pruned_blocks: u64 = Counter("pool_pruned_blocks", Count,
            "Blocks that were not read because the bounds of their strip, or the build of a join, \
             say that no row matches.");
        pool_waits: u64 = Counter("pool_waits", Count,
            "How often readers waited for blocks that they had requested ahead.");
        pool_wait_ns: u64 = Counter("pool_wait_seconds", Nanoseconds,
            "Time from the beginning of such a wait until the blocks were there.");
        pool_leases: u64 = Gauge("pool_leases", Count,
            "Readers of splits that hold a version of a table of a pool now.");
        late: u64 = Counter("late_rows", Count, "Rows that came too late for their window.");
        busy_ns: u64 =
            Counter("busy_seconds", Nanoseconds, "Time in which the worker had work.");
        backpressured_ns: u64 = Counter("backpressured_seconds", Nanoseconds,
            "Time in which the worker waited for other workers to take what it had sent, or for a \
             sink, and had nothing else to do.");
        idle_ns: u64 =
            Counter("idle_seconds", Nanoseconds, "Time in which the worker had nothing to do.");
        watermark_ms: i64 = Gauge("watermark_seconds", Watermark,
            "The watermark in seconds since 1970; absent before the first and after the last.");
        epochs: u64 = Counter("epochs", Count, "Epochs closed.");
        groups_sent: u64 = Counter("delta_groups", Count,
            "Groups sent to their leaders, when epochs ended or of frequent keys.");
        windows: u64 = Counter("windows", Count,
            "Windows triggered by groupings, joins and rankings, counted once per leader.");
        state_bytes: u64 = Gauge("state_bytes", Bytes, "Bytes of state now.");
        state_bytes_peak: u64 = Peak("state_peak_bytes", Bytes, "Most bytes of state in the job.");
        spilled_runs: u64 =
            Counter("spilled_runs", Count, "Runs of groups and rows written to disk.");
        spilled_bytes: u64 = Counter("spilled_bytes", Bytes,
            "Bytes of groups and rows written to disk because they did not fit memory.");
        unspilled_bytes: u64 = Counter("unspilled_bytes", Bytes,
            "Bytes of groups and rows read back from disk.");
        saved_round: u64 = Gauge("saved_round", Round,
            "The last round that all operators of the worker have saved; absent before the first, \
             and when they have ended.");
        saved_state_bytes: u64 = Gauge("saved_state_bytes", Bytes,
            "Bytes of the state that they have saved last.");
        save_ns: u64 = Counter("save_seconds", Nanoseconds,
            "Time in which the worker saved operators and staged rows of sinks, and did nothing \
             else.");
        save_peak_ns: u64 = Peak("save_peak_seconds", Longest,
            "The longest such time in one round.");
        align_peak_ns: u64 = Peak("align_peak_seconds", Longest,
            "The longest time from the first marker of a round that came to an operator until the \
             last had.");
        frames_sent: u64 =
            Counter("sent_frames", Count, "Frames sent to workers of other processes.");
        bytes_sent: u64 =
            Counter("sent_bytes", Bytes, "Bytes sent to workers of other processes.");
        reconnected_links: u64 = Counter("reconnected_links", Count,
            "Links to workers of other processes that went on over another connection because \
             theirs broke.");
        local_rows: u64 = Counter("local_exchange_rows", Count,
            "Rows passed by reference to other workers of the process.");
        local_bytes: u64 = Counter("local_exchange_bytes", Bytes,
            "Bytes of rows and of partial states passed by reference to other workers of the \
             process.");
        broadcast_frames: u64 = Counter("broadcast_frames", Count,
            "Frames of rows for every worker, sent to other processes.");
        broadcast_bytes: u64 = Counter("broadcast_bytes", Bytes,
            "Bytes of rows for every worker, sent to other processes: the worker's own, and those \
             that it relayed. A payload that the network copies counts once.");
        broadcast_multicast: u64 = Counter("broadcast_multicast", Count,
            "Payloads of its rows for every worker that went to all processes by the network's \
             multicast.");
        broadcast_multicast_received: u64 = Counter("broadcast_multicast_received", Count,
            "Payloads of rows for every worker that came by the network's multicast.");
        broadcast_fetched: u64 = Counter("broadcast_fetched", Count,
            "Payloads of rows for every worker that did not come by the network's multicast, and \
             were fetched.");
        broadcast_encode_ns: u64 = Counter("broadcast_encode_seconds", Nanoseconds,
            "Time in which the worker encoded its own rows for every worker.");
        broadcast_send_ns: u64 = Counter("broadcast_send_seconds", Nanoseconds,
            "Time in which the worker wrote its own rows for every worker into rings.");
        tree_changes: u64 = Counter("broadcast_tree_changes", Count,
            "Changes of the tree by which its rows reach every worker.");
        cpu_ns: u64 = Counter("cpu_seconds", Nanoseconds,
            "Processor time of the worker, known when it has ended.");
        cycles: u64 = Counter("processor_cycles", Hardware,
            "Cycles of the processor outside the kernel, known when the worker has ended; absent \
             without millstream.hardware_counters.");
        instructions: u64 = Counter("processor_instructions", Hardware,
            "Instructions of the worker outside the kernel, known when the worker has ended; \
             absent without millstream.hardware_counters.");
        l1_misses: u64 = Counter("processor_l1_misses", Hardware,
            "Reads that the first-level data cache did not have, known when the worker has ended; \
             absent without millstream.hardware_counters.");
        llc_misses: u64 = Counter("processor_llc_misses", Hardware,
            "Misses of the last level of the caches, known when the worker has ended; absent \
             without millstream.hardware_counters.");
        branch_misses: u64 = Counter("processor_branch_misses", Hardware,
            "Branches that the processor predicted wrongly, known when the worker has ended; \
             absent without millstream.hardware_counters.");
    }
    derived {
        rows_out: u64 = Counter("output_rows", Count, "Rows that have reached sinks.");
        pending_records: u64 = Gauge("pending_records", Count,
            "Records that its sources have and it has not read, of sources that know that: the lag \
             of a consumer.");
        unreachable_flows: u64 = Gauge("unreachable_flows", Count,
            "Flows that it reads whose server cannot be reached now.");
        pending_bytes: u64 = Gauge("pending_bytes", Bytes,
            "Bytes of logs that its sources have and it has not read: how far a replication slot \
             is behind.");
        retained_bytes: u64 = Gauge("retained_bytes", Bytes,
            "Bytes of logs that servers keep for its sources, since no checkpoint has them.");
    }
}

metrics! {
    /// The counters of one operator on one worker.
    ///
    /// Rows are pushed, so the time of an operator is that of its own coroutines: with what is
    /// behind it up to the next operator that keeps rows, and without what pushes rows into it. A
    /// frame of another worker costs the operator that it is for.
    live OperatorMetrics {
        sink: OnceLock<Arc<SinkGauge>>, backlog: OnceLock<Arc<SourceBacklog>>,
    }
    /// A snapshot of the metrics of an operator on one worker.
    snapshot OperatorCounters
    counted {
        busy_ns: u64 =
            Counter("busy_seconds", Nanoseconds, "Time in which the operator had work.");
        backpressured_ns: u64 = Counter("backpressured_seconds", Nanoseconds,
            "Time in which the operator waited for other workers to take what it had sent, or for \
             its sink, and the worker had nothing else to do.");
        window_wait_ns: u64 = Counter("window_wait_seconds", Nanoseconds,
            "The part of backpressured_seconds in which rows that it had sent waited to be \
             processed, and filled the receive window of a worker.");
        rows_in: u64 = Counter("input_rows", Count,
            "Rows that came to the operator on this worker, before the exchange.");
        rows_out: u64 =
            Counter("output_rows", Count, "Rows that the operator emitted on this worker.");
        watermark_ms: i64 = Gauge("watermark_seconds", Watermark,
            "The watermark of its output in seconds since 1970; absent before the first and after \
             the last.");
        state_bytes: u64 = Gauge("state_bytes", Bytes, "Bytes of its state now.");
        key_modes: KeyModes =
            Gauge("key_modes", KeyModes, "How it has found the groups of rows.");
        windows: u64 = Counter("windows", Count, "Windows of which it emitted groups.");
        rows_fused: u64 = Counter("fused_rows", Count,
            "Rows of a source that one loop filtered and aggregated as it read them.");
        rows_combined: u64 = Counter("combined_rows", Count,
            "Rows of frequent keys that it aggregated in front of a shuffle, where it read them.");
        spilled_runs: u64 = Counter("spilled_runs", Count,
            "Runs of its groups or rows that it wrote to disk.");
        spilled_bytes: u64 = Counter("spilled_bytes", Bytes, "Bytes of these runs.");
        saved_round: u64 = Gauge("saved_round", Round,
            "The last round that it has saved; absent before the first, and when it has ended.");
        saved_state_bytes: u64 =
            Gauge("saved_state_bytes", Bytes, "Bytes of the state that it has saved last.");
        save_ns: u64 = Counter("save_seconds", Nanoseconds,
            "Time in which it saved its state, or staged its rows.");
        align_ns: u64 = Counter("align_seconds", Nanoseconds,
            "Time from the first marker of a round that came to it until the last had, of its \
             inputs on this worker and of all others.");
        build_rows: u64 = Counter("build_rows", Count,
            "Rows of the build of a hash join that came to this worker.");
        probe_rows: u64 = Counter("probe_rows", Count,
            "Rows of the probe side of a hash join that this worker looked up.");
        chain_rows: u64 = Counter("chain_rows", Count,
            "Rows that this worker looked up in the build of a join while they passed all joins \
             of a chain at once.");
        order_changes: u64 = Counter("chain_order_changes", Count,
            "How often this worker changed the order in which a chain of joins, of which the \
             operator is the first, looks up its builds.");
        build_wait_ns: u64 = Counter("build_wait_seconds", Nanoseconds,
            "Time in which the probe side of a hash join waited for its build to be whole: from \
             its first row on, or from when a scan could be read that skips rows without a \
             partner.");
        unmatched_rows: u64 = Counter("unmatched_rows", Count,
            "Rows of a source that it skipped because a build in which they are looked up does \
             not have their key.");
        pool_blocks: u64 = Counter("pool_blocks", Count,
            "Blocks of tables of a pool that it read, also where they lay mapped.");
        pool_bytes: u64 = Counter("pool_bytes", Bytes, "Bytes of these blocks.");
        pool_mapped_blocks: u64 = Counter("pool_mapped_blocks", Count,
            "Those of these blocks that it read in mapped memory, without a copy.");
        pool_pruned_blocks: u64 = Counter("pool_pruned_blocks", Count,
            "Blocks that it did not read because the bounds of their strip, or the build of a \
             join, say that no row matches.");
        pool_waits: u64 = Counter("pool_waits", Count,
            "How often it waited for blocks that it had requested ahead.");
        pool_wait_ns: u64 = Counter("pool_wait_seconds", Nanoseconds,
            "Time from the beginning of such a wait until the blocks were there.");
        pool_leases: u64 = Gauge("pool_leases", Count,
            "Its readers of splits that hold a version of a table of a pool now.");
        rows_sent: u64 = Counter("sent_rows", Count,
            "Rows that it sent to workers of other processes.");
        row_bytes_sent: u64 = Counter("sent_row_bytes", Bytes, "Bytes of these rows as encoded.");
        local_rows: u64 = Counter("local_exchange_rows", Count,
            "Rows that it passed by reference to other workers of the process.");
        epochs: u64 = Counter("epochs", Count, "Epochs that it closed, if it merges.");
        groups_sent: u64 = Counter("delta_groups", Count,
            "Groups that it sent to their leaders, when epochs ended or of frequent keys.");
        delta_bytes: u64 = Counter("delta_bytes", Bytes, "Bytes of these groups as encoded.");
        epoch_bytes: u64 = Gauge("epoch_bytes", Bytes,
            "Bytes of input after which its present epoch ends.");
    }
    derived {
        pending_records: u64 = Gauge("pending_records", Count,
            "Records that the source has and it has not read, if the source knows that.");
        unreachable_flows: u64 = Gauge("unreachable_flows", Count,
            "Flows of the source whose server cannot be reached now.");
        pending_bytes: u64 = Gauge("pending_bytes", Bytes,
            "Bytes of its log that the source has and it has not read: how far a replication slot \
             is behind.");
        retained_bytes: u64 = Gauge("retained_bytes", Bytes,
            "Bytes of its log that a server keeps for the source, since no checkpoint has them.");
    }
}
