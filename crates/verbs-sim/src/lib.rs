//! A drop-in `libibverbs.so.1` whose one device lives in memory and takes every liberty that the
//! InfiniBand specification leaves it.
//!
//! The verbs transport opens whatever library has that name; its tests put this one first on the
//! library path and so drive the very code that talks to real devices through torn and reordered
//! writes, late answers, broken queue pairs and writes of the dead, on machines without any RDMA.
//! Both ends have to be in one process: the device belongs to the library, and the library to the
//! process.
//!
//! It checks its users: bounds, keys, access rights and protection domains of both sides;
//! that queues do not overflow; that a source does not change before its completion; that objects
//! are destroyed after those that use them, and all of them before the device is closed.
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the functions of libibverbs, whose manual says what they want"
)]

mod air;
mod data;
mod knobs;
mod memory;
mod nic;
// The structures are those that the transport declares; the constants that only one of the two uses
// are not missed by the other.
#[allow(dead_code, reason = "shared with the transport")]
#[path = "../../fabric/src/verbs/sys.rs"]
mod sys;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use data::{poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};
use knobs::Knobs;
use nic::{Completions, Nic, Pair, Receives, Region};
use rustix::event::{EventfdFlags, eventfd};

/// The name of the only device.
const NAME: &CStr = c"sim0";
/// Steps that the device takes before it lets others look.
const STEPS: usize = 8;
/// `IBV_TRANSPORT_UNKNOWN`: a device that carries no immediate data, and is no iWARP either, which
/// nothing but a connection manager could connect.
const UNKNOWN: c_int = -1;
/// Error numbers of Linux.
const EINVAL: c_int = 22;
const ENOMEM: c_int = 12;
const EAGAIN: c_int = 11;

static NIC: LazyLock<Mutex<Nic>> = LazyLock::new(|| Mutex::new(Nic::new(Knobs::from_env())));
static WORK: Condvar = Condvar::new();
static STARTED: Once = Once::new();
static NEXT: AtomicU32 = AtomicU32::new(1);

fn nic() -> MutexGuard<'static, Nic> {
    NIC.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the device go on, and wakes who waits for what it has done so far.
fn kick(mut nic: MutexGuard<'_, Nic>) {
    wake(&mut nic);
    drop(nic);
    WORK.notify_one();
}

fn wake(nic: &mut Nic) {
    for fd in std::mem::take(&mut nic.wake) {
        signal(fd as RawFd);
    }
    if !nic.events.is_empty() {
        contexts().iter().for_each(|fd| signal(*fd));
    }
}

/// Descriptors of asynchronous events.
static CONTEXTS: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn contexts() -> MutexGuard<'static, Vec<RawFd>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(fd: RawFd) {
    // SAFETY: descriptors are closed after they were taken out of the lists.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

fn start() {
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let mut nic = nic();
                let moved = (0..STEPS).fold(false, |moved, _| nic.step() | moved);
                wake(&mut nic);
                if moved {
                    drop(nic);
                    std::thread::yield_now();
                } else {
                    let timeout = Duration::from_millis(1);
                    drop(WORK.wait_timeout(nic, timeout).unwrap_or_else(PoisonError::into_inner));
                }
            }
        });
    });
}

fn fail<T>(code: c_int) -> *mut T {
    // SAFETY: the thread's own error number.
    unsafe { *libc::__errno_location() = code };
    null_mut()
}

fn number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
/// The object was made by `leak` and is not used any more.
unsafe fn free<T>(object: *mut T) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(object) });
}

fn event_fd() -> RawFd {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
    eventfd(0, flags).map_or(-1, |fd: OwnedFd| fd.into_raw_fd())
}

/// Takes one signal off a descriptor.
fn take_signal(fd: RawFd) -> bool {
    // SAFETY: the descriptor of a live object.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::read(fd, &mut [0_u8; 8][..]).is_ok()
}

