//! The root of a tree: numbers frames, and changes the tree between two of them (W9).

use super::relay::{Relay, RelayBreach};
use super::tree::BroadcastTree;

/// What a member is told before a tree is used: whom it will send to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TreeUpdate {
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
    tree: BroadcastTree,
    /// Members that were told, by number.
    announced: Vec<u32>,
    /// Members that have not answered, by address.
    unanswered: Vec<u32>,
}

/// A source of frames and the tree around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BroadcastSource<F> {
    relay: Relay<F>,
    tree: BroadcastTree,
    /// By member of the tree.
    addresses: Vec<u32>,
    change: Option<Change>,
    /// Members that were told of trees that are used, or were, and of which no frame was sent:
    /// they go on by the tree before, unless they are told of the next.
    untaught: Vec<u32>,
    /// The last version that was given to a tree, used or not.
    versions: u64,
}

impl<F> BroadcastSource<F> {
    /// A source of version 0, `tree`, whose members have these addresses, the source first.
    ///
    /// # Panics
    /// When there is not one address for each member, or `open_max` is 0.
    pub fn new(tree: BroadcastTree, addresses: Vec<u32>, open_max: usize) -> Self {
        assert_eq!(addresses.len(), tree.members() as usize + 1, "an address for each member");
        let relay = Relay::new(children(&tree, &addresses, 0), open_max);
        Self { relay, tree, addresses, change: None, untaught: vec![], versions: 0 }
    }

    /// The source as the member that it is.
    pub fn relay(&self) -> &Relay<F> {
        &self.relay
    }

    /// As [`BroadcastSource::relay`].
    pub fn relay_mut(&mut self) -> &mut Relay<F> {
        &mut self.relay
    }

    /// The tree that is used.
    pub fn tree(&self) -> &BroadcastTree {
        &self.tree
    }

    /// The children of member number `member` before any change, by address: what each member
    /// begins with.
    pub fn first_children(tree: &BroadcastTree, addresses: &[u32], member: u32) -> Vec<u32> {
        children(tree, addresses, member)
    }

    /// Emits a frame by the tree that is used; gives its number.
    pub fn push(&mut self, frame: F) -> u64 {
        self.relay.append(self.relay.version(), frame)
    }

    /// Whether a change is under way.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Begins to change to another tree over the same members; gives what members are to be told.
    /// A change that was under way is given up. If nobody has to be told, the tree is used at once.
    pub fn begin(&mut self, tree: BroadcastTree) -> Vec<TreeUpdate> {
        self.versions += 1;
        let version = self.versions;
        if self.relay.has_sent_of_version() {
            self.untaught.clear();
        }
        let announced = |member: &u32| {
            tree.children(*member) != self.tree.children(*member) || self.untaught.contains(member)
        };
        let members: Vec<u32> = (1..=tree.members()).filter(announced).collect();
        let update = |&member: &u32| TreeUpdate {
            to: self.addresses[member as usize],
            version,
            children: children(&tree, &self.addresses, member),
        };
        let steers: Vec<TreeUpdate> = members.iter().map(update).collect();
        let unanswered = steers.iter().map(|update| update.to).collect();
        self.change = Some(Change { version, tree, announced: members, unanswered });
        self.turn();
        steers
    }

    /// A member has prepared a version. True if it was the last, and the new tree is used from now
    /// on: by all frames behind the last that was sent to some child, also by those that wait.
    ///
    /// # Errors
    /// [`RelayBreach::Answered`] when none was ever made. One that was given up is answered in
    /// vain.
    pub fn answered(&mut self, from: u32, version: u64) -> Result<bool, RelayBreach> {
        if version == 0 || version > self.versions {
            return Err(RelayBreach::Answered { version });
        }
        if let Some(change) = self.change.as_mut().filter(|change| change.version == version) {
            change.unanswered.retain(|&member| member != from);
        }
        Ok(self.turn())
    }

