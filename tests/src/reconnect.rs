//! Connections that break in a simulated cluster, and somebody who makes others: at times that the
//! seed says, so that each end of a link may be the first to notice, and what was just made may
//! break.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use channel::{Link, LinkError};
use dataflow::reconnect::{LinkEvent, Reconnector};
use fabric::sim::SimNet;
use fabric::{Fabric, LinkId};

use crate::random::Random;

/// An end of a link: its worker, and the other one.
type End = (u32, u32);

/// See the head of the module.
pub(crate) struct Repairs {
    /// Rounds between two breaks, on the average.
    every: u64,
    /// Workers of a node.
    per_node: u32,
    nodes: u32,
    random: Random,
    desk: Arc<Mutex<Desk>>,
}

/// What workers have given away, and what they are told.
#[derive(Default)]
struct Desk {
    away: BTreeMap<End, Link>,
    declined: BTreeSet<End>,
    asked: BTreeSet<End>,
    events: BTreeMap<u32, VecDeque<LinkEvent>>,
}

struct Counter(u32, Arc<Mutex<Desk>>);

impl Reconnector for Counter {
    /// A simulated worker does not sleep.
    fn set_waker(&mut self, _: Waker) {}

    fn reconnect(&mut self, worker: u32, link: Link, cause: LinkError) {
        assert!(matches!(cause, LinkError::Disconnected { .. }), "{cause}");
        let twice = lock(&self.1).away.insert((self.0, worker), link);
        assert!(twice.is_none(), "a link is given away once");
    }

    fn decline(&mut self, worker: u32) {
        lock(&self.1).declined.insert((self.0, worker));
    }

    fn next_event(&mut self) -> Option<LinkEvent> {
        lock(&self.1).events.get_mut(&self.0)?.pop_front()
    }
}

fn lock(desk: &Mutex<Desk>) -> std::sync::MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Repairs {
    pub(crate) fn new(every: u64, (nodes, per_node): (u32, u32), seed: u64) -> Self {
        Self { every, per_node, nodes, random: Random::new(seed), desk: Arc::default() }
    }

    /// What a worker is given.
    pub(crate) fn reconnector(&self, worker: u32) -> Box<dyn Reconnector> {
        Box::new(Counter(worker, self.desk.clone()))
    }

    /// One round: breaks connections, tells workers, makes others. True while some link is away.
    pub(crate) fn turn(&mut self, net: &SimNet) -> bool {
        if self.random.below(self.every) == 0 {
            let one = self.random.below(self.nodes.into()) as u32;
            let other = self.random.below(self.nodes.into()) as u32;
            if one != other {
                net.cut(one, other);
                net.heal(one, other);
            }
        }
        let ends: Vec<End> = lock(&self.desk).away.keys().copied().collect();
        for end in ends {
            // Nothing of this is fast.
            if self.random.below(4) == 0 {
                self.reconnect(net, end);
            }
        }
        !lock(&self.desk).away.is_empty()
    }

    fn reconnect(&self, net: &SimNet, (a, b): End) {
        let mut desk = lock(&self.desk);
        if desk.declined.contains(&(b, a)) {
            desk.away.remove(&(a, b));
            return desk.tell(a, LinkEvent::Declined { worker: b });
        }
        let Some(mut here) = desk.away.remove(&(a, b)) else { return };
        let Some(mut there) = desk.away.remove(&(b, a)) else {
            desk.away.insert((a, b), here);
            if desk.asked.insert((b, a)) {
                desk.tell(b, LinkEvent::Lost { worker: a });
            }
            return;
        };
        let fabrics = [a, b].map(|worker| net.fabric(worker / self.per_node));
        let offers = [(0, a, b), (1, b, a)].map(|(at, local, remote): (usize, u32, u32)| {
            fabrics[at].offer(LinkId { local, remote }).expect("the simulator refuses nothing")
        });
        let [of_a, of_b] = offers.each_ref().map(|offer| offer.address());
        let [from_a, from_b] = offers;
        let number = here.incarnation().max(there.incarnation()) + 1;
        let ends = [(&mut here, from_a, of_b, 0), (&mut there, from_b, of_a, 1)];
        for (link, offer, address, at) in ends {
            let endpoint = offer.connect(&address).expect("the simulator connects");
            link.renew(&*fabrics[at], endpoint, number).expect("the same fabric");
        }
        let rings = [here.descriptor(), there.descriptor()];
        here.attach(&rings[1]).expect("the peer is alike");
        there.attach(&rings[0]).expect("the peer is alike");
        for (end, link) in [((a, b), here), ((b, a), there)] {
            desk.asked.remove(&end);
            desk.tell(end.0, LinkEvent::Reconnected { worker: end.1, link: Box::new(link) });
        }
    }
}

impl Desk {
    fn tell(&mut self, worker: u32, events: LinkEvent) {
        self.events.entry(worker).or_default().push_back(events);
    }
}
