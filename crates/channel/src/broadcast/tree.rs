//! The shape of a multicast: who passes a frame on to whom (W5, W9, W10, W13).
//!
//! Members are numbered from 0, the source. The *layer* of a member is the unit of time in which a
//! frame reaches it, if every send takes one: its parent's, plus its place among the siblings, plus
//! one. Growing in rounds, a member adopted in round *r* is on layer *r*.

/// Which tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The source sends to everybody (Storm; W10).
    Sequential,
    /// In each round everybody adopts one more (RDMC; W10).
    Binomial,
    /// The same, but nobody has more than this many children (W5). At least one.
    Capped(u32),
}

/// A tree over members `0..=n`, of which 0 is the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BroadcastTree {
    /// By member: those that it sends to, in order.
    children: Vec<Vec<u32>>,
    /// By member: where it stands. Empty if nobody says.
    racks: Vec<u32>,
}

/// A place at which a member could be adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    layer: u32,
    parent: u32,
}

impl BroadcastTree {
    /// A tree from a source to `n` members.
    pub fn new(shape: Shape, n: u32) -> Self {
        Self::racked(shape, n, &[])
    }

    /// The same, with the rack of each of the `n + 1` members: a frame enters each rack once
    /// (W13). Without racks they are no bound.
    ///
    /// # Panics
    /// When there are racks, but not of as many members.
    pub fn racked(shape: Shape, n: u32, racks: &[u32]) -> Self {
        assert!(racks.is_empty() || racks.len() == n as usize + 1, "a rack for each member");
        let mut tree = Self { children: vec![vec![]; n as usize + 1], racks: racks.to_vec() };
        match shape {
            Shape::Sequential => tree.children[0] = (1..=n).collect(),
            Shape::Binomial => tree.grow(u32::MAX),
            Shape::Capped(cap) => tree.grow(cap.max(1)),
        }
        tree
    }

    /// Adopts in rounds until all are in (algorithm 1 of the paper).
    fn grow(&mut self, cap: u32) {
        let n = self.children.len() as u32 - 1;
        let mut waiting: Vec<u32> = (1..=n).collect();
        let mut joined = vec![0];
        while !waiting.is_empty() {
            for at in 0..joined.len() {
                let member: u32 = joined[at];
                if self.children[member as usize].len() as u32 >= cap {
                    continue;
                }
                let Some(found) = self.next_for(member, &waiting, &joined, cap) else { continue };
                let child = waiting.remove(found);
                self.children[member as usize].push(child);
                joined.push(child);
            }
        }
    }

    /// Whom of those that wait a member adopts: the first of a rack that has nobody yet, if that
    /// leaves a place for its own rack; else the next of that.
    fn next_for(&self, member: u32, waiting: &[u32], joined: &[u32], cap: u32) -> Option<usize> {
        let rack = self.rack(member);
        let own = waiting.iter().position(|&other| self.rack(other) == rack);
        let here = joined.iter().filter(|&&other| self.rack(other) == rack);
        let places = here.map(|&other| u64::from(cap) - self.children(other).len() as u64);
        if own.is_some() && places.sum::<u64>() < 2 {
            return own;
        }
        let entered = |rack: u32| joined.iter().any(|&other| self.rack(other) == rack);
        waiting.iter().position(|&other| !entered(self.rack(other))).or(own)
    }

    /// Whether members stand on several racks.
    pub fn has_racks(&self) -> bool {
        self.racks.iter().any(|&rack| rack != self.racks[0])
    }

    fn rack(&self, member: u32) -> u32 {
        self.racks.get(member as usize).copied().unwrap_or(0)
    }

    /// Members beside the source.
    pub fn members(&self) -> u32 {
        self.children.len() as u32 - 1
    }

    /// Those to whom `member` sends.
    pub fn children(&self, member: u32) -> &[u32] {
        &self.children[member as usize]
    }

    /// Who sends to `member`; nobody to the source.
    pub fn parent(&self, member: u32) -> Option<u32> {
        let has = |children: &Vec<u32>| children.contains(&member);
        self.children.iter().position(has).map(|parent| parent as u32)
    }

    /// Most children of a member.
    pub fn degree(&self) -> u32 {
        self.children.iter().map(Vec::len).max().unwrap_or(0) as u32
    }

    /// By member its layer; the source's is 0.
    pub fn layers(&self) -> Vec<u32> {
        let mut layers = vec![0; self.children.len()];
        let mut next = vec![0_u32];
        while let Some(member) = next.pop() {
            let of_parent = layers[member as usize];
            for (place, &child) in self.children[member as usize].iter().enumerate() {
                layers[child as usize] = of_parent + place as u32 + 1;
                next.push(child);
            }
        }
        layers
    }

    /// The layer of the last member: units of time until a frame is everywhere.
    pub fn depth(&self) -> u32 {
        self.layers().into_iter().max().unwrap_or(0)
    }

