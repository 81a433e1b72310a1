//! The root of a tree: numbers frames, and changes the tree between two of them (W9).

use super::relay::{Breach, Relay};
use super::tree::Tree;

/// What a member is told before a tree is used: whom it will send to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Steer {
    /// The member's address.
    pub to: u32,
    /// The tree.
    pub version: u64,
    /// The addresses of its children.
    pub children: Vec<u32>,
}

/// A tree that is not used yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Change {
    version: u64,
    tree: Tree,
    /// Members that have not answered.
    unanswered: Vec<u32>,
}

/// A source of frames and the tree around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source<F> {
    relay: Relay<F>,
    tree: Tree,
    /// By member of the tree.
    addresses: Vec<u32>,
    change: Option<Change>,
    /// The last version that was given to a tree, used or not.
    versions: u64,
}

impl<F> Source<F> {
    /// A source of version 0, `tree`, whose members have these addresses, the source first.
    ///
    /// # Panics
    /// When there is not one address for each member, or `open_max` is 0.
    pub fn new(tree: Tree, addresses: Vec<u32>, open_max: usize) -> Self {
        assert_eq!(addresses.len(), tree.members() as usize + 1, "an address for each member");
        let relay = Relay::new(children(&tree, &addresses, 0), open_max);
        Self { relay, tree, addresses, change: None, versions: 0 }
    }

    /// The source as the member that it is.
    pub fn relay(&self) -> &Relay<F> {
        &self.relay
    }

    /// As [`Source::relay`].
    pub fn relay_mut(&mut self) -> &mut Relay<F> {
        &mut self.relay
    }

    /// The tree that is used.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The children of member number `member` before any change, by address: what each member
    /// begins with.
    pub fn first_children(tree: &Tree, addresses: &[u32], member: u32) -> Vec<u32> {
        children(tree, addresses, member)
    }

    /// Gives out a frame: by the new tree, if a change is answered by all. Gives its number, and
    /// whether it is the first of a new tree.
    pub fn push(&mut self, frame: F) -> (u64, bool) {
        let mut version = self.relay.version();
        let ready = self.change.take_if(|change| change.unanswered.is_empty());
        let switches = ready.is_some();
        if let Some(change) = ready {
            version = change.version;
            self.relay.prepare(version, children(&change.tree, &self.addresses, 0));
            self.tree = change.tree;
        }
        (self.relay.append(version, frame), switches)
    }

    /// Whether a change is under way.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Begins to change to another tree over the same members; gives what members are to be told.
    /// A change that was under way is given up.
    pub fn begin(&mut self, tree: Tree) -> Vec<Steer> {
        self.versions += 1;
        let version = self.versions;
        let told = |member: &u32| tree.children(*member) != self.tree.children(*member);
        let members: Vec<u32> = (1..=tree.members()).filter(told).collect();
        let steer = |&member: &u32| Steer {
            to: self.addresses[member as usize],
            version,
            children: children(&tree, &self.addresses, member),
        };
        let steers: Vec<Steer> = members.iter().map(steer).collect();
        let unanswered = steers.iter().map(|steer| steer.to).collect();
        self.change = Some(Change { version, tree, unanswered });
        steers
    }

    /// A member has prepared a version.
    ///
    /// # Errors
    /// [`Breach::Answered`] when none was ever made. One that was given up is answered in vain.
    pub fn answered(&mut self, from: u32, version: u64) -> Result<(), Breach> {
        if version == 0 || version > self.versions {
            return Err(Breach::Answered { version });
        }
        if let Some(change) = self.change.as_mut().filter(|change| change.version == version) {
            change.unanswered.retain(|&member| member != from);
        }
        Ok(())
    }

    /// Gives up a change that is under way: the old tree stays.
    pub fn abandon(&mut self) {
        self.change = None;
    }
}

fn children(tree: &Tree, addresses: &[u32], member: u32) -> Vec<u32> {
    tree.children(member).iter().map(|&child| addresses[child as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::Shape;

    fn source(n: u32, cap: u32) -> Source<u8> {
        let addresses = (0..=n).map(|member| 10 * member).collect();
        Source::new(Tree::new(Shape::Capped(cap), n), addresses, 4)
    }

    #[test]
    fn a_change_is_used_by_the_first_frame_behind_all_answers() {
        let mut source = source(7, 3);
        assert_eq!(source.push(1), (0, false));
        let tree = source.tree().switched(2);
        let steers = source.begin(tree.clone());
        assert!(!steers.is_empty());
        assert_eq!(source.push(2), (1, false));
        for steer in &steers {
            assert_eq!(source.relay().version(), 0);
            source.answered(steer.to, steer.version).unwrap();
        }
        assert_ne!(*source.tree(), tree);
        assert_eq!(source.push(3), (2, true));
        assert_eq!((source.tree(), source.relay().version()), (&tree, 1));
        assert_eq!(source.push(4), (3, false));
    }

    #[test]
    fn a_change_that_is_given_up_leaves_the_old_tree() {
        let mut source = source(7, 3);
        let before = source.tree().clone();
        let steers = source.begin(before.switched(1));
        source.abandon();
        for steer in &steers {
            source.answered(steer.to, steer.version).unwrap();
        }
        assert_eq!(source.push(1), (0, false));
        assert_eq!((source.tree(), source.relay().version()), (&before, 0));
        assert_eq!(source.answered(10, 2), Err(Breach::Answered { version: 2 }));
        assert!(source.begin(before.switched(2)).iter().all(|steer| steer.version == 2));
    }
}