fn close(fd: RawFd) {
    // SAFETY: made by `event_fd`, and closed once.
    unsafe { rustix::io::close(fd) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(n: *mut c_int) -> *mut *mut c_void {
    let device = leak(sys::Device {
        dummies: [std::ptr::null(); 2],
        node_type: 1,
        transport_type: if nic().knobs.immediate { sys::TRANSPORT_IB } else { UNKNOWN },
    });
    // SAFETY: the caller's counter, which may be absent.
    if let Some(n) = unsafe { n.as_mut() } {
        *n = 1;
    }
    leak([device.cast::<c_void>(), null_mut()]).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut c_void) {
    // SAFETY: made above; opened contexts keep no pointer into it.
    unsafe {
        free((*list).cast::<sys::Device>());
        free(list.cast::<[*mut c_void; 2]>());
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(_: *mut c_void) -> *const c_char {
    NAME.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(_: *mut c_void) -> *mut c_void {
    start();
    let async_fd = event_fd();
    contexts().push(async_fd);
    let none = std::ptr::null();
    leak(sys::Context {
        device: null_mut(),
        ops: sys::ContextOps {
            compat_1: [none; 11],
            poll_cq,
            req_notify_cq,
            compat_2: [none; 7],
            post_srq_recv,
            compat_3: [none; 4],
            post_send,
            post_recv,
            compat_4: [none; 5],
        },
        cmd_fd: -1,
        async_fd,
    })
    .cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut c_void) -> c_int {
    let context = context.cast::<sys::Context>();
    // SAFETY: the caller's open context.
    let fd = unsafe { (*context).async_fd };
    let last = {
        let mut contexts = contexts();
        contexts.retain(|known| *known != fd);
        contexts.is_empty()
    };
    if last {
        let nic = nic();
        let left = (nic.pairs.len(), nic.completions.len(), nic.receives.len(), nic.regions.len());
        assert_eq!(left, (0, 0, 0, 0), "pairs, completion queues, receives, regions are left over");
        assert_eq!(nic.air.handles, 0, "address handles are left over");
    }
    close(fd);
    // SAFETY: made by `ibv_open_device`.
    unsafe { free(context) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(_: *mut c_void, out: *mut c_void) -> c_int {
    // SAFETY: all fields are numbers; the caller gives room for the structure.
    unsafe {
        let mut attr: sys::DeviceAttr = std::mem::zeroed();
        attr.fw_ver[..3].copy_from_slice(b"sim");
        (attr.vendor_id, attr.phys_port_cnt) = (0x00ff_ffff, 1);
        (attr.max_qp, attr.max_qp_wr, attr.max_cqe) = (4096, 1024, 1 << 16);
        (attr.max_mr, attr.max_pd, attr.max_sge) = (1 << 16, 1 << 16, 1);
        (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (16, 16);
        (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge) = (64, 8192, 1);
        attr.atomic_cap = i32::from(nic().knobs.immediate);
        (attr.max_mcast_grp, attr.max_ah) = (64, 64);
        out.cast::<sys::DeviceAttr>().write(attr);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(_: *mut c_void, _: u8, out: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe {
        let mut attr: sys::PortAttr = std::mem::zeroed();
        (attr.state, attr.max_mtu, attr.active_mtu) = (sys::PORT_ACTIVE, 5, 5);
        (attr.gid_tbl_len, attr.max_msg_sz, attr.pkey_tbl_len) = (1, 1 << 23, 1);
        (attr.active_width, attr.active_speed, attr.link_layer) = (2, 32, 2);
        out.cast::<sys::PortAttr>().write(attr);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut c_void,
    out: *mut c_void,
    room: usize,
    _: u32,
    entry_size: usize,
) -> isize {
    if room == 0 || entry_size != size_of::<sys::GidEntry>() {
        return -1;
    }
    let octets = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| octets[at + i]));
    let gid = [half(0), half(8)];
    let gid_type = sys::GID_ROCE_V2;
    let entry = sys::GidEntry { gid, gid_index: 0, port_num: 1, gid_type, ndev_ifindex: 1 };
    // SAFETY: the caller gives room for one entry at least.
    unsafe { out.cast::<sys::GidEntry>().write(entry) };
    1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut c_void) -> *mut c_void {
    leak(sys::Pd { context: context.cast() }).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c_void) -> c_int {
    let nic = nic();
    let name = pd as u64;
    let used = nic.regions.values().any(|region| region.pd == name)
        || nic.pairs.values().any(|pair| pair.pd == name)
        || nic.receives.values().any(|receives| receives.pd == name);
    assert!(!used, "a protection domain goes before what was made in it");
    // SAFETY: made by `ibv_alloc_pd`.
    unsafe { free(pd.cast::<sys::Pd>()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut c_void {
    let mut nic = nic();
    let pinned: u64 = nic.regions.values().map(|region| region.len).sum();
    if pinned + length as u64 > nic.knobs.pin_max {
        return fail(ENOMEM);
    }
    // Not consecutive, so that a guess misses.
    let key = number().wrapping_mul(0x9e37_79b1) | 1;
    let region = Region { pd: pd as u64, addr: addr as u64, len: length as u64, access };
    nic.regions.insert(key, region);
    let pd = pd.cast::<sys::Pd>();
    // SAFETY: a live protection domain.
    let context = unsafe { (*pd).context };
    leak(sys::Mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key }).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut c_void) -> c_int {
    let mr = mr.cast::<sys::Mr>();
    // SAFETY: a live region, which the caller gives up.
    unsafe {
        nic().forget((*mr).lkey);
        free(mr);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut c_void) -> *mut c_void {
    leak(sys::CompChannel { context: context.cast(), fd: event_fd() }).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut c_void) -> c_int {
    let channel = channel.cast::<sys::CompChannel>();
    // SAFETY: a live channel, which the caller gives up.
    unsafe {
        let fd = (*channel).fd;
        let used = nic().completions.values().any(|queue| queue.channel == fd as u64);
        assert!(!used, "a channel goes before its completion queue");
        close(fd);
        free(channel);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut c_void,
    entries: c_int,
    _: *mut c_void,
    channel: *mut c_void,
    _: c_int,
) -> *mut c_void {
    let cq = leak(sys::Cq { context: context.cast() }).cast::<c_void>();
    // SAFETY: a live channel, or none.
    let channel = unsafe { channel.cast::<sys::CompChannel>().as_ref() };
    let channel = channel.map_or(u64::MAX, |channel| channel.fd as u64);
    let capacity = usize::try_from(entries).unwrap_or(0);
    let queue = Completions {
        cq: cq as u64,
        channel,
        capacity,
        armed: false,
        entries: std::collections::VecDeque::new(),
    };
    nic().completions.insert(cq as u64, queue);
    cq
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut c_void) -> c_int {
    let mut nic = nic();
    let used = nic.pairs.values().any(|pair| pair.cq == cq as u64 || pair.receive_cq == cq as u64);
    assert!(!used, "a completion queue goes before its queue pair");
    nic.completions.remove(&(cq as u64));
    // SAFETY: made by `ibv_create_cq`.
    unsafe { free(cq.cast::<sys::Cq>()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut c_void,
    cq: *mut *mut c_void,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel, and room for both answers.
    unsafe {
        if !take_signal((*channel.cast::<sys::CompChannel>()).fd) {
            return -1;
        }
        (*cq, *context) = (null_mut(), null_mut());
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(_: *mut c_void, _: u32) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut c_void, attr: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's attributes and a live protection domain.
    let (capacity, context) =
        unsafe { ((*attr.cast::<sys::SrqInitAttr>()).max_wr, (*pd.cast::<sys::Pd>()).context) };
    let srq = leak(sys::Srq { context }).cast::<c_void>();
    let posted = std::collections::VecDeque::new();
    let receives = Receives { pd: pd as u64, capacity: capacity as usize, posted };
    nic().receives.insert(srq as u64, receives);
    srq
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut c_void) -> c_int {
    let mut nic = nic();
    let used = nic.pairs.values().any(|pair| pair.srq == srq as u64);
    assert!(!used, "a receive queue goes before its queue pairs");
    nic.receives.remove(&(srq as u64));
    // SAFETY: made by `ibv_create_srq`.
    unsafe { free(srq.cast::<sys::Srq>()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut c_void, attr: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr.cast::<sys::QpInitAttr>() };
    let mut nic = nic();
    let datagrams = attr.qp_type == sys::QPT_UD;
    if !(datagrams || attr.qp_type == sys::QPT_RC)
        || attr.cap.max_inline_data > nic.knobs.inline_max
    {
        return fail(EINVAL);
    }
    let qp_num = number();
    let qp = leak(sys::Qp {
        // SAFETY: a live protection domain.
        context: unsafe { (*pd.cast::<sys::Pd>()).context },
        qp_context: null_mut(),
        pd: pd.cast(),
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: 0,
        qp_num,
    });
    let (cq, srq) = (attr.send_cq as u64, attr.srq as u64);
    let capacity = u64::from(attr.cap.max_send_wr);
    let mut pair = Pair::new(qp as u64, pd as u64, cq, srq, capacity);
    pair.datagrams = datagrams;
    pair.receive_cq = attr.recv_cq as u64;
    pair.receives_max = attr.cap.max_recv_wr as usize;
    nic.pairs.insert(qp_num, pair);
    qp.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut c_void, attr: *mut c_void, mask: c_int) -> c_int {
    // SAFETY: a live queue pair and the caller's attributes.
    let (number, attr) = unsafe { ((*qp.cast::<sys::Qp>()).qp_num, &*attr.cast::<sys::QpAttr>()) };
    let mut nic = nic();
    let Some(pair) = nic.pairs.get_mut(&number) else { return EINVAL };
    let needs = match attr.qp_state {
        sys::QPS_INIT if pair.datagrams => sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_QKEY,
        sys::QPS_RTR if pair.datagrams => 0,
        sys::QPS_RTS if pair.datagrams => sys::QP_SQ_PSN,
        sys::QPS_INIT => sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS,
        sys::QPS_RTR => {
            sys::QP_AV
                | sys::QP_PATH_MTU
                | sys::QP_DEST_QPN
                | sys::QP_RQ_PSN
                | sys::QP_MAX_DEST_RD_ATOMIC
                | sys::QP_MIN_RNR_TIMER
        }
        sys::QPS_RTS => {
            sys::QP_TIMEOUT
                | sys::QP_RETRY_CNT
                | sys::QP_RNR_RETRY
                | sys::QP_SQ_PSN
                | sys::QP_MAX_QP_RD_ATOMIC
        }
        _ => 0,
    };
    let in_turn = attr.qp_state == sys::QPS_ERR || attr.qp_state == pair.state + 1;
    if mask != sys::QP_STATE | needs || !in_turn {
        return EINVAL;
    }
    match attr.qp_state {
        sys::QPS_ERR => nic.set_error(number),
        sys::QPS_RTR if !pair.datagrams && attr.ah_attr.is_global != 1 => return EINVAL,
        state => {
            pair.state = state;
            if mask & sys::QP_QKEY != 0 {
                pair.key = attr.qkey;
            }
            if state == sys::QPS_RTR {
                pair.peer = attr.dest_qp_num;
            }
        }
    }
    kick(nic);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut c_void) -> c_int {
    let qp = qp.cast::<sys::Qp>();
    let mut nic = nic();
    // Events that nobody has read go with the queue pair; who has read one is waited for.
    nic.events.retain(|(of, _)| *of != qp as u64);
    while nic.unacknowledged.contains(&(qp as u64)) {
        drop(nic);
        std::thread::yield_now();
        nic = self::nic();
    }
    // SAFETY: a live queue pair, which the caller gives up.
    let number = unsafe { (*qp).qp_num };
    let member = nic.air.groups.values().flatten().any(|member| *member == number);
    assert!(!member, "a queue pair goes before it has left its groups");
    nic.remove(number);
    // SAFETY: made by `ibv_create_qp`.
    unsafe { free(qp) };
    kick(nic);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut c_void, _: c_int, _: u32) -> c_int {
    c_int::from(nic().knobs.in_order)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut c_void, out: *mut c_void) -> c_int {
    let mut nic = nic();
    let Some((of, event_type)) = nic.events.pop_front() else {
        // SAFETY: an open context.
        let fd = unsafe { (*context.cast::<sys::Context>()).async_fd };
        // One signal may stand for several events, and one event for several signals.
        // SAFETY: as above.
        let waits = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
        while rustix::event::poll(
            &mut [rustix::event::PollFd::new(&waits(fd), rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        )
        .is_ok_and(|n| n > 0)
        {
            take_signal(fd.as_raw_fd());
        }
        fail::<c_void>(EAGAIN);
        return -1;
    };
    nic.unacknowledged.push(of);
    let event = sys::AsyncEvent { element: of as *mut c_void, event_type };
    // SAFETY: the caller gives room for an event.
    unsafe { out.cast::<sys::AsyncEvent>().write(event) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut c_void) {
    // SAFETY: an event that was taken before.
    let of = unsafe { (*event.cast::<sys::AsyncEvent>()).element } as u64;
    let mut nic = nic();
    let at = nic.unacknowledged.iter().position(|taken| *taken == of);
    nic.unacknowledged.swap_remove(at.expect("an event is acknowledged once"));
}
