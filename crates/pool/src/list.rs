//! Lists of strips by remote pointers (I4): the directory of a table that grows, in its own
//! extents.
//!
//! ```text
//!   version 9 ─▶ head of partition 3 ─▶ node ─▶ node ─▶ … ─▶ the oldest node
//!                        │      ╰────────────────▶ │ … the next LINKS_MAX nodes are named together
//!                        strips, strips, …         strips
//! ```
//!
//! The manifest of such a table names the heads of its lists alone, so that a version costs what is
//! new in it, and 36 bytes for each extent that its open lists lie in. A node never changes: the
//! next version has another head, which names the nodes of the version before. Who reads a list
//! learns of [`LINKS_MAX`] nodes at a time and reads them together, and needs no node twice,
//! whatever versions it reads.
//!
//! A loader writes nodes by one-sided writes, so that no server has checked them: [`ListWalk`]
//! takes them as of a stranger. The number of nodes behind a node falls by one with each pointer,
//! so that no list has a cycle; strips and bytes of all lists are bounded; a pointer into an extent
//! that the version has not is refused, and so is one of another partition.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::access::BlockRange;
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::manifest::{
    Block, Codec, Definition, Layout, MANIFEST_BYTES_MAX, Manifest, NODE_BYTES_MAX, PARTITIONS_MAX,
    STRIPS_MAX, Strip,
};
use crate::pointer::{ExtentId, Pointer};

/// Pointers to older nodes that a node has at most, which are the nodes that are read at a time.
pub const LINKS_MAX: usize = 8;

/// Bytes of strips in a node, from which on the next strips get a node of their own.
pub const NODE_STRIPS_BYTES: u64 = 32 << 10;

/// The beginning of a node.
const NODE_MAGIC: &[u8; 6] = b"MSLIST";

/// The beginning of the columns of a table that is kept in lists, before its own definition.
const DEFINITION_MAGIC: &[u8; 6] = b"MSLDEF";

impl Definition {
    /// The definition under which a server keeps a table of these columns in lists.
    #[must_use]
    pub fn listed(&self) -> Self {
        let mut own = FieldWriter::default();
        own.0.extend_from_slice(DEFINITION_MAGIC);
        self.encode(&mut own);
        let buckets = self.buckets.iter().map(|by| crate::manifest::Buckets { column: 0, ..*by });
        Self {
            schema: own.0,
            columns: vec![Layout::List],
            buckets: buckets.collect(),
            strip_rows: self.strip_rows,
        }
    }

    /// The columns and buckets of the rows: what [`listed`](Self::listed) was made of, or this.
    ///
    /// # Errors
    /// When a definition of lists lacks the columns of the rows.
    pub fn of_rows(&self) -> Result<Self, PoolError> {
        if !self.is_listed() {
            return Ok(self.clone());
        }
        let mut from = FieldReader::new(&self.schema, "definition of a table in lists");
        if from.take(DEFINITION_MAGIC.len())? != DEFINITION_MAGIC {
            return Err(from.malformed());
        }
        let own = Self::decode(&mut from)?;
        from.end()?;
        if own.is_listed() || own.listed() != *self { Err(from.malformed()) } else { Ok(own) }
    }
}

/// Some strips of a partition, and where those are that came before them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListNode {
    /// The partition.
    pub partition: u32,
    /// The nodes from this one to the oldest, this one included.
    pub depth: u32,
    /// The rows of all of these nodes.
    pub rows: u64,
    /// The nodes before it, the nearest first: as many as there are, up to [`LINKS_MAX`].
    pub links: Vec<BlockRange>,
    /// The strips of this node, in the order in which they came.
    pub strips: Vec<Strip>,
}

