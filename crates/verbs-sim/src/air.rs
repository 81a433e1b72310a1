//! Datagrams and their groups: copies that are on the way, and arrive, or not, or twice, in any
//! order.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use crate::memory::store;
use crate::nic::{Nic, Request};
use crate::{EINVAL, free, leak, nic, sys};

/// Bytes before a datagram in its receive: the header of the packet.
const HEADER: u32 = 40;

/// The address of a group.
pub(crate) type Group = [u64; 2];

/// See the head of the module.
#[derive(Default)]
pub(crate) struct Air {
    pub(crate) groups: BTreeMap<Group, Vec<u32>>,
    /// Address handles that are not destroyed.
    pub(crate) handles: usize,
    copies: Vec<(u32, Vec<u8>)>,
}

/// An address handle of ours: the part that users see, and the group.
#[repr(C)]
struct Handle {
    ah: sys::Ah,
    group: Group,
}

/// Where a datagram goes to: group and key.
///
/// # Safety
/// The request is one of a queue pair of datagrams, and its handle is alive.
pub(crate) unsafe fn target(wr: &sys::SendWr) -> sys::Atomic {
    // SAFETY: as the caller promises.
    let (ud, group) = unsafe { (wr.wr.ud, (*wr.wr.ud.ah.cast::<Handle>()).group) };
    assert_eq!(ud.remote_qpn, 0x00ff_ffff, "datagrams go to groups");
    sys::Atomic { remote_addr: group[0], compare_add: group[1], swap: 0, rkey: ud.remote_qkey }
}

impl Nic {
    /// Sends the copies of a datagram on their way.
    pub(crate) fn cast(&mut self, from: u32, request: &Request) -> Result<Vec<u8>, i32> {
        let pd = self.pairs[&from].pd;
        let data = self.source(pd, &request.bytes)?;
        let group = [request.target.remote_addr, request.target.compare_add];
        for to in self.air.groups.get(&group).cloned().unwrap_or_default() {
            let wanted = self.pairs[&to].key == request.target.rkey;
            // A device does not hand a datagram to the queue pair that has sent it.
            if to == from || !wanted || self.draw(1000) < self.knobs.lost as usize {
                continue;
            }
            let copies = 1 + usize::from(self.draw(1000) < self.knobs.repeated as usize);
            (0..copies).for_each(|_| self.air.copies.push((to, data.clone())));
        }
        Ok(data)
    }

    /// A copy arrives; one that finds no receive is lost.
    pub(crate) fn arrive(&mut self) -> bool {
        if self.air.copies.is_empty() {
            return false;
        }
        let at = self.draw(self.air.copies.len());
        let (to, data) = self.air.copies.swap_remove(at);
        let Some(pair) = self.pairs.get_mut(&to).filter(|p| p.state >= sys::QPS_RTR) else {
            return true;
        };
        let Some((wr_id, sge)) = pair.receives.pop_front() else { return true };
        let (pd, cq, retired) = (pair.pd, pair.receive_cq, pair.retired);
        let length = HEADER + data.len() as u32;
        assert!(sge.length >= length, "a datagram is longer than its receive");
        self.local(pd, &sge, sys::ACCESS_LOCAL_WRITE).expect("receives are registered");
        // SAFETY: inside of a registered region, as was just checked.
        unsafe { store(sge.addr, &[&[0xa5; HEADER as usize][..], &data].concat()) };
        let (status, opcode) = (sys::WC_SUCCESS, sys::WC_RECV);
        let wc =
            sys::Wc { wr_id, status, opcode, byte_len: length, qp_num: to, ..Default::default() };
        self.push(cq, wc, to, retired);
        true
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut c_void, attr: *mut c_void) -> *mut c_void {
    // SAFETY: a live protection domain and the caller's attributes.
    let (context, attr) =
        unsafe { ((*pd.cast::<sys::Pd>()).context, &*attr.cast::<sys::AhAttr>()) };
    assert_eq!((attr.is_global, attr.port_num), (1, 1), "groups have global addresses");
    nic().air.handles += 1;
    leak(Handle { ah: sys::Ah { context }, group: attr.dgid }).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut c_void) -> c_int {
    nic().air.handles -= 1;
    // SAFETY: made by `ibv_create_ah`.
    unsafe { free(ah.cast::<Handle>()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut sys::Qp, group: *const Group, _: u16) -> c_int {
    // SAFETY: a live queue pair and the caller's address.
    let (number, group) = unsafe { ((*qp).qp_num, *group) };
    let mut nic = nic();
    if !nic.pairs.get(&number).is_some_and(|pair| pair.datagrams) {
        return EINVAL;
    }
    nic.air.groups.entry(group).or_default().push(number);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut sys::Qp, group: *const Group, _: u16) -> c_int {
    // SAFETY: as above.
    let (number, group) = unsafe { ((*qp).qp_num, *group) };
    let mut nic = nic();
    let members = nic.air.groups.entry(group).or_default();
    let Some(at) = members.iter().position(|member| *member == number) else { return EINVAL };
    members.swap_remove(at);
    0
}
