//! Writes nodes of lists behind the strips that they name.
//!
//! ```text
//!   strips ─▶ placed ─▶ a full node ─▶ placed ─▶ … ─▶ the open node ─▶ placed ─▶ sealed
//!                        └ named by the next one          └ named by the head
//! ```
//!
//! The newest node of a list stays open: with the next part of a load it is written anew, with the
//! strips that have come, until it is full. Its last strip may be a short one that is replaced.

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use pool::PoolError;
use pool::access::{BlockRange, EncodedBlock, EncodedStrip, Loading, StripWriter};
use pool::list::{LINKS_MAX, ListNode, head};
use pool::manifest::{Block, Codec, Strip};
use pool::pointer::ExtentId;

/// Extents that the lists of a worker keep at most, but for those that are closed.
const KEEPS_MAX: usize = 32_768;

/// Extents of a worker from which on its full nodes become lists of their own, which are closed:
/// heads name extents anew with each version, and a version is to cost no more than its new rows.
const CLOSED_EXTENTS: usize = 4096;
/// Rows of a list from which on the same is done.
const CLOSED_ROWS: u64 = 1 << 31;

/// A load of a table that is kept in lists.
#[derive(Debug)]
pub(in super::super) struct ListLoading {
    loading: Arc<dyn Loading>,
    /// By worker: its lists, between one part of the load and the next.
    workers: Arc<Mutex<BTreeMap<u32, WorkerLists>>>,
}

impl ListLoading {
    pub(in super::super) fn new(loading: Arc<dyn Loading>) -> Self {
        Self { loading, workers: Arc::default() }
    }
}

impl Loading for ListLoading {
    fn writer(&self, worker: u32, waker: Waker) -> Result<Box<dyn StripWriter>, PoolError> {
        let inner = self.loading.writer(worker, waker)?;
        let lists = WorkerLists::default();
        let workers = Arc::clone(&self.workers);
        let (stage, strips, replaced) = (Stage::Strips, vec![], vec![]);
        let (nodes, written) = (VecDeque::new(), vec![]);
        Ok(Box::new(ListWriter {
            inner,
            worker,
            workers,
            lists,
            stage,
            strips,
            replaced,
            nodes,
            written,
        }))
    }

    fn check(&self) -> Result<(), PoolError> {
        self.loading.check()
    }

    fn failed(&self, reason: &str) {
        self.loading.failed(reason);
    }
}

fn locked(
    workers: &Mutex<BTreeMap<u32, WorkerLists>>,
) -> std::sync::MutexGuard<'_, BTreeMap<u32, WorkerLists>> {
    workers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lists that a worker has written.
#[derive(Debug, Default)]
struct WorkerLists {
    /// By partition.
    lists: BTreeMap<u32, OpenList>,
    /// The extents that strips and nodes of these lie in.
    keeps: BTreeMap<ExtentId, RetainedExtent>,
    /// The heads of lists that were closed since the last heads.
    closed: Vec<(u32, Strip)>,
}

/// An extent with strips or nodes that lists name.
#[derive(Debug, Clone, Copy, Default)]
struct RetainedExtent {
    /// How many blocks and nodes.
    count: u64,
    /// The end of the last of them.
    used: u32,
}

/// A list and its open node.
#[derive(Debug, Default)]
struct OpenList {
    /// The nodes that are full: how many, their rows, and where the last ones are, the nearest
    /// first.
    full: u32,
    full_rows: u64,
    links: VecDeque<BlockRange>,
    /// The strips of the open node.
    strips: Vec<Strip>,
    /// The place of the open node.
    node: Option<BlockRange>,
    /// The head by which the server knows it.
    head: Option<Strip>,
    /// Whether it has other strips than its head tells.
    has_changed: bool,
}

impl OpenList {
    /// How many of its strips the next node takes, and whether that is full: others follow.
    fn next(&self) -> (usize, bool) {
        let takes = ListNode::takes(&self.strips);
        (takes, takes < self.strips.len())
    }