impl ListNode {
    /// The node as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.0.extend_from_slice(NODE_MAGIC);
        out.u32(self.partition);
        out.u32(self.depth);
        out.u64(self.rows);
        out.list(&self.links, |out, link| {
            out.u16(link.at.extent.server);
            out.u32(link.at.extent.number);
            out.u32(link.at.offset);
            out.u32(link.bytes);
        });
        out.list(&self.strips, |out, strip| strip.encode(out));
        let crc = crc32c::crc32c(&out.0);
        out.u32(crc);
        out.0
    }

    /// The node of these bytes, which a stranger may have written.
    ///
    /// # Errors
    /// [`PoolError::Malformed`] when it is none, or does not agree with itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, PoolError> {
        let malformed = || PoolError::Malformed { what: "list of strips" };
        let (body, crc) = bytes.split_last_chunk().ok_or_else(malformed)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(malformed());
        }
        let mut from = FieldReader::new(body, "list of strips");
        if from.take(NODE_MAGIC.len())? != NODE_MAGIC {
            return Err(malformed());
        }
        let (partition, depth, rows) = (from.u32()?, from.u32()?, from.u64()?);
        let links = from.list(LINKS_MAX, |from| {
            let extent = ExtentId { server: from.u16()?, number: from.u32()? };
            let at = Pointer { extent, offset: from.u32()? };
            Ok(BlockRange { at, bytes: from.u32()? })
        })?;
        let strips = from.list(STRIPS_MAX, Strip::decode)?;
        from.end()?;
        let node = Self { partition, depth, rows, links, strips };
        if node.is_consistent() { Ok(node) } else { Err(malformed()) }
    }

    fn is_consistent(&self) -> bool {
        let own: u64 = self.strips.iter().map(|strip| u64::from(strip.rows)).sum();
        let has_rest = if self.depth > 1 { own < self.rows } else { own == self.rows };
        self.partition < PARTITIONS_MAX
            && self.depth > 0
            && self.links.len() == LINKS_MAX.min(self.depth as usize - 1)
            && self.links.iter().all(|link| (1..=NODE_BYTES_MAX).contains(&link.bytes))
            && !self.strips.is_empty()
            && has_rest
    }

    /// How many of these strips one node takes, from the first on: one at least, if there is one.
    pub fn takes(strips: &[Strip]) -> usize {
        let mut bytes = 0;
        let fits = |strip: &&Strip| {
            bytes += strip.encoded_bytes();
            bytes <= NODE_STRIPS_BYTES
        };
        strips.iter().take_while(fits).count().max(1).min(strips.len())
    }
}

/// The strip by which a server knows a list: its newest node first, and then extents that blocks or
/// nodes of this or another list of the loader lie in, which the version keeps by that. `rows` are
/// those of the list; each extent has the bytes that are used of it at least.
pub fn head(rows: u32, node: BlockRange, keeps: &[(ExtentId, u32)]) -> Strip {
    let block = |at, bytes| Block {
        at,
        bytes,
        codec: Codec::Plain,
        nulls: 0,
        least: i64::MIN,
        greatest: i64::MAX,
    };
    let kept =
        keeps.iter().map(|(extent, used)| block(Pointer { extent: *extent, offset: 0 }, *used));
    Strip { rows, blocks: [block(node.at, node.bytes)].into_iter().chain(kept).collect() }
}

/// Follows the lists of a version from their heads to their ends, node by node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListWalk {
    definition: Definition,
    /// The extents of the version, with the bytes that are used of each.
    extents: BTreeMap<ExtentId, u32>,
    lists: Vec<List>,
    /// The nodes that are to be read, in the order in which their pointers became known.
    wanted: VecDeque<RequestedNode>,
    /// Strips and bytes of nodes that have come.
    strips: usize,
    bytes: u64,
}

/// A list, as far as its nodes have come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct List {
    partition: u32,
    rows: u64,
    /// The newest first; those that have not come are `None`.
    nodes: Vec<Option<Arc<ListNode>>>,
}

/// A node that is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RequestedNode {
    place: BlockRange,
    list: usize,
    /// Its number in the list, the head being 0.
    number: usize,
}

impl ListWalk {
    /// Of a version whose manifest has heads.
    ///
    /// # Errors
    /// When its table is not kept in lists.
    pub fn of(manifest: &Manifest) -> Result<Self, PoolError> {
        if !manifest.definition.is_listed() {
            return Err(malformed());
        }
        let mut walk = Self {
            definition: manifest.definition.of_rows()?,
            extents: manifest.extents.iter().copied().collect(),
            lists: vec![],
            wanted: VecDeque::new(),
            strips: 0,
            bytes: 0,
        };
        for (partition, bounds) in manifest.partitions.windows(2).enumerate() {
            for head in &manifest.strips[bounds[0] as usize..bounds[1] as usize] {
                let node = head.blocks.first().ok_or_else(malformed)?;
                let place = BlockRange { at: node.at, bytes: node.bytes };
                walk.wanted.push_back(RequestedNode { place, list: walk.lists.len(), number: 0 });
                let (partition, rows) = (partition as u32, u64::from(head.rows));
                walk.lists.push(List { partition, rows, nodes: vec![None] });
            }
        }
        Ok(walk)
    }

    /// The node that is to be read next, which [`take`](Self::take) is given: others may be asked
    /// for meanwhile, and come in the same order.
    pub fn wanted(&self, ahead: usize) -> Option<BlockRange> {
        self.wanted.get(ahead).map(|wanted| wanted.place)
    }

