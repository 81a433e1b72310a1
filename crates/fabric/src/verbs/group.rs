//! Groups by unreliable datagrams of the device: RoCE v2 over IPv4, whose groups are those of IP.
//!
//! A group's name chooses an address of the organisation's own scope (239.192.0.0/14) and the key
//! that devices compare; as both are few bits, each datagram begins with the whole name, and with a
//! number by which its sender knows its own.
//!
//! ```text
//!   | 16 bytes name | 8 bytes sender | payload |      at most the bytes of a packet
//! ```
//!
//! The queue pair that is attached to the group tells the device of it; the network, and a
//! device whose packets come in through the kernel, by a socket that joins the group as IP knows
//! it.
//!
//! Out of scope: InfiniBand and IPv6, whose groups are joined in other ways.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::memory::DeviceMemory;
use super::objects::{Domain, status};
use super::{DeviceChoice, DeviceInfo, GidKind, HOPS, VerbsFabric, VerbsOptions, sys};
use crate::memory::Backing;
use crate::multicast::{Group, GroupMember, Multicast};
use crate::token::Token;
use crate::{FabricError, PostError};

/// Datagrams that wait for a poll; more are lost.
const RECEIVES: usize = 256;
/// Datagrams on their way out.
const SENDS: usize = 64;
/// The header of the packet, which the device writes before a datagram.
const PACKET_HEADER: usize = 40;
/// Name and sender.
const HEADER: usize = Group::BYTES + 8;
/// All members of a group, as a number of a queue pair.
const EVERYBODY: u32 = 0x00ff_ffff;
/// Completions that are taken at a time.
const COMPLETIONS: usize = 32;

/// The address by which the chosen port is in groups; `None` where it cannot be.
pub(super) fn interface(device: &DeviceInfo, choice: &DeviceChoice) -> Option<Ipv4Addr> {
    let can = device.groups_max > 0 && choice.gid.kind == GidKind::RoceV2;
    choice.gid.address.to_ipv4_mapped().filter(|_| can)
}

impl Multicast for VerbsFabric {
    fn datagram_max(&self) -> usize {
        self.choice.mtu as usize - HEADER
    }

    fn join(&self, group: Group) -> Result<Box<dyn GroupMember>, FabricError> {
        let at = address(&group);
        let failed = |source| FabricError::Connect { link: format!("group {at}"), source };
        let interface = self.groups_at.ok_or(io::ErrorKind::Unsupported.into()).map_err(failed)?;
        let packet = self.choice.mtu as usize;
        let memory = DeviceMemory::new(&self.domain, Layout { packet }.bytes())?;
        let made =
            VerbsMember::new(&self.domain, memory, packet, GroupAt { group, interface }, |pair| {
                pair.come_up(&group, &self.options, &self.choice)
            });
        Ok(Box::new(made.map_err(failed)?))
    }
}

/// The address of a group.
fn address(group: &Group) -> Ipv4Addr {
    let [a, b, c, ..] = *group.name();
    Ipv4Addr::new(239, 192 | a & 3, b, c)
}

/// The same as devices write it.
fn mapped(group: &Group) -> [u64; 2] {
    let octets = address(group).to_ipv6_mapped().octets();
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| octets[at + i]));
    [word(0), word(8)]
}

/// The key that devices compare. Those with the highest bit stand for something else.
fn key(group: &Group) -> u32 {
    let [.., a, b, c, d] = *group.name();
    u32::from_le_bytes([a, b, c, d & 0x7f])
}

/// Where what lies in a member's memory: receives, then sends.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) packet: usize,
}

impl Layout {
    const fn stride(self) -> usize {
        (PACKET_HEADER + self.packet).next_multiple_of(64)
    }

    fn receive(self, index: usize) -> usize {
        index % RECEIVES * self.stride()
    }

    fn send(self, index: usize) -> usize {
        (RECEIVES + index % SENDS) * self.stride()
    }

    pub(super) const fn bytes(self) -> usize {
        (RECEIVES + SENDS) * self.stride()
    }
}

/// A member of a group.
struct VerbsMember {
    // Dropped in this order: nothing is received any more before the memory goes.
    pair: Pair,
    way: AddressHandle,
    memory: DeviceMemory,
    /// In the group as IP knows it, for as long as it is open.
    _membership: UdpSocket,
    layout: Layout,
    group: Group,
    sender: [u8; 8],
    /// Datagrams sent, and those of them that have left.
    sent: usize,
    gone: usize,
    broken: bool,
}

/// A group, and the interface by which it is reached.
struct GroupAt {
    group: Group,
    interface: Ipv4Addr,
}