    /// The next node.
    fn node(&self, partition: u32, strips: usize) -> ListNode {
        let strips = self.strips[..strips].to_vec();
        let own: u64 = strips.iter().map(|strip| u64::from(strip.rows)).sum();
        let links = self.links.iter().copied().collect();
        ListNode { partition, depth: self.full + 1, rows: self.full_rows + own, links, strips }
    }

    fn rows(&self) -> u64 {
        self.full_rows + self.strips.iter().map(|strip| u64::from(strip.rows)).sum::<u64>()
    }
}

impl WorkerLists {
    fn keep(&mut self, extent: ExtentId, end: u32) {
        let kept = self.keeps.entry(extent).or_default();
        *kept = RetainedExtent { count: kept.count + 1, used: kept.used.max(end) };
    }

    fn let_go(&mut self, extent: ExtentId) {
        if let Some(kept) = self.keeps.get_mut(&extent) {
            kept.count -= 1;
            if kept.count == 0 {
                self.keeps.remove(&extent);
            }
        }
    }

    fn keep_blocks(&mut self, strip: &Strip) {
        for Block { at, bytes, .. } in strip.blocks.iter().filter(|block| block.bytes > 0) {
            self.keep(at.extent, at.offset + bytes);
        }
    }

    /// Closes the full nodes as lists of their own if the lists have become long. Their heads are
    /// never replaced, and the first of them keeps the extents of all; the strips of open nodes,
    /// which may be replaced, begin new lists.
    fn close_long(&mut self, extents: usize, rows: u64) {
        if self.keeps.len() <= extents && self.lists.values().all(|list| list.full_rows <= rows) {
            return;
        }
        let mut keeps: Vec<(ExtentId, u32)> =
            self.keeps.iter().map(|(extent, kept)| (*extent, kept.used)).collect();
        for (&partition, list) in &mut self.lists {
            let (Some(&newest), Ok(rows)) = (list.links.front(), u32::try_from(list.full_rows))
            else {
                continue;
            };
            self.closed.push((partition, head(rows, newest, &take(&mut keeps))));
            (list.full, list.full_rows, list.has_changed) = (0, 0, true);
            list.links.clear();
        }
        self.keeps.clear();
        let open = self.lists.values().flat_map(|list| list.strips.clone());
        for strip in open.collect::<Vec<_>>() {
            self.keep_blocks(&strip);
        }
        let nodes = self.lists.values().filter_map(|list| list.node);
        for BlockRange { at, bytes } in nodes.collect::<Vec<_>>() {
            self.keep(at.extent, at.offset + bytes);
        }
    }

    fn add(&mut self, partition: u32, strip: Strip) {
        self.keep_blocks(&strip);
        let list = self.lists.entry(partition).or_default();
        list.has_changed = true;
        list.strips.push(strip);
    }

    /// Takes a strip out that another one takes the place of.
    fn remove(&mut self, partition: u32, strip: &Strip) -> Result<(), PoolError> {
        let list = self.lists.get_mut(&partition);
        let at = list.and_then(|list| {
            let at = list.strips.iter().rposition(|own| own == strip)?;
            list.has_changed = true;
            list.strips.remove(at);
            Some(at)
        });
        if at.is_none() {
            let reason = "a strip to replace is in no open node of a list".into();
            return Err(PoolError::Refused { reason });
        }
        for block in strip.blocks.iter().filter(|block| block.bytes > 0) {
            self.let_go(block.at.extent);
        }
        Ok(())
    }

    /// A node has its place.
    fn placed(&mut self, written: Written, node: &Strip) -> Result<(), PoolError> {
        let Written { partition, strips, is_full } = written;
        let block = node.blocks.first().ok_or(PoolError::Malformed { what: "place of a node" })?;
        let place = BlockRange { at: block.at, bytes: block.bytes };
        self.keep(block.at.extent, block.at.offset + block.bytes);
        let list = self.lists.entry(partition).or_default();
        let before = list.node.take();
        if is_full {
            let rows = list.strips.drain(..strips).map(|strip| u64::from(strip.rows));
            list.full_rows += rows.sum::<u64>();
            list.full += 1;
            list.links.push_front(place);
            list.links.truncate(LINKS_MAX);
        } else {
            list.node = Some(place);
        }
        if let Some(before) = before {
            self.let_go(before.at.extent);
        }
        Ok(())
    }

