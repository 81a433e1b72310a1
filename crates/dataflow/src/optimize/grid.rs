//! Gives each process a cell of a table that its joins divide (I7).
//!
//! ```text
//! facts, in buckets of a and of b ─▶ join with A by a ─▶ join with B by b
//!                 b = 0   b = 1          the process of a cell needs the buckets of A in its row,
//!         a = 0     0       1            and those of B in its column: A is read by two processes
//!         a = 1     2       3            per bucket and not by four, and so is B
//! ```
//!
//! A build that is pulled is read whole by each process, and one that is multicast goes to each.
//! Where it is stored by buckets of the key, and so are the rows that are looked up in it, a
//! process that has some buckets of those needs the same buckets of the build. The parts of each
//! key are chosen so that all processes together read the fewest bytes of builds; no row travels
//! for it.
//!
//! Nothing is changed in a job in which rows stay on their worker because their table is stored by
//! a key: it may be this one.

use std::sync::Arc;

use state::NullKeys;

use crate::connector::source::{BucketColumn, Source};
use crate::job::hash_join::{BUILD, PROBE, Variant};
use crate::job::{
    BuildCells, BuildMulticast, Distribution, Edge, Exchange, GridAxis, JobGraph, Operator,
    OperatorKind, Scan,
};

/// How much of the mean a process may have to read of its cell, in per cent.
const UNEVEN_MAX_PERCENT: u64 = 150;

/// Divides the tables of a job among its processes, where pulled builds are stored by their keys.
pub fn divide(job: &mut JobGraph, processes: u32) {
    // Buckets are powers of two.
    if processes < 2 || !processes.is_power_of_two() || job.operators.iter().any(relies) {
        return;
    }
    for facts in 0..job.operators.len() {
        let builds = builds_of(&job.operators, facts);
        let Some(axes) = axes_of(&builds, processes) else { continue };
        let Some(scan) = scan_of(&job.operators, facts) else { continue };
        let Some(divided) = in_cells(scan, &axes, processes) else { continue };
        job.operators[facts].kind = OperatorKind::Source(divided);
        for build in &builds {
            let Some(axis) = axes.iter().find(|axis| axis.column == build.of_facts) else {
                continue;
            };
            give_part(job, build, GridAxis { column: build.column, ..*axis }, processes);
        }
    }
}

/// Gives each process its part of a build: it reads no more, or gets no more from the process that
/// reads for all.
fn give_part(job: &mut JobGraph, build: &DividedBuild, axis: GridAxis, processes: u32) {
    let OperatorKind::Source(scan) = &mut job.operators[build.scan].kind else { return };
    if scan.is_pulled {
        scan.grid = vec![axis];
        return;
    }
    let Some(buckets) = scan.source.row_buckets(axis.column) else { return };
    let OperatorKind::HashJoin(join) = &mut job.operators[build.join].kind else { return };
    let (key, bits) = (build.key, build.own_bits);
    let cells = BuildCells { key, buckets, bits, axis, processes };
    join.multicast = Some(BuildMulticast { cells: Some(Arc::new(cells)) });
}

/// Whether rows stay in an operator that would else be led by their keys, or if only some workers
/// read.
fn relies(operator: &Operator) -> bool {
    let spec = operator.spec();
    let Some(exchange) = spec.exchange() else { return false };
    let stays = |input| spec.distribution(input) == Some(Distribution::Local);
    let is_fixed = matches!(exchange, Exchange::Forward | Exchange::UpPar);
    is_fixed || (0..operator.inputs.len()).any(stays)
}

/// A pulled build, or one that is multicast, which is stored by the key by which rows of a table
/// are looked up in it.
#[derive(Debug, Clone, Copy)]
struct DividedBuild {
    /// The join, and the key among the columns of its build.
    join: usize,
    key: usize,
    /// The scan of the build, and its column.
    scan: usize,
    column: usize,
    /// Buckets of the build, as a power of two.
    own_bits: u8,
    /// The column of the table.
    of_facts: usize,
    /// Buckets of both at most, as a power of two.
    bits: u8,
    bytes: u64,
}