impl VerbsMember {
    fn new(
        domain: &Arc<Domain>,
        memory: DeviceMemory,
        packet: usize,
        GroupAt { group, interface }: GroupAt,
        come_up: impl FnOnce(&mut Pair) -> io::Result<sys::AhAttr>,
    ) -> io::Result<Self> {
        let membership = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        membership.join_multicast_v4(&address(&group), &interface)?;
        let mut pair = Pair::new(domain)?;
        let way = AddressHandle::new(domain, come_up(&mut pair)?)?;
        let mut member = Self {
            pair,
            way,
            memory,
            _membership: membership,
            layout: Layout { packet },
            group,
            sender: Token::random()?.word().to_le_bytes(),
            sent: 0,
            gone: 0,
            broken: false,
        };
        for index in 0..RECEIVES {
            member.receive(index)?;
        }
        // Only now, so that nothing finds no room.
        member.pair.attach(mapped(&group))?;
        Ok(member)
    }

    fn sge(&self, at: usize, length: usize) -> sys::Sge {
        assert!(at + length <= self.memory.len(), "places are inside of the memory");
        let addr = self.memory.base().as_ptr() as u64 + at as u64;
        sys::Sge { addr, length: length as u32, lkey: self.memory.region().lkey() }
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let sge = self.sge(self.layout.receive(index), PACKET_HEADER + self.layout.packet);
        self.pair.post_receive(index as u64, sge)
    }

    /// The payload of a receive that has completed; `None` if it is not of the group, or our own.
    fn payload(&self, index: usize, len: usize) -> Option<&[u8]> {
        let len = len.min(PACKET_HEADER + self.layout.packet);
        let at = self.layout.receive(index);
        assert!(at + len <= self.memory.len(), "places are inside of the memory");
        // SAFETY: inside of the memory as asserted; the receive has completed, so that the device
        // does not write there until it is posted again, which its only taker does later.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().add(at), len) };
        let (name, rest) = bytes.get(PACKET_HEADER..)?.split_first_chunk::<{ Group::BYTES }>()?;
        let (sender, payload) = rest.split_first_chunk::<8>()?;
        (name == self.group.name() && *sender != self.sender).then_some(payload)
    }

    /// Takes the completions of what has left.
    fn reap(&mut self) {
        let mut wcs = [sys::Wc::default(); COMPLETIONS];
        let n = self.pair.poll(self.pair.sends, &mut wcs).unwrap_or_else(|_| {
            self.broken = true;
            0
        });
        self.gone += n;
        self.broken |= wcs[..n].iter().any(|wc| wc.status != sys::WC_SUCCESS);
    }
}

impl GroupMember for VerbsMember {
    fn datagram_max(&self) -> usize {
        self.layout.packet - HEADER
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), PostError> {
        if HEADER + bytes.len() > self.layout.packet {
            return Err(PostError::TooLarge);
        }
        self.reap();
        if self.broken {
            return Err(PostError::Closed);
        }
        if self.sent - self.gone == SENDS {
            return Err(PostError::Full);
        }
        let sge = self.sge(self.layout.send(self.sent), HEADER + bytes.len());
        let parts = [&self.group.name()[..], &self.sender, bytes];
        let mut at = sge.addr as *mut u8;
        for part in parts {
            // SAFETY: the parts have the length of the element, which is inside of the memory; the
            // place is free, since sends complete in order and fewer than all places are in use.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
        let ud = sys::Ud {
            ah: self.way.ah.as_ptr(),
            remote_qpn: EVERYBODY,
            remote_qkey: key(&self.group),
        };
        if self.pair.post_send(sge, ud).is_err() {
            self.broken = true;
            return Err(PostError::Closed);
        }
        self.sent += 1;
        Ok(())
    }

    fn poll(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
        self.reap();
        let mut taken = 0;
        loop {
            let mut wcs = [sys::Wc::default(); COMPLETIONS];
            let Ok(n) = self.pair.poll(self.pair.receives, &mut wcs) else {
                self.broken = true;
                return taken;
            };
            for wc in &wcs[..n] {
                let index = wc.wr_id as usize % RECEIVES;
                if wc.status != sys::WC_SUCCESS {
                    self.broken = true;
                    continue;
                }
                if let Some(payload) = self.payload(index, wc.byte_len as usize) {
                    take(payload);
                    taken += 1;
                }
                self.broken |= self.receive(index).is_err();
            }
            if n < COMPLETIONS {
                return taken;
            }
        }
    }
}

/// A queue pair of unreliable datagrams.
struct Pair {
    domain: Arc<Domain>,
    sends: NonNull<sys::Cq>,
    receives: NonNull<sys::Cq>,
    qp: Option<NonNull<sys::Qp>>,
    group: Option<[u64; 2]>,
}

// SAFETY: libibverbs allows any thread to call any function on an object; one thread at a time owns
// a pair.
unsafe impl Send for Pair {}

impl Pair {
    fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        let queue = |entries: usize| {
            let create = domain.library.ibv_create_cq;
            let entries = entries as c_int;
            // SAFETY: the context is open; without a channel nobody is woken.
            let cq = unsafe { create(domain.context(), entries, null_mut(), null_mut(), 0) };
            NonNull::new(cq).ok_or_else(io::Error::last_os_error)
        };
        let sends = queue(SENDS)?;
        let receives = queue(RECEIVES).inspect_err(|_| {
            // SAFETY: made above, and nothing uses it.
            unsafe { (domain.library.ibv_destroy_cq)(sends.as_ptr()) };
        })?;
        let mut pair = Self { domain: domain.clone(), sends, receives, qp: None, group: None };
        let mut attr = sys::QpInitAttr {
            qp_context: null_mut(),
            send_cq: sends.as_ptr(),
            recv_cq: receives.as_ptr(),
            srq: null_mut(),
            cap: sys::QpCap {
                max_send_wr: SENDS as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::QPT_UD,
            sq_sig_all: 1,
        };
        // SAFETY: domain and completion queues are alive and held by `pair`.
        let qp = unsafe { (domain.library.ibv_create_qp)(domain.pd(), &raw mut attr) };
        pair.qp = Some(NonNull::new(qp).ok_or_else(io::Error::last_os_error)?);
        Ok(pair)
    }