    /// The heads that have changed: those that they take the place of, and they. The first list
    /// names the extents that all of them keep.
    fn heads(&mut self) -> Result<[Vec<(u32, Strip)>; 2], PoolError> {
        let refused = |reason: &str| {
            let hint = "INSERT OVERWRITE the table from itself";
            Err(PoolError::Refused { reason: format!("{reason}: {hint}") })
        };
        if self.keeps.len() > KEEPS_MAX {
            return refused("the lists of a worker lie in more extents than they may");
        }
        let keeps: Vec<(ExtentId, u32)> =
            self.keeps.iter().map(|(extent, kept)| (*extent, kept.used)).collect();
        let (mut before, mut heads) = (vec![], take(&mut self.closed));
        let first = self.lists.keys().next().copied();
        for (&partition, list) in &mut self.lists {
            let Some(node) = list.node else { continue };
            let Ok(rows) = u32::try_from(list.rows()) else {
                return refused("a list of a worker has more than 4294967295 rows");
            };
            let keeps = if Some(partition) == first { &keeps[..] } else { &[] };
            let new = head(rows, node, keeps);
            if list.head.as_ref() != Some(&new) {
                before.extend(list.head.replace(new.clone()).map(|head| (partition, head)));
                heads.push((partition, new));
            }
            list.has_changed = false;
        }
        Ok([before, heads])
    }
}

/// A node that was written.
#[derive(Debug, Clone, Copy)]
struct Written {
    partition: u32,
    /// How many of the list's strips it has.
    strips: usize,
    is_full: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Strips are written.
    Strips,
    /// Nodes are, one of each list at a time.
    Nodes,
    /// All have places.
    Ended,
}

/// The writer of a worker of a table that is kept in lists.
struct ListWriter {
    inner: Box<dyn StripWriter>,
    worker: u32,
    workers: Arc<Mutex<BTreeMap<u32, WorkerLists>>>,
    lists: WorkerLists,
    stage: Stage,
    /// The strips that were written, with their places.
    strips: Vec<(u32, Strip)>,
    replaced: Vec<(u32, Strip)>,
    /// Nodes for which there was no room.
    nodes: VecDeque<(Written, EncodedStrip)>,
    /// Nodes that were written and have no places.
    written: Vec<Written>,
}

impl ListWriter {
    /// Makes the next node of each list that has changed.
    ///
    /// # Errors
    /// When the open node has no strip any more, so that its head would go on naming those that it
    /// had. A part that replaces a strip has the rows of it, so that this is a fault of a writer.
    fn make_nodes(&mut self) -> Result<(), PoolError> {
        for (&partition, list) in self.lists.lists.iter().filter(|(_, list)| list.has_changed) {
            let (strips, is_full) = list.next();
            if strips == 0 {
                let reason = "the last strip of an open node is replaced by nothing".into();
                return Err(PoolError::Refused { reason });
            }
            let node = list.node(partition, strips);
            let rows = u32::try_from(node.rows).unwrap_or(u32::MAX);
            let block = EncodedBlock {
                bytes: node.encode(),
                codec: Codec::Plain,
                nulls: 0,
                least: i64::MIN,
                greatest: i64::MAX,
            };
            let strip = EncodedStrip { rows, blocks: vec![block] };
            self.nodes.push_back((Written { partition, strips, is_full }, strip));
        }
        Ok(())
    }

