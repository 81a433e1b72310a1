//! Loads of tables that are kept in lists: the server knows their heads, which name extents.
//!
//! A head may name extents of the version before, since the nodes behind it lie there: so it keeps
//! them, and those that no head names any more are freed.

use std::collections::{BTreeMap, BTreeSet};

use crate::access::LoadMode;
use crate::home::Home;
use crate::manifest::{Block, Manifest, Strip};
use crate::pointer::ExtentId;

impl Home {
    /// The extents that the heads of lists may name though they are of a version already: those of
    /// the one before, whether it has appeared or is being saved, with the bytes that are used of
    /// each.
    pub(super) fn kept_by_lists(&self, load: u64) -> BTreeMap<ExtentId, u32> {
        let of = self.loads.get(&load).map(|of| &of.load);
        let of = of.filter(|of| of.definition.is_listed() && of.mode == LoadMode::Append);
        let Some(of) = of else { return BTreeMap::new() };
        let newest = || {
            let newest = *self.tables.get(&of.table)?;
            self.versions.get(&(of.table.clone(), newest)).map(|version| &version.manifest)
        };
        let saving = self.saving.get(&load).map(|version| &version.manifest);
        let before = saving.or_else(newest);
        before.map_or_else(BTreeMap::new, |before| before.extents.iter().copied().collect())
    }
}

/// The blocks of a strip that no version has yet.
pub(super) fn new_blocks<'a>(
    strip: &'a Strip,
    kept: &BTreeMap<ExtentId, u32>,
) -> impl Iterator<Item = &'a Block> {
    let is_kept = |block: &Block| {
        let end = u64::from(block.at.offset) + u64::from(block.bytes);
        kept.get(&block.at.extent).is_some_and(|used| end <= u64::from(*used))
    };
    strip.blocks.iter().filter(move |block| block.bytes > 0 && !is_kept(block))
}