fn scan_of(operators: &[Operator], at: usize) -> Option<&Scan> {
    match &operators[at].kind {
        OperatorKind::Source(scan) => Some(scan),
        _ => None,
    }
}

/// The builds of joins in which the rows of a scan are looked up where they are.
fn builds_of(operators: &[Operator], facts: usize) -> Vec<DividedBuild> {
    let Some(scan) = scan_of(operators, facts) else { return vec![] };
    if scan.is_pulled || scan.pulled().is_none() {
        return vec![];
    }
    let buckets = scan.source.buckets();
    let build = |(at, operator): (usize, &Operator)| {
        let OperatorKind::HashJoin(join) = &operator.kind else { return None };
        let [probe, build] = &join.sides;
        // NOT IN asks about NULLs in all of the build.
        let asks_for_nulls = join.variant == Variant::NullAware || join.nulls != NullKeys::Nothing;
        let is_shared = join.is_pulled || join.multicast.is_some();
        if !is_shared || asks_for_nulls || !looks_up_in_place(operator) {
            return None;
        }
        let [edge] = operator.inputs[BUILD].as_slice() else { return None };
        let of_build = scan_of(operators, edge.from).filter(|of| of.grid.is_empty())?;
        let stored = of_build.source.buckets();
        probe.keys.iter().zip(&build.keys).find_map(|(&looked_up, &key)| {
            let column = of_build.read_as(behind(edge, key)?)?;
            let (from, of_facts) = origin(operators, &operator.inputs[PROBE], looked_up)?;
            let of_facts = scan.read_as(of_facts).filter(|_| from == facts)?;
            let by = |all: &[BucketColumn], column: usize| {
                all.iter().find(|by| by.column == column).copied()
            };
            let (own, other) = (by(&stored, column)?, by(&buckets, of_facts)?);
            let bits = own.bits.min(other.bits);
            let fits = own.family == other.family && bits > 0;
            // One that is multicast may be read by worker as its buckets lie.
            let bytes = bytes_of(of_build.source.pulled()?.as_ref())?;
            let (join, scan, own_bits) = (at, edge.from, own.bits);
            let build = DividedBuild { join, key, scan, column, own_bits, of_facts, bits, bytes };
            fits.then_some(build)
        })
    };
    operators.iter().enumerate().filter_map(build).collect()
}

/// Whether rows of the probe side stay on their worker.
fn looks_up_in_place(operator: &Operator) -> bool {
    operator.spec().distribution(PROBE) == Some(Distribution::Local)
}

/// The column in front of the step of an edge that is `column` behind it.
fn behind(edge: &Edge, column: usize) -> Option<usize> {
    edge.step.as_ref().map_or(Some(column), |step| step.passes_on(column))
}

/// The scan of which `column` behind these edges is a column, if its rows have stayed where they
/// were read and nothing else reads them; and that column.
fn origin(operators: &[Operator], edges: &[Edge], column: usize) -> Option<(usize, usize)> {
    let [edge] = edges else { return None };
    let column = behind(edge, column)?;
    let from = &operators[edge.from];
    let outputs = operators.iter().flat_map(|operator| operator.inputs.iter().flatten());
    if outputs.filter(|other| other.from == edge.from).count() != 1 {
        return None;
    }
    match &from.kind {
        OperatorKind::Source(_) => Some((edge.from, column)),
        OperatorKind::HashJoin(join) if join.is_replicated() && looks_up_in_place(from) => {
            origin(operators, &from.inputs[PROBE], join.probe_column(column)?)
        }
        OperatorKind::Lookup(lookup) => {
            let of_stream = (column < lookup.width()).then_some(column)?;
            origin(operators, &from.inputs[PROBE], of_stream)
        }
        _ => None,
    }
}

fn bytes_of(source: &dyn Source) -> Option<u64> {
    source.splits(1, None).ok()?.iter().map(|split| split.bytes).sum()
}