    /// Sends from one rack to another, for each frame.
    pub fn crossings(&self) -> u32 {
        let of = |(parent, children): (usize, &Vec<u32>)| {
            let rack = self.rack(parent as u32);
            children.iter().filter(|&&child| self.rack(child) != rack).count() as u32
        };
        self.children.iter().enumerate().map(of).sum()
    }

    /// The tree under another cap, with as few moves as that needs (W9): where it is lower, members
    /// beyond the cap move, with those behind them, to the shallowest place; where it is higher,
    /// the deepest members move up, until that no longer brings them nearer. Under a cap of all
    /// members that stand on one rack, the source sends to everybody.
    #[must_use]
    pub fn switched(&self, cap: u32) -> Self {
        let cap = cap.max(1);
        if cap >= self.members() && !self.has_racks() {
            return Self::racked(Shape::Sequential, self.members(), &self.racks);
        }
        let mut tree = self.clone();
        tree.shed(cap);
        tree.lift(cap);
        tree
    }

    /// Negative scale-down.
    fn shed(&mut self, cap: u32) {
        let layers = self.layers();
        let mut members: Vec<u32> = (0..=self.members()).collect();
        members.sort_by_key(|&member| layers[member as usize]);
        let mut moving = vec![];
        for parent in members {
            let own = &mut self.children[parent as usize];
            if own.len() > cap as usize {
                moving.extend(own.split_off(cap as usize).into_iter().map(|child| (parent, child)));
            }
        }
        for (parent, child) in moving {
            let enters = self.rack(parent) != self.rack(child);
            let reached = self.reached();
            // Who is cut off as well cannot adopt before it is in again.
            let here = |place: &Place| reached[place.parent as usize];
            let fits = |place: &Place| enters || self.rack(place.parent) == self.rack(child);
            let place = self.places(cap).filter(here).filter(fits).min();
            // A rack whose members are all full or cut off is entered anew.
            let place = place.or_else(|| self.places(cap).filter(here).min());
            let place = place.expect("a leaf that is reached has room");
            self.children[place.parent as usize].push(child);
        }
    }

    /// Active scale-up.
    fn lift(&mut self, cap: u32) {
        loop {
            let layers = self.layers();
            let Some(deepest) = (1..=self.members()).max_by_key(|&m| layers[m as usize]) else {
                return;
            };
            let Some(parent) = self.parent(deepest) else { return };
            let enters = self.rack(parent) != self.rack(deepest);
            let fits = |place: &Place| {
                place.parent != deepest && (enters || self.rack(place.parent) == self.rack(deepest))
            };
            let place = self.places(cap).filter(fits).min();
            match place.filter(|place| place.layer < layers[deepest as usize]) {
                Some(place) => {
                    self.children[parent as usize].retain(|&child| child != deepest);
                    self.children[place.parent as usize].push(deepest);
                }
                None => return,
            }
        }
    }

    /// The next free place of each member that has one.
    fn places(&self, cap: u32) -> impl Iterator<Item = Place> {
        let layers = self.layers();
        let free = self.children.iter().enumerate().filter(move |(_, c)| c.len() < cap as usize);
        free.map(move |(parent, children)| Place {
            layer: layers[parent] + children.len() as u32 + 1,
            parent: parent as u32,
        })
    }