    /// Writes nodes, and waits until they have places; whether all have.
    fn go_on(&mut self) -> Result<bool, PoolError> {
        if self.stage == Stage::Strips {
            let Some(strips) = self.inner.take_placed()? else { return Ok(false) };
            // The part before is handed in: its writer has left its lists.
            self.lists = locked(&self.workers).remove(&self.worker).unwrap_or_default();
            self.lists.close_long(CLOSED_EXTENTS, CLOSED_ROWS);
            for (partition, strip) in take(&mut self.replaced) {
                self.lists.remove(partition, &strip)?;
            }
            for (partition, strip) in &strips {
                self.lists.add(*partition, strip.clone());
            }
            self.strips = strips;
            self.stage = Stage::Nodes;
            self.make_nodes()?;
        }
        while self.stage == Stage::Nodes {
            while let Some((written, node)) = self.nodes.pop_front() {
                if !self.inner.has_room()? {
                    self.nodes.push_front((written, node));
                    return Ok(false);
                }
                self.inner.write(written.partition, node)?;
                self.written.push(written);
            }
            let Some(placed) = self.inner.take_placed()? else { return Ok(false) };
            if placed.len() != self.written.len() {
                return Err(PoolError::Malformed { what: "count of nodes" });
            }
            let mut has_more = false;
            for (written, (_, node)) in take(&mut self.written).into_iter().zip(placed) {
                self.lists.placed(written, &node)?;
                has_more |= written.is_full;
                if !written.is_full {
                    self.lists.lists.entry(written.partition).or_default().has_changed = false;
                }
            }
            if !has_more {
                let [before, heads] = self.lists.heads()?;
                self.inner.replace(before);
                self.inner.name(heads);
                self.stage = Stage::Ended;
                return Ok(true);
            }
            self.make_nodes()?;
        }
        Ok(true)
    }
}

impl StripWriter for ListWriter {
    fn has_room(&mut self) -> Result<bool, PoolError> {
        self.inner.has_room()
    }

    fn write(&mut self, partition: u32, strip: EncodedStrip) -> Result<(), PoolError> {
        self.inner.write(partition, strip)
    }

    fn is_sealed(&mut self) -> Result<bool, PoolError> {
        Ok(self.go_on()? && self.inner.is_sealed()?)
    }

    /// Its strips are in lists already.
    fn take_placed(&mut self) -> Result<Option<Vec<(u32, Strip)>>, PoolError> {
        Ok(Some(vec![]))
    }

    fn name(&mut self, heads: Vec<(u32, Strip)>) {
        self.inner.name(heads);
    }

    fn replace(&mut self, strips: Vec<(u32, Strip)>) {
        self.replaced.extend(strips);
    }

    fn hand_in(self: Box<Self>) -> Result<Vec<(u32, Strip)>, PoolError> {
        self.inner.hand_in()?;
        locked(&self.workers).insert(self.worker, self.lists);
        Ok(self.strips)
    }

