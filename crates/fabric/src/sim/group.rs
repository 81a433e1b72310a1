//! Datagrams of groups: each copy is lost, repeated or delayed by a chance of its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::SimFabric;
use super::endpoint::{Shared, lock};
use super::link::pair;
use super::net::{Net, What};
use crate::multicast::{Group, GroupMember, Multicast};
use crate::{FabricError, PostError};

/// How a simulated network treats datagrams. The default is hostile.
#[derive(Debug, Clone)]
pub struct Datagrams {
    /// Bytes of one; zero for a network without groups.
    pub bytes_max: usize,
    /// Of a thousand copies, how many get lost.
    pub lost: u32,
    /// Of a thousand copies that do not, how many come twice.
    pub repeated: u32,
    /// Delay from `send` to the receiver, for each copy: the overtaking follows from it.
    pub delay_ns: Range<u64>,
    /// Copies that wait for a member to poll; further ones are lost.
    pub waiting_max: usize,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self { bytes_max: 1024, lost: 100, repeated: 50, delay_ns: 500..50_000, waiting_max: 64 }
    }
}

/// Index of a member among all that ever joined.
pub(super) type MemberId = u32;

/// The members of a network and what is under way to them.
#[derive(Default)]
pub(super) struct Groups {
    members: Vec<Joined>,
    /// Copies under way; free places are reused.
    flights: Vec<Option<(MemberId, Arc<[u8]>)>>,
    free: Vec<u32>,
}

struct Joined {
    node: u32,
    group: Group,
    left: bool,
    inbox: VecDeque<Arc<[u8]>>,
}

impl Net {
    fn send_datagram(&mut self, from: MemberId, bytes: &[u8]) -> Result<(), PostError> {
        let Joined { node, group, .. } = self.groups.members[from as usize];
        if bytes.len() > self.options.datagrams.bytes_max {
            return Err(PostError::TooLarge);
        }
        if self.dead(node) {
            return Err(PostError::Closed);
        }
        self.stats.datagrams += 1;
        self.trace(20, u64::from(from), bytes.len() as u64);
        let bytes: Arc<[u8]> = bytes.into();
        for to in 0..self.groups.members.len() {
            let member = &self.groups.members[to];
            let cut = self.cuts.contains(&pair(node, member.node));
            if to as MemberId == from || member.left || member.group != group || cut {
                continue;
            }
            let Datagrams { lost, repeated, .. } = self.options.datagrams;
            if self.rng.below(1000) < u64::from(lost) {
                self.stats.datagrams_lost += 1;
                continue;
            }
            let copies = 1 + u64::from(self.rng.below(1000) < u64::from(repeated));
            for _ in 0..copies {
                let delay_ns = self.options.datagrams.delay_ns.clone();
                let span = delay_ns.end.saturating_sub(delay_ns.start).max(1);
                let delay = delay_ns.start + self.rng.below(span);
                let flight = self.groups.takes_off(to as MemberId, &bytes);
                self.after(delay, What::Datagram(flight));
            }
        }
        Ok(())
    }

    /// A copy arrives.
    pub(super) fn datagram(&mut self, flight: u32) {
        let Some((to, bytes)) = self.groups.lands(flight) else { return };
        let member = &mut self.groups.members[to as usize];
        let room = member.inbox.len() < self.options.datagrams.waiting_max;
        if !room || member.left {
            self.stats.datagrams_lost += 1;
            return;
        }
        member.inbox.push_back(bytes);
    }

    /// A process that dies leaves its groups.
    pub(super) fn leave_all(&mut self, node: u32) {
        for member in self.groups.members.iter_mut().filter(|member| member.node == node) {
            member.leave();
        }
    }
}

impl Groups {
    fn takes_off(&mut self, to: MemberId, bytes: &Arc<[u8]>) -> u32 {
        let flight = Some((to, bytes.clone()));
        match self.free.pop() {
            Some(place) => {
                self.flights[place as usize] = flight;
                place
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        }
    }

    fn lands(&mut self, place: u32) -> Option<(MemberId, Arc<[u8]>)> {
        self.free.push(place);
        self.flights[place as usize].take()
    }
}

impl Joined {
    fn leave(&mut self) {
        self.left = true;
        self.inbox.clear();
    }
}

impl Multicast for SimFabric {
    fn datagram_max(&self) -> usize {
        lock(&self.net).options.datagrams.bytes_max
    }

    fn join(&self, group: Group) -> Result<Box<dyn GroupMember>, FabricError> {
        let mut net = lock(&self.net);
        let member = net.groups.members.len() as MemberId;
        let joined = Joined { node: self.node, group, left: false, inbox: VecDeque::new() };
        net.groups.members.push(joined);
        net.trace(21, u64::from(member), u64::from(self.node));
        Ok(Box::new(SimMember { net: self.net.clone(), member }))
    }
}

struct SimMember {
    net: Shared,
    member: MemberId,
}

impl GroupMember for SimMember {
    fn datagram_max(&self) -> usize {
        lock(&self.net).options.datagrams.bytes_max
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        lock(&self.net).send_datagram(self.member, bytes)
    }

    fn poll(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
        let taken = {
            let mut net = lock(&self.net);
            let Joined { node, .. } = net.groups.members[self.member as usize];
            if !net.runs(node) {
                return 0;
            }
            std::mem::take(&mut net.groups.members[self.member as usize].inbox)
        };
        taken.iter().for_each(|bytes| take(bytes));
        taken.len()
    }
}

impl Drop for SimMember {
    fn drop(&mut self) {
        lock(&self.net).groups.members[self.member as usize].leave();
    }
}