    /// By member whether frames reach it.
    fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.children.len()];
        let mut next = vec![0_u32];
        while let Some(member) = next.pop() {
            reached[member as usize] = true;
            next.extend(&self.children[member as usize]);
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast::degree_max;

    /// Every member has one parent and is reached, and nobody has more children than `cap`.
    fn assert_sound(tree: &BroadcastTree, cap: u32, what: &str) {
        assert!(tree.reached().iter().all(|&reached| reached), "{what}: {tree:?}");
        let mut adopted: Vec<u32> = tree.children.concat();
        adopted.sort_unstable();
        assert_eq!(adopted, (1..=tree.members()).collect::<Vec<_>>(), "{what}: {tree:?}");
        assert!(tree.degree() <= cap, "{what}: degree {} over {cap}", tree.degree());
    }

    /// Equation 7: how many have a frame after `t` units, the source among them.
    fn capability(t: u32, cap: u32) -> u64 {
        let mut of = vec![1_u64];
        for t in 1..=t {
            let before = of[t as usize - 1];
            let full = t.checked_sub(cap + 1).map_or(0, |t| of[t as usize]);
            of.push(2 * before - full);
        }
        of[t as usize]
    }

    #[test]
    fn a_capped_tree_reaches_everybody_once_as_deep_as_the_paper_says() {
        for n in 0..130 {
            for cap in 1..9 {
                let tree = BroadcastTree::new(Shape::Capped(cap), n);
                assert_sound(&tree, cap, &format!("{n} members, cap {cap}"));
                let depth = (0..).find(|&t| capability(t, cap) > u64::from(n)).unwrap();
                assert_eq!(tree.depth(), depth, "{n} members, cap {cap}");
                let on = |t| tree.layers().iter().filter(|&&layer| layer <= t).count() as u64;
                for t in 0..depth {
                    assert_eq!(on(t), capability(t, cap), "{n} members, cap {cap}, time {t}");
                }
            }
        }
    }

    #[test]
    fn with_the_degree_of_a_binomial_tree_it_is_one() {
        for n in 1..200 {
            let binomial = BroadcastTree::new(Shape::Binomial, n);
            assert_eq!(binomial.depth(), degree_max(n));
            assert_eq!(BroadcastTree::new(Shape::Capped(degree_max(n)), n), binomial);
        }
    }

    #[test]
    fn the_figure_of_the_paper() {
        let tree = BroadcastTree::new(Shape::Capped(2), 7);
        let children: Vec<_> = (0..8).map(|member| tree.children(member).to_vec()).collect();
        let expected =
            [vec![1, 2], vec![3, 4], vec![5, 7], vec![6], vec![], vec![], vec![], vec![]];
        assert_eq!(children, expected);
        assert_eq!(tree.layers(), [0, 1, 2, 2, 3, 3, 3, 4]);
    }

    #[test]
    fn the_sequential_tree_is_the_source_and_everybody() {
        let tree = BroadcastTree::new(Shape::Sequential, 5);
        assert_eq!((tree.degree(), tree.depth()), (5, 5));
        assert_eq!(tree.parent(4), Some(0));
        assert_eq!(tree.parent(0), None);
    }

    #[test]
    fn each_rack_is_entered_once() {
        for n in 1..60 {
            for racks in 1..6 {
                for cap in [1, 2, 3, u32::MAX] {
                    let labels: Vec<u32> = (0..=n).map(|member| member * 7 % racks).collect();
                    let tree = BroadcastTree::racked(Shape::Capped(cap), n, &labels);
                    assert_sound(&tree, cap, &format!("{n} members, {racks} racks, cap {cap}"));
                    let mut distinct = labels.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert_eq!(tree.crossings() as usize, distinct.len() - 1, "{tree:?}");
                }
            }
        }
    }

    #[test]
    fn another_cap_moves_few_and_leaves_nobody_out() {
        for n in 0..70 {
            for (from, to) in (1..8).flat_map(|from| (1..8).map(move |to| (from, to))) {
                for racks in [1, 3] {
                    let labels: Vec<u32> = (0..=n).map(|member| member % racks).collect();
                    let before = BroadcastTree::racked(Shape::Capped(from), n, &labels);
                    let after = before.switched(to);
                    let what = format!("{n} members of {racks} racks, {from} to {to}");
                    assert_sound(&after, to, &what);
                    if to >= n && racks == 1 {
                        let all = BroadcastTree::new(Shape::Sequential, n);
                        assert_eq!(after.children, all.children, "{what}");
                        continue;
                    }
                    let moved = (1..=n).filter(|&m| before.parent(m) != after.parent(m)).count();
                    if from == to && racks == 1 {
                        assert_eq!(moved, 0, "{what}");
                    }
                    if to >= from {
                        assert!(after.depth() <= before.depth(), "{what}");
                        assert_eq!(after.crossings(), before.crossings(), "{what}");
                    }
                    if racks == 1 && n > 0 {
                        let best = BroadcastTree::new(Shape::Capped(to), n).depth();
                        assert!(after.depth() <= best + 1, "{what}: {} over {best}", after.depth());
                    }
                }
            }
        }
    }

    #[test]
    fn the_paper_s_examples_of_switching() {
        // Figure 8: from three children of the source to two, one moves; and back.
        let three = BroadcastTree::new(Shape::Capped(3), 7);
        let two = three.switched(2);
        assert!((1..=7).filter(|&m| three.parent(m) != two.parent(m)).count() <= 2);
        let back = two.switched(3);
        assert_eq!(back.depth(), three.depth());
    }

    #[test]
    fn from_a_tree_to_everybody_and_back() {
        for n in 3..70 {
            let tree = BroadcastTree::new(Shape::Binomial, n);
            let all = tree.switched(n);
            assert_eq!((all.degree(), all.children(0).len() as u32), (n, n));
            let back = all.switched(degree_max(n));
            assert_sound(&back, degree_max(n), "back");
            assert!(back.depth() <= tree.depth() + 1, "{n} members: {}", back.depth());
            // Over racks each is entered once, however many children are affordable.
            let labels: Vec<u32> = (0..=n).map(|member| member % 3).collect();
            let racked = BroadcastTree::racked(Shape::Binomial, n, &labels);
            assert_eq!(racked.switched(n).crossings(), racked.crossings());
        }
    }
}