    /// Takes the first node that is wanted.
    ///
    /// # Errors
    /// When it is not the one that its pointer promised, and when the lists have more strips or
    /// bytes than a version may have.
    pub fn take(&mut self, node: Arc<ListNode>) -> Result<(), PoolError> {
        let RequestedNode { place, list, number } =
            self.wanted.pop_front().ok_or_else(malformed)?;
        let of = &mut self.lists[list];
        let is_promised = match number.checked_sub(1) {
            None => node.rows == of.rows && node.depth as usize <= STRIPS_MAX,
            Some(before) => {
                // A node of the group before links to this one.
                let group = before / LINKS_MAX * LINKS_MAX;
                let known = of.nodes[group].as_ref().ok_or_else(malformed)?;
                let depth = u64::from(node.depth) + (number - group) as u64;
                depth == u64::from(known.depth) && node.rows < known.rows
            }
        };
        self.strips += node.strips.len();
        self.bytes += u64::from(place.bytes);
        let misfit = |strip: &Strip| strip.misfit(&self.definition).is_some();
        let is_within = |link: &BlockRange| {
            let end = u64::from(link.at.offset) + u64::from(link.bytes);
            self.extents.get(&link.at.extent).is_some_and(|used| end <= u64::from(*used))
        };
        if !is_promised
            || node.partition != of.partition
            || self.strips > STRIPS_MAX
            || self.bytes > MANIFEST_BYTES_MAX
            || node.strips.iter().any(misfit)
            || !node.links.iter().all(is_within)
        {
            return Err(malformed());
        }
        // The last node of a group tells where the next group is.
        if number.is_multiple_of(LINKS_MAX) {
            for (place, number) in node.links.iter().zip(number + 1..) {
                self.wanted.push_back(RequestedNode { place: *place, list, number });
            }
            let known = number + 1 + node.links.len();
            of.nodes.resize(known, None);
        }
        of.nodes[number] = Some(node);
        Ok(())
    }

    /// The version with the strips of all nodes in place of the heads.
    ///
    /// # Errors
    /// When a node is missing, when the rows of a list are others than its head says, and when a
    /// block lies outside of what the version has.
    pub fn directory(self, heads: &Manifest) -> Result<Manifest, PoolError> {
        let mut manifest = Manifest {
            table: heads.table.clone(),
            version: heads.version,
            definition: self.definition,
            strips: Vec::with_capacity(self.strips),
            partitions: vec![0],
            extents: heads.extents.clone(),
            holders: heads.holders.clone(),
            origin: heads.origin.clone(),
        };
        let mut lists = self.lists.into_iter().peekable();
        for partition in 0..manifest.definition.partitions() {
            while let Some(list) = lists.next_if(|list| list.partition == partition) {
                let nodes = list.nodes.into_iter().rev().collect::<Option<Vec<_>>>();
                let nodes = nodes.ok_or_else(malformed)?;
                let mut rows = 0;
                for node in nodes {
                    rows += node.strips.iter().map(|strip| u64::from(strip.rows)).sum::<u64>();
                    if rows != node.rows {
                        return Err(malformed());
                    }
                    manifest.strips.extend(node.strips.iter().cloned());
                }
            }
            manifest.partitions.push(manifest.strips.len() as u32);
        }
        if manifest.is_consistent() { Ok(manifest) } else { Err(malformed()) }
    }
}