/// The extents of blocks, but for those that the heads of lists keep of the version before.
pub(super) fn new_extents<'a>(
    before: &Manifest,
    blocks: impl Iterator<Item = &'a Block>,
) -> BTreeSet<ExtentId> {
    let kept = before.extents.iter().filter(|_| before.definition.is_listed());
    let kept: BTreeSet<ExtentId> = kept.map(|(extent, _)| *extent).collect();
    let extents = blocks.filter(|block| block.bytes > 0).map(|block| block.at.extent);
    extents.filter(|extent| !kept.contains(extent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{At, BlockRange, TableLoad};
    use crate::error::PoolError;
    use crate::home::{ClientId, Effect};
    use crate::list;
    use crate::manifest::{Buckets, Codec, Definition, KeyFamily, Layout};
    use crate::pointer::Pointer;
    use crate::wire::StatementId;

    const LOADER: ClientId = 1;
    const READER: ClientId = 2;

    fn definition() -> Definition {
        Definition {
            schema: b"columns".to_vec(),
            columns: vec![Layout::Fixed(8)],
            buckets: vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }],
            strip_rows: 8,
        }
    }

    fn begun(home: &mut Home, table: &str, definition: Definition, mode: LoadMode) -> u64 {
        let load = TableLoad { table: table.into(), definition, mode, origin: None };
        let statement = StatementId { job: 7, statement: 0 };
        home.begin(LOADER, "loader", load, statement, 1).unwrap()
    }

    fn sealed(home: &mut Home, load: u64) -> u32 {
        let extent = home.grant(LOADER, load, 128).unwrap();
        home.seal(LOADER, load, extent, 64).unwrap();
        extent
    }

    fn list_head(rows: u32, node: u32, keeps: &[u32]) -> (u32, Strip) {
        let at = |number| ExtentId { server: 0, number };
        let place = BlockRange { at: Pointer { extent: at(node), offset: 0 }, bytes: 64 };
        let keeps: Vec<(ExtentId, u32)> = keeps.iter().map(|number| (at(*number), 64)).collect();
        (0, list::head(rows, place, &keeps))
    }

    #[test]
    fn a_head_keeps_the_extents_that_it_names_and_the_one_before_lets_go_of_the_others() {
        let mut home = Home::new(0, 1 << 20);
        let begun = begun(&mut home, "t", definition().listed(), LoadMode::Create);
        let [strips, node] = [(); 2].map(|()| sealed(&mut home, begun));
        let first = list_head(3, node, &[strips, node]);
        let (version, effects) = home.hand_in(LOADER, begun, 0, vec![first.clone()], true);
        assert_eq!((version, effects), (Ok(Some(1)), vec![]));
        // The next node lies elsewhere, and names what was there and something new.
        let [new, next] = [(); 2].map(|()| sealed(&mut home, begun));
        let second = list_head(5, next, &[strips, new, next]);
        let (replaced, _) = home.replace(LOADER, begun, 0, vec![first]);
        assert_eq!(replaced, Ok(()));
        let (version, effects) = home.hand_in(LOADER, begun, 0, vec![second.clone()], true);
        assert_eq!(version, Ok(Some(2)));
        assert_eq!(effects, [Effect::Free(node)], "the node that nobody names");
        assert_eq!(home.tables()[0].rows, 5);
        // An extent that the version before has, and this one has not, is nobody's.
        let third = list_head(6, next, &[strips, node]);
        home.replace(LOADER, begun, 0, vec![second]).0.unwrap();
        let (version, effects) = home.hand_in(LOADER, begun, 0, vec![third], true);
        assert!(matches!(version, Err(PoolError::Refused { .. })), "{version:?}");
        assert_eq!(effects, [], "the load ends, and what has appeared stays");
        let pin = home.pin(READER, "t", At::Newest, None).unwrap();
        let manifest = Manifest::decode(&pin.manifest).unwrap();
        assert_eq!((pin.version, manifest.extents.len(), manifest.rows()), (2, 3, 5));
    }

    #[test]
    fn a_list_that_is_closed_keeps_its_extents_while_the_next_one_changes() {
        let mut home = Home::new(0, 1 << 20);
        let begun = begun(&mut home, "t", definition().listed(), LoadMode::Create);
        let [strips, node] = [(); 2].map(|()| sealed(&mut home, begun));
        let first = list_head(3, node, &[strips, node]);
        home.hand_in(LOADER, begun, 0, vec![first.clone()], true).0.unwrap();
        let closed = list_head(2, node, &[strips, node]);
        let [new, next] = [(); 2].map(|()| sealed(&mut home, begun));
        let open = list_head(2, next, &[strips, new, next]);
        home.replace(LOADER, begun, 0, vec![first]).0.unwrap();
        let (version, effects) =
            home.hand_in(LOADER, begun, 0, vec![closed.clone(), open.clone()], true);
        assert_eq!((version, effects), (Ok(Some(2)), vec![]));
        // The open list names no extent of the closed one any more.
        let last = sealed(&mut home, begun);
        home.replace(LOADER, begun, 0, vec![open]).0.unwrap();
        let open = list_head(3, last, &[new, last]);
        let (version, effects) = home.hand_in(LOADER, begun, 0, vec![open.clone()], true);
        assert_eq!((version, effects), (Ok(Some(3)), vec![Effect::Free(next)]));
        let pin = home.pin(READER, "t", At::Newest, None).unwrap();
        let manifest = Manifest::decode(&pin.manifest).unwrap();
        let of = |extents: &[(ExtentId, u32)]| extents.iter().map(|of| of.0.number).collect();
        let extents: BTreeSet<u32> = of(&manifest.extents);
        assert_eq!(extents, BTreeSet::from([strips, node, new, last]));
        let heads = [closed, open].map(|(_, head)| head);
        assert_eq!((manifest.rows(), manifest.strips.to_vec()), (5, heads.to_vec()));
    }

    #[test]
    fn a_strip_of_a_directory_and_a_head_of_another_table_keep_nothing_of_others() {
        let mut home = Home::new(0, 1 << 20);
        let load = begun(&mut home, "t", definition(), LoadMode::Create);
        let at =
            Pointer { extent: ExtentId { server: 0, number: sealed(&mut home, load) }, offset: 0 };
        let block = Block { at, bytes: 24, codec: Codec::Plain, nulls: 0, least: 0, greatest: 9 };
        let strip = (0, Strip { rows: 3, blocks: vec![block] });
        home.commit(LOADER, load, 0, vec![strip.clone()], true).0.unwrap();
        let load = begun(&mut home, "t", definition(), LoadMode::Append);
        let (version, _) = home.commit(LOADER, load, 0, vec![strip], true);
        assert!(matches!(version, Err(PoolError::Refused { .. })), "{version:?}");
        let load = begun(&mut home, "other", definition().listed(), LoadMode::Create);
        let (version, _) = home.commit(LOADER, load, 0, vec![list_head(3, 0, &[])], true);
        assert!(matches!(version, Err(PoolError::Refused { .. })), "{version:?}");
    }
}