/// The parts of each column of the table, so that the processes read the fewest bytes of builds;
/// `None` if they cannot all have a cell.
fn axes_of(builds: &[DividedBuild], processes: u32) -> Option<Vec<GridAxis>> {
    let mut columns: Vec<GridColumn> = vec![];
    for build in builds {
        match columns.iter_mut().find(|known| known.column == build.of_facts) {
            Some(known) => {
                known.bytes += build.bytes;
                known.bits_max = known.bits_max.min(build.bits);
            }
            None => columns.push(GridColumn {
                column: build.of_facts,
                bytes: build.bytes,
                bits_max: build.bits,
            }),
        }
    }
    let bits = divided(&columns, processes.ilog2())?;
    let mut stride = 1;
    let axes = columns.iter().zip(bits).filter(|(_, bits)| *bits > 0);
    let axis = |(of, bits): (&GridColumn, u32)| {
        let axis = GridAxis { column: of.column, parts: 1 << bits, stride };
        stride *= axis.parts;
        axis
    };
    Some(axes.map(axis).collect())
}

/// A column of the table of facts by which it may be cut.
#[derive(Debug)]
struct GridColumn {
    column: usize,
    /// Bytes of the builds that are joined by it.
    bytes: u64,
    /// It has at most two to the power of this many parts.
    bits_max: u8,
}

/// Divides `bits` among columns: for each bit that a column has, half as many processes read a part
/// of its builds. The next bit goes to the column of which most is read.
fn divided(columns: &[GridColumn], bits: u32) -> Option<Vec<u32>> {
    let mut of = vec![0_u32; columns.len()];
    for _ in 0..bits {
        let read = |at: &usize| columns[*at].bytes >> of[*at];
        let can = (0..columns.len()).filter(|&at| of[at] < u32::from(columns[at].bits_max));
        let next = can.max_by_key(|at| (read(at), usize::MAX - at))?;
        of[next] += 1;
    }
    Some(of)
}

/// The scan of a table of which each process reads its cell, if the cells are about as large.
fn in_cells(scan: &Scan, axes: &[GridAxis], processes: u32) -> Option<Scan> {
    let divided = Scan { grid: axes.to_vec(), ..scan.pulled()? };
    let cells = (0..processes).map(|rank| bytes_of(divided.of_process(rank).source.as_ref()));
    let cells: Vec<u64> = cells.collect::<Option<_>>()?;
    let mean = cells.iter().sum::<u64>() / u64::from(processes);
    let most = mean.saturating_mul(UNEVEN_MAX_PERCENT) / 100;
    cells.iter().all(|bytes| *bytes <= most).then_some(divided)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_builds_are_divided_among_more_processes() {
        let of =
            |bytes: &[(u64, u8)], bits: u32| {
                let columns = bytes.iter().enumerate().map(|(column, (bytes, bits_max))| {
                    GridColumn { column, bytes: *bytes, bits_max: *bits_max }
                });
                divided(&columns.collect::<Vec<_>>(), bits)
            };
        assert_eq!(of(&[(100, 3), (100, 3)], 2), Some(vec![1, 1]));
        assert_eq!(of(&[(100, 3), (1_000, 3)], 2), Some(vec![0, 2]));
        assert_eq!(of(&[(100, 3), (1_000, 1)], 2), Some(vec![1, 1]), "it has two buckets");
        assert_eq!(of(&[(100, 1), (1_000, 1)], 3), None, "there are fewer cells than processes");
        assert_eq!(of(&[], 1), None);
    }

    #[test]
    fn no_other_division_reads_less() {
        let mut state = 5_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            // Powers of two, so that a half is a whole number.
            let drawn = (0..3).map(|column| GridColumn {
                column,
                bytes: (1 + draw(1000)) << 8,
                bits_max: 1 + draw(3) as u8,
            });
            let columns: Vec<GridColumn> = drawn.collect();
            let bits = 1 + draw(3) as u32;
            let read = |of: &[u32]| -> u64 {
                columns.iter().zip(of).map(|(column, bits)| column.bytes >> bits).sum()
            };
            let each = |at: usize| 0..=u32::from(columns[at].bits_max);
            let all = each(0).flat_map(|a| each(1).map(move |b| (a, b)));
            let all = all.flat_map(|(a, b)| each(2).map(move |c| [a, b, c]));
            let best = all.filter(|of| of.iter().sum::<u32>() == bits).map(|of| read(&of)).min();
            assert_eq!(divided(&columns, bits).map(|of| read(&of)), best, "{columns:?} in {bits}");
        }
    }
}
