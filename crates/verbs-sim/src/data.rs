//! The calls of the data path, which users find in the table of the context.

use std::ffi::c_int;

use crate::nic::{Bytes, Request};
use crate::{EINVAL, ENOMEM, kick, memory, nic, sys};

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, room: c_int, out: *mut sys::Wc) -> c_int {
    let mut nic = nic();
    // A write that lands too late has to be seen however seldom the device's thread runs.
    if nic.breaks_revoke() {
        nic.step();
    }
    let Some(queue) = nic.completions.get_mut(&(cq as u64)) else { return -1 };
    let n = queue.entries.len().min(usize::try_from(room).unwrap_or(0));
    let taken: Vec<_> = queue.entries.drain(..n).collect();
    for (i, (wc, number, retired)) in taken.into_iter().enumerate() {
        // SAFETY: the caller gives room for this number.
        unsafe { out.add(i).write(wc) };
        if let Some(pair) = nic.pairs.get_mut(&number) {
            pair.retired = pair.retired.max(retired);
        }
    }
    n as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut sys::Cq, _: c_int) -> c_int {
    match nic().completions.get_mut(&(cq as u64)) {
        Some(queue) => {
            queue.armed = true;
            0
        }
        None => EINVAL,
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::Srq,
    wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    let mut nic = nic();
    let mut next = wr;
    // SAFETY: a list of the caller's, with one element each.
    while let Some(wr) = unsafe { next.as_mut() } {
        let Some(receives) = nic.receives.get_mut(&(srq as u64)) else { return EINVAL };
        if receives.posted.len() == receives.capacity {
            // SAFETY: the caller's place for the bad request.
            unsafe { *bad = next };
            return ENOMEM;
        }
        // SAFETY: as above.
        receives.posted.push_back((wr.wr_id, unsafe { *wr.sg_list }));
        next = wr.next;
    }
    0
}

/// Of queue pairs of datagrams; the others have a shared queue.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut sys::Qp,
    wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut nic = nic();
    let Some(pair) = nic.pairs.get_mut(&number).filter(|pair| pair.datagrams) else {
        return EINVAL;
    };
    let mut next = wr;
    // SAFETY: a list of the caller's, with one element each.
    while let Some(wr) = unsafe { next.as_mut() } {
        if pair.receives.len() == pair.receives_max {
            // SAFETY: the caller's place for the bad request.
            unsafe { *bad = next };
            return ENOMEM;
        }
        // SAFETY: as above.
        pair.receives.push_back((wr.wr_id, unsafe { *wr.sg_list }));
        next = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut sys::Qp,
    wr: *mut sys::SendWr,
    bad: *mut *mut sys::SendWr,
) -> c_int {
    // SAFETY: a live queue pair.
    let number = unsafe { (*qp).qp_num };
    let mut nic = nic();
    let mut next = wr;
    // SAFETY: a list of the caller's.
    while let Some(wr) = unsafe { next.as_mut() } {
        let (inline_max, carries) = (nic.knobs.inline_max, nic.knobs.immediate);
        let Some(pair) = nic.pairs.get_mut(&number) else { return EINVAL };
        if pair.posted - pair.retired == pair.capacity || pair.state < sys::QPS_RTS {
            // SAFETY: the caller's place for the bad request.
            unsafe { *bad = next };
            return ENOMEM;
        }
        let immediate = [sys::WR_RDMA_WRITE_WITH_IMM, sys::WR_SEND_WITH_IMM].contains(&wr.opcode);
        if immediate && !carries {
            // SAFETY: as above.
            unsafe { *bad = next };
            return EINVAL;
        }
        let sge = match wr.num_sge {
            0 => sys::Sge::default(),
            // SAFETY: one element, as was said.
            _ => unsafe { *wr.sg_list },
        };
        let bytes = match wr.send_flags & sys::SEND_INLINE {
            0 => Bytes::At(sge),
            _ => {
                assert!(sge.length <= inline_max, "more inline bytes than were asked for");
                // SAFETY: inline bytes are the caller's until this call returns.
                Bytes::Inline(unsafe { memory::load(sge.addr, sge.length as usize) })
            }
        };
        let request = Request::new(wr, bytes, pair.posted, pair.datagrams);
        pair.post(request);
        if pair.state == sys::QPS_ERR {
            nic.set_error(number);
        }
        next = wr.next;
    }
    kick(nic);
    0
}