    /// Goes over to the new tree, if all have answered.
    fn turn(&mut self) -> bool {
        let ready = self.change.take_if(|change| change.unanswered.is_empty());
        let Some(Change { version, tree, announced, .. }) = ready else { return false };
        if self.relay.has_sent_of_version() {
            self.untaught.clear();
        }
        self.untaught.extend(announced);
        self.relay.turn(version, children(&tree, &self.addresses, 0));
        self.tree = tree;
        true
    }

    /// Gives up a change that is under way: the old tree stays.
    pub fn abandon(&mut self) {
        self.change = None;
    }
}

fn children(tree: &BroadcastTree, addresses: &[u32], member: u32) -> Vec<u32> {
    tree.children(member).iter().map(|&child| addresses[child as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast::Shape;

    fn source(n: u32, cap: u32) -> BroadcastSource<u8> {
        let addresses = (0..=n).map(|member| 10 * member).collect();
        BroadcastSource::new(BroadcastTree::new(Shape::Capped(cap), n), addresses, 4)
    }

    /// The frames that a child of the source can be sent, with their versions.
    fn sent_to(source: &mut BroadcastSource<u8>, child: u32) -> Vec<(u64, u64)> {
        let mut sent = vec![];
        while let Some(next) = source.relay().to_send(child) {
            sent.push((next.seq, next.version));
            source.relay_mut().sent(child);
        }
        sent
    }

    #[test]
    fn a_change_is_used_when_all_have_answered() {
        let mut source = source(7, 3);
        assert_eq!(source.push(1), 0);
        let tree = source.tree().switched(2);
        let steers = source.begin(tree.clone());
        for (at, update) in steers.iter().enumerate() {
            assert_eq!((source.tree().degree(), source.relay().version()), (3, 0));
            let last = at + 1 == steers.len();
            assert_eq!(source.answered(update.to, update.version), Ok(last));
        }
        assert_eq!((source.tree(), source.relay().version()), (&tree, 1));
        assert_eq!(source.push(2), 1);
        let again = source.begin(tree.clone());
        let announced =
            |steers: &[TreeUpdate]| steers.iter().map(|update| update.to).collect::<Vec<_>>();
        assert_eq!(
            announced(&again),
            announced(&steers),
            "no frame has told them of the tree before"
        );
        source.abandon();
        sent_to(&mut source, 10);
        assert_eq!((source.begin(tree).len(), source.is_changing()), (0, false));
    }

    #[test]
    fn frames_that_wait_go_by_the_new_tree_behind_the_last_that_was_sent() {
        let mut source = source(7, 3);
        (0..4).for_each(|frame| assert_eq!(source.push(frame), u64::from(frame)));
        source.relay_mut().also(3, &[5]);
        // Frames 0 and 1 are under way by the old tree.
        for _ in 0..2 {
            source.relay_mut().sent(10);
        }
        for update in source.begin(source.tree().switched(1)) {
            source.answered(update.to, update.version).unwrap();
        }
        assert_eq!(sent_to(&mut source, 10), [(2, 1), (3, 1)]);
        assert_eq!(sent_to(&mut source, 20), [(0, 0), (1, 0)]);
        assert_eq!(sent_to(&mut source, 40), [(0, 0), (1, 0)]);
        source.relay_mut().settle();
        assert_eq!((source.relay().retained(), sent_to(&mut source, 5)), (1, vec![(3, 1)]));
        source.relay_mut().settle();
        assert_eq!(source.relay().retained(), 0);
    }

    #[test]
    fn a_change_that_is_given_up_leaves_the_old_tree() {
        let mut source = source(7, 3);
        let before = source.tree().clone();
        let steers = source.begin(before.switched(1));
        source.abandon();
        for update in &steers {
            assert_eq!(source.answered(update.to, update.version), Ok(false));
        }
        assert_eq!(source.push(1), 0);
        assert_eq!((source.tree(), source.relay().version()), (&before, 0));
        assert_eq!(source.answered(10, 2), Err(RelayBreach::Answered { version: 2 }));
        assert!(source.begin(before.switched(2)).iter().all(|update| update.version == 2));
    }
}