    fn qp(&self) -> *mut sys::Qp {
        self.qp.map_or(null_mut(), NonNull::as_ptr)
    }

    /// Brings the queue pair up; returns the way to the group.
    fn come_up(
        &mut self,
        group: &Group,
        options: &VerbsOptions,
        choice: &DeviceChoice,
    ) -> io::Result<sys::AhAttr> {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut attr: sys::QpAttr = unsafe { std::mem::zeroed() };
        attr.pkey_index = options.pkey_index;
        attr.port_num = choice.port;
        attr.qkey = key(group);
        let first = sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_QKEY;
        for (state, mask) in
            [(sys::QPS_INIT, first), (sys::QPS_RTR, 0), (sys::QPS_RTS, sys::QP_SQ_PSN)]
        {
            attr.qp_state = state;
            let modify = self.domain.library.ibv_modify_qp;
            // SAFETY: the queue pair is alive, and the attributes are read during the call.
            status(unsafe { modify(self.qp(), &raw mut attr, sys::QP_STATE | mask) })?;
        }
        let mut way = attr.ah_attr;
        way.dgid = mapped(group);
        way.sgid_index = choice.gid.index as u8;
        way.hop_limit = HOPS;
        way.traffic_class = options.traffic_class;
        way.sl = options.service_level;
        way.is_global = 1;
        way.port_num = choice.port;
        Ok(way)
    }

    fn attach(&mut self, group: [u64; 2]) -> io::Result<()> {
        // SAFETY: the queue pair is alive, and the address is read during the call.
        status(unsafe { (self.domain.library.ibv_attach_mcast)(self.qp(), &raw const group, 0) })?;
        self.group = Some(group);
        Ok(())
    }

    fn post_receive(&mut self, wr_id: u64, mut sge: sys::Sge) -> io::Result<()> {
        let mut wr = sys::RecvWr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; request and element are copied during the call, and the
        // memory stays registered for longer than the queue pair lives.
        status(unsafe { (self.domain.ops().post_recv)(self.qp(), &raw mut wr, &raw mut bad) })
    }

    fn post_send(&mut self, mut sge: sys::Sge, ud: sys::Ud) -> io::Result<()> {
        let mut wr = super::queue::request(sys::WR_SEND, sys::SEND_SIGNALED);
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.wr = sys::Target { ud };
        let mut bad = null_mut();
        // SAFETY: as above; the handle is alive, and needed during the call only.
        status(unsafe { (self.domain.ops().post_send)(self.qp(), &raw mut wr, &raw mut bad) })
    }

    fn poll(&self, queue: NonNull<sys::Cq>, out: &mut [sys::Wc]) -> io::Result<usize> {
        // SAFETY: the completion queue is alive, and there is room for this number.
        let n = unsafe {
            (self.domain.ops().poll_cq)(queue.as_ptr(), out.len() as c_int, out.as_mut_ptr())
        };
        // Memory that the device wrote before a completion is read after it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        usize::try_from(n).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let library = &self.domain.library;
        // SAFETY: all were made by us and are destroyed once, the queue pair before its queues and
        // after it has left its group.
        unsafe {
            if let Some(group) = &self.group {
                (library.ibv_detach_mcast)(self.qp(), group, 0);
            }
            if let Some(qp) = self.qp {
                (library.ibv_destroy_qp)(qp.as_ptr());
            }
            (library.ibv_destroy_cq)(self.sends.as_ptr());
            (library.ibv_destroy_cq)(self.receives.as_ptr());
        }
    }
}

/// The way to a group, as the device keeps it.
struct AddressHandle {
    domain: Arc<Domain>,
    ah: NonNull<sys::Ah>,
}

// SAFETY: as for `Pair`.
unsafe impl Send for AddressHandle {}

impl AddressHandle {
    fn new(domain: &Arc<Domain>, mut attr: sys::AhAttr) -> io::Result<Self> {
        // SAFETY: the protection domain is alive, and the attributes are read during the call.
        let ah = unsafe { (domain.library.ibv_create_ah)(domain.pd(), &raw mut attr) };
        let ah = NonNull::new(ah).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { domain: domain.clone(), ah })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once; the queue pair that used it is gone.
        unsafe { (self.domain.library.ibv_destroy_ah)(self.ah.as_ptr()) };
    }
}