fn malformed() -> PoolError {
    PoolError::Malformed { what: "list of strips" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Buckets, KeyFamily};

    fn definition() -> Definition {
        Definition {
            schema: b"columns".to_vec(),
            columns: vec![Layout::Fixed(8), Layout::Bytes],
            buckets: vec![Buckets { column: 1, bits: 1, family: KeyFamily::Bytes }],
            strip_rows: 256,
        }
    }

    const EXTENT: ExtentId = ExtentId { server: 0, number: 3 };

    fn strip(rows: u32, offset: u32) -> Strip {
        let block = |offset, bytes| Block {
            at: Pointer { extent: EXTENT, offset },
            bytes,
            codec: Codec::Plain,
            nulls: 0,
            least: i64::MIN,
            greatest: i64::MAX,
        };
        Strip { rows, blocks: vec![block(offset, rows * 8), block(offset + 4096, rows * 4 + 9)] }
    }

    /// A list of `count` nodes of one strip each: the memory in which they lie one behind the
    /// other, a KiB each, and the version that has it.
    fn listed(count: usize) -> (Vec<ListNode>, Manifest) {
        let (mut nodes, mut links): (Vec<ListNode>, VecDeque<BlockRange>) = Default::default();
        let mut rows = 0;
        for at in 0..count {
            rows += 1 + at as u64 % 5;
            let strips = vec![strip(1 + at as u32 % 5, 64 * at as u32)];
            let (depth, own) = (at as u32 + 1, links.iter().copied().collect());
            let node = ListNode { partition: 1, depth, rows, links: own, strips };
            let at = Pointer { extent: EXTENT, offset: at as u32 * 1024 };
            links.push_front(BlockRange { at, bytes: node.encode().len() as u32 });
            links.truncate(LINKS_MAX);
            nodes.push(node);
        }
        let head = head(rows as u32, links[0], &[(EXTENT, 1 << 20)]);
        let manifest = Manifest {
            table: "t".into(),
            version: 9,
            definition: definition().listed(),
            strips: vec![head],
            partitions: vec![0, 0, 1],
            extents: vec![(EXTENT, 1 << 20)],
            holders: vec![],
            origin: None,
        };
        (nodes, manifest)
    }

    /// Follows lists; gives the directory, and how often it had to wait for a node before it knew
    /// of others.
    fn walked(nodes: &[ListNode], manifest: &Manifest) -> Result<(Manifest, usize), PoolError> {
        let mut walk = ListWalk::of(manifest)?;
        let mut rounds = 0;
        while walk.wanted(0).is_some() {
            rounds += 1;
            let group: Vec<BlockRange> = (0..).map_while(|ahead| walk.wanted(ahead)).collect();
            for place in group {
                let node = nodes.get(place.at.offset as usize / 1024).ok_or_else(malformed)?;
                walk.take(Arc::new(ListNode::decode(&node.encode())?))?;
            }
        }
        Ok((walk.directory(manifest)?, rounds))
    }

    #[test]
    fn a_list_is_followed_a_group_of_nodes_at_a_time_and_gives_its_strips_in_order() {
        for count in [1, 2, 8, 9, 10, 17, 100, 1000] {
            let (nodes, manifest) = listed(count);
            let manifest = Manifest::decode(&manifest.encode()).unwrap();
            assert_eq!(manifest.rows(), nodes.last().unwrap().rows);
            let (directory, rounds) = walked(&nodes, &manifest).unwrap();
            let strips: Vec<Strip> = nodes.iter().flat_map(|node| node.strips.clone()).collect();
            assert_eq!(
                (directory.strips, directory.partitions),
                (strips, vec![0, 0, count as u32])
            );
            assert_eq!(directory.definition, definition());
            assert_eq!(rounds, 1 + (count - 1).div_ceil(LINKS_MAX), "{count} nodes");
        }
    }

    #[test]
    fn a_definition_of_lists_gives_that_of_the_rows_and_no_other() {
        let own = definition();
        let listed = own.listed();
        assert_eq!((own.of_rows(), listed.of_rows()), (Ok(own.clone()), Ok(own.clone())));
        let wrong: [fn(&mut Definition); 5] = [
            |of| of.schema.clear(),
            |of| of.schema.push(0),
            |of| of.buckets[0].bits = 2,
            |of| of.strip_rows = 8,
            |of| of.schema = of.listed().schema,
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut changed = listed.clone();
            change(&mut changed);
            assert!(changed.of_rows().is_err(), "change {number}");
        }
    }

    #[test]
    fn lists_of_a_stranger_come_to_an_end_and_stay_in_their_version() {
        type Change = fn(&mut Vec<ListNode>, &mut Manifest);
        let wrong: [(&str, Change); 13] = [
            ("points at itself", |of, _| of[19].links[0].at.offset = 19 * 1024),
            ("points forward", |of, _| of[11].links[7].at.offset = 19 * 1024),
            ("skips a node", |of, _| of[19].links[3].at.offset -= 1024),
            ("is deeper than its pointer says", |of, _| of[10].depth = 12),
            ("has no end", |of, _| of[0].depth = 2),
            ("another partition", |of, _| of[15].partition = 0),
            ("fewer rows", |of, _| of[19].rows -= 1),
            ("a head with other rows", |_, of| of.strips[0].rows += 1),
            ("a node with other rows", |of, _| of[7].strips[0].rows = 6),
            ("a strip of another table", |of, _| of[3].strips[0].blocks.truncate(1)),
            ("a block outside", |of, _| of[3].strips[0].blocks[0].at.offset = 1 << 20),
            ("an extent that was freed", |of, _| of[11].links[2].at.extent.number = 2),
            ("another server", |of, _| of[11].links[2].at.extent.server = 1),
        ];
        for (what, change) in wrong {
            let (mut nodes, mut manifest) = listed(20);
            assert!(walked(&nodes, &manifest).is_ok());
            change(&mut nodes, &mut manifest);
            assert!(walked(&nodes, &manifest).is_err(), "{what}");
        }
        let (nodes, manifest) = listed(3);
        let mut directory = manifest.clone();
        directory.definition = definition();
        assert!(ListWalk::of(&directory).is_err(), "a directory is no list");
        // The newest node is missing.
        let walk = ListWalk::of(&manifest).unwrap();
        assert!(walk.directory(&manifest).is_err());
        let bytes = nodes[2].encode();
        assert_eq!(ListNode::decode(&bytes).as_ref(), Ok(&nodes[2]));
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(ListNode::decode(&damaged).is_err(), "bit {at}");
            assert!(ListNode::decode(&bytes[..at / 8]).is_err(), "cut to {}", at / 8);
        }
    }
}