    fn commit(self: Box<Self>) -> Result<(), PoolError> {
        self.inner.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::list::ListWalk;
    use pool::manifest::{Buckets, Definition, KeyFamily, Layout, Manifest};
    use pool::pointer::Pointer;

    /// So many that a node has a few strips.
    const COLUMNS: u32 = 230;

    /// Nodes lie in extents of these numbers.
    const NODES: u32 = 1 << 20;

    fn definition() -> Definition {
        let buckets = vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }];
        let columns = vec![Layout::Fixed(8); COLUMNS as usize];
        Definition { schema: vec![], columns, buckets, strip_rows: 256 }
    }

    fn block(number: u32, offset: u32, bytes: u32) -> Block {
        let at = Pointer { extent: ExtentId { server: 0, number }, offset };
        Block { at, bytes, codec: Codec::Plain, nulls: 0, least: i64::MIN, greatest: i64::MAX }
    }

    /// A strip in an extent of its own.
    fn strip(number: u32, rows: u32) -> Strip {
        let blocks = (0..COLUMNS).map(|column| block(number, column * 64, rows * 8));
        Strip { rows, blocks: blocks.collect() }
    }

    /// A table as a server and its memory have it.
    #[derive(Default)]
    struct Table {
        heads: Vec<(u32, Strip)>,
        /// By the number of the extent.
        nodes: BTreeMap<u32, ListNode>,
        /// Blocks of the heads that were sent with the last version.
        sent: usize,
    }

    impl Table {
        /// Writes the nodes of a part, and then the heads.
        fn commit(&mut self, lists: &mut WorkerLists) {
            let mut has_more = true;
            while has_more {
                has_more = false;
                let changed: Vec<u32> =
                    lists.lists.iter().filter(|(_, of)| of.has_changed).map(|of| *of.0).collect();
                for partition in changed {
                    let list = lists.lists.get_mut(&partition).unwrap();
                    let (strips, is_full) = list.next();
                    let node = list.node(partition, strips);
                    list.has_changed = is_full;
                    let at = NODES + self.nodes.len() as u32;
                    let blocks = vec![block(at, 0, node.encode().len() as u32)];
                    let placed = Strip { rows: 1, blocks };
                    self.nodes.insert(at, node);
                    lists.placed(Written { partition, strips, is_full }, &placed).unwrap();
                    has_more |= is_full;
                }
            }
            let [before, heads] = lists.heads().unwrap();
            self.sent = heads.iter().map(|(_, head)| head.blocks.len()).sum();
            for head in &before {
                let at = self.heads.iter().position(|own| own == head).unwrap();
                self.heads.remove(at);
            }
            self.heads.extend(heads);
            // As a server keeps them.
            self.heads.sort_by_key(|(partition, _)| *partition);
        }

        /// The strips that a reader finds.
        fn strips(&self) -> Vec<Strip> {
            let mut extents = BTreeMap::new();
            for block in self.heads.iter().flat_map(|(_, head)| &head.blocks) {
                let used: &mut u32 = extents.entry(block.at.extent).or_default();
                *used = (*used).max(block.at.offset + block.bytes);
            }
            let first = self.heads.partition_point(|(partition, _)| *partition == 0) as u32;
            let manifest = Manifest {
                table: "t".into(),
                version: 1,
                definition: definition().listed(),
                strips: self.heads.iter().map(|(_, head)| head.clone()).collect(),
                partitions: vec![0, first, self.heads.len() as u32],
                extents: extents.into_iter().collect(),
                holders: vec![],
                origin: None,
            };
            let mut walk = ListWalk::of(&manifest).unwrap();
            while let Some(place) = walk.wanted(0) {
                walk.take(Arc::new(self.nodes[&place.at.extent.number].clone())).unwrap();
            }
            walk.directory(&manifest).unwrap().strips
        }
    }

    /// Loads 200 parts, of which each replaces the short strip of the one before; a part has one
    /// full strip. Gives the table and the most that a version has sent.
    fn loaded(extents: usize, rows: u64) -> (Table, usize) {
        let (mut lists, mut table) = (WorkerLists::default(), Table::default());
        let (mut all, mut short): (Vec<Strip>, Option<(u32, Strip)>) = Default::default();
        let mut most = 0;
        for part in 0..200 {
            lists.close_long(extents, rows);
            let mut partition = part / 7 % 2;
            if let Some((of, strip)) = short.take() {
                lists.remove(of, &strip).unwrap();
                all.pop();
                partition = of;
            }
            lists.add(partition, strip(2 * part, 8));
            all.push(strip(2 * part, 8));
            if part % 7 != 6 {
                let last = strip(2 * part + 1, 3);
                lists.add(partition, last.clone());
                all.push(last.clone());
                short = Some((partition, last));
            }
            table.commit(&mut lists);
            most = most.max(table.sent);
            if part % 5 > 0 {
                continue;
            }
            let place = |strip: &Strip| strip.blocks[0].at;
            let mut found = table.strips();
            found.sort_by_key(place);
            assert_eq!(found, all, "part {part}");
        }
        (table, most)
    }

    #[test]
    fn long_lists_are_closed_and_no_strip_is_lost_or_read_twice() {
        let (table, most) = loaded(usize::MAX, u64::MAX);
        assert_eq!(table.heads.len(), 2);
        assert!(most > 200, "a head names all extents: {most}");
        let (table, most) = loaded(20, u64::MAX);
        assert!(table.heads.len() > 10, "{}", table.heads.len());
        assert!(most < 100, "{most}");
        let (table, _) = loaded(usize::MAX, 100);
        assert!(table.heads.len() > 10, "{}", table.heads.len());
        assert!(table.heads.iter().all(|(_, head)| head.rows < 300));
    }
}
