//! The library's objects as owners: each keeps alive what it needs, and is destroyed once.
//!
//! ```text
//!   Domain (context, pd) ◀── Region, SharedReceives (srq) ◀── Wire (channel, cq, qp)
//! ```
//!
//! **Order of destruction.** Queue pair before completion queue before regions before protection
//! domain before context. The owners hold each other by `Arc`, so that the order holds whatever
//! the order of drops is.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::library::Library;
use super::receives::Receives;
use super::sys;
use crate::Slab;

/// Rounds of trying to destroy an object that the library says is in use.
const DESTROY_ROUNDS: u32 = 100;

/// An open device with the protection domain of a fabric.
pub(super) struct Domain {
    pub(super) library: Arc<Library>,
    context: NonNull<sys::Context>,
    pd: NonNull<sys::Pd>,
    iwarp: bool,
}

// SAFETY: libibverbs allows any thread to call any function on an object; the table of the context
// is not written after the device was opened.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Takes over an open context.
    ///
    /// # Errors
    /// When there is no protection domain left.
    ///
    /// # Safety
    /// The context was opened by this library and is closed by nobody else.
    pub(super) unsafe fn new(
        library: Arc<Library>,
        context: NonNull<sys::Context>,
        iwarp: bool,
    ) -> io::Result<Self> {
        // SAFETY: the context is open.
        let pd = unsafe { (library.ibv_alloc_pd)(context.as_ptr()) };
        let Some(pd) = NonNull::new(pd) else {
            let error = io::Error::last_os_error();
            // SAFETY: nothing was made in it.
            unsafe { (library.ibv_close_device)(context.as_ptr()) };
            return Err(error);
        };
        Ok(Self { library, context, pd, iwarp })
    }

    pub(super) fn context(&self) -> *mut sys::Context {
        self.context.as_ptr()
    }

    /// The device's access rights to our memory at our own requests.
    pub(super) fn local_access(&self) -> c_int {
        if self.iwarp {
            // To iWARP the answer to our read is a write of the peer.
            sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE
        } else {
            sys::ACCESS_LOCAL_WRITE
        }
    }

    /// Whether the device is of iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        self.iwarp
    }

    pub(super) fn pd(&self) -> *mut sys::Pd {
        self.pd.as_ptr()
    }

    pub(super) fn ops(&self) -> &sys::ContextOps {
        // SAFETY: the context is open for as long as `self` lives, and its table is not written.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// The name of the device of a context; `None` where that is null.
    ///
    /// # Safety
    /// The context is null, or open.
    pub(super) unsafe fn name_of(&self, context: *mut sys::Context) -> Option<String> {
        let context = NonNull::new(context)?;
        // SAFETY: an open context has a device, whose name ends with a zero byte.
        let name = unsafe {
            let device = context.as_ref().device;
            CStr::from_ptr((self.library.ibv_get_device_name)(device))
        };
        Some(name.to_string_lossy().into_owned())
    }

    /// The descriptor of asynchronous events.
    pub(super) fn async_fd(&self) -> RawFd {
        // SAFETY: as above.
        unsafe { (*self.context.as_ptr()).async_fd }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all objects of the domain hold it, so that none is left; each is destroyed once.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.pd.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// Memory that the device may touch.
pub(super) struct Region {
    domain: Arc<Domain>,
    mr: NonNull<sys::Mr>,
    lkey: u32,
    rkey: u32,
    registered: bool,
    /// Keeps the memory mapped.
    _memory: Option<Slab>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory. `relaxed` lets the device place writes in any order, where it can.
    ///
    /// # Errors
    /// The system's error; `ENOMEM` usually means the limit of locked memory.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped, and no reference into it is used in a
    /// way that access by the device would contradict.
    pub(super) unsafe fn register(
        domain: &Arc<Domain>,
        base: *mut u8,
        bytes: usize,
        access: c_int,
        relaxed: bool,
    ) -> io::Result<Self> {
        let library = &domain.library;
        // SAFETY: the protection domain is alive; the memory is mapped as the caller promises.
        let mr = unsafe {
            match library.ibv_reg_mr_iova2.filter(|_| relaxed) {
                Some(register) => {
                    let access = access | sys::ACCESS_RELAXED_ORDERING;
                    register(domain.pd(), base.cast(), bytes, base as u64, access as u32)
                }
                None => (library.ibv_reg_mr)(domain.pd(), base.cast(), bytes, access),
            }
        };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the library has just made it, and does not change its keys.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        Ok(Self { domain: domain.clone(), mr, lkey, rkey, registered: true, _memory: None })
    }

    /// The same region, which keeps its memory mapped.
    pub(super) fn holding(mut self, memory: Slab) -> Self {
        self._memory = Some(memory);
        self
    }

    /// The key for requests of this side.
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for requests of peers.
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Takes the memory away from the device. When this returns true the device cannot touch it any
    /// more; false means that the device still uses it.
    pub(super) fn revoke(&mut self) -> bool {
        for _ in 0..DESTROY_ROUNDS {
            if !self.registered {
                break;
            }
            // SAFETY: registered by us and not deregistered yet.
            match unsafe { (self.domain.library.ibv_dereg_mr)(self.mr.as_ptr()) } {
                0 => self.registered = false,
                _ => std::thread::yield_now(),
            }
        }
        !self.registered
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.revoke();
    }
}

/// A shared receive queue.
pub(super) struct SharedReceives {
    domain: Arc<Domain>,
    srq: NonNull<sys::Srq>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for SharedReceives {}
// SAFETY: as above.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    /// # Errors
    /// When the device has no such queue.
    pub(super) fn new(domain: &Arc<Domain>, entries: u32) -> io::Result<Self> {
        let mut attr =
            sys::SrqInitAttr { srq_context: null_mut(), max_wr: entries, max_sge: 1, srq_limit: 0 };
        // SAFETY: the protection domain is alive, and the attributes are read during the call.
        let srq = unsafe { (domain.library.ibv_create_srq)(domain.pd(), &raw mut attr) };
        let srq = NonNull::new(srq).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { domain: domain.clone(), srq })
    }

    /// Posts one receive into the memory that `sge` names, which stays registered and untouched
    /// until the receive completes.
    pub(super) fn post(&self, wr_id: u64, mut sge: sys::Sge) -> io::Result<()> {
        let mut wr = sys::RecvWr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = null_mut();
        let post = self.domain.ops().post_srq_recv;
        // SAFETY: the queue is alive; request and element are copied during the call.
        status(unsafe { post(self.srq.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: made by us; the queue pairs that use it hold it by `Arc` and are gone.
        unsafe { (self.domain.library.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}

/// A reliable connection: queue pair, completion queue and the channel that it wakes by.
pub(super) struct Wire {
    domain: Arc<Domain>,
    receives: Arc<Receives>,
    channel: NonNull<sys::CompChannel>,
    cq: NonNull<sys::Cq>,
    qp: Option<NonNull<sys::Qp>>,
    /// Events taken from the channel that the completion queue has not been told of.
    unacked: u32,
}

// SAFETY: as for `Domain`; one thread at a time owns a wire.
unsafe impl Send for Wire {}

/// Bytes that a device is asked to carry in the request itself, the best first.
const INLINE_TRIED: [u32; 3] = [220, 60, 0];

impl Wire {
    /// Makes the objects of a connection; returns also how many bytes fit a request.
    ///
    /// # Errors
    /// When the device has none left, or `sends` or `completions` are more than it can.
    pub(super) fn new(
        domain: &Arc<Domain>,
        receives: &Arc<Receives>,
        sends: u32,
        completions: u32,
    ) -> io::Result<(Self, u32)> {
        let library = domain.library.clone();
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(domain.context()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: context and channel are alive; there is always a vector 0.
        let cq = unsafe {
            let entries = c_int::try_from(completions).unwrap_or(c_int::MAX);
            (library.ibv_create_cq)(domain.context(), entries, null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = io::Error::last_os_error();
            // SAFETY: made above, and nothing uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let mut wire = Self {
            domain: domain.clone(),
            receives: receives.clone(),
            channel,
            cq,
            qp: None,
            unacked: 0,
        };
        // SAFETY: the descriptor belongs to the channel, which `wire` keeps.
        let fd = unsafe { BorrowedFd::borrow_raw(wire.channel_fd()) };
        nonblocking(fd)?;
        let mut refused = io::Error::from(io::ErrorKind::Unsupported);
        for inline in INLINE_TRIED {
            let cap = sys::QpCap {
                max_send_wr: sends,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: inline,
            };
            let mut attr = sys::QpInitAttr {
                qp_context: null_mut(),
                send_cq: cq.as_ptr(),
                recv_cq: cq.as_ptr(),
                srq: receives.queue.srq.as_ptr(),
                cap,
                qp_type: sys::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain, completion queue and receive queue are alive and held by `wire`.
            let qp = unsafe { (library.ibv_create_qp)(domain.pd(), &raw mut attr) };
            refused = io::Error::last_os_error();
            if let Some(qp) = NonNull::new(qp) {
                wire.qp = Some(qp);
                return Ok((wire, inline));
            }
        }
        Err(refused)
    }

    /// The number by which peers address the queue pair; zero when it is gone.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive while it is here, and does not change its number.
        self.qp.map_or(0, |qp| unsafe { qp.as_ref().qp_num })
    }

    /// The descriptor that a completion makes readable after [`Wire::request_event`].
    pub(super) fn channel_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { self.channel.as_ref().fd }
    }

    /// Changes the state of the queue pair.
    ///
    /// # Errors
    /// The device's result for these attributes.
    pub(super) fn modify(&mut self, attr: &mut sys::QpAttr, mask: c_int) -> io::Result<()> {
        let Some(qp) = self.qp else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: the queue pair is alive, and the attributes are read during the call.
        status(unsafe { (self.domain.library.ibv_modify_qp)(qp.as_ptr(), &raw mut *attr, mask) })
    }

    /// Whether the device says that the bytes of a write appear in order, the last one last.
    pub(super) fn writes_in_order(&self) -> bool {
        let (Some(query), Some(qp)) = (self.domain.library.ibv_query_qp_data_in_order, self.qp)
        else {
            return false;
        };
        // SAFETY: the queue pair is alive.
        unsafe { query(qp.as_ptr(), sys::WR_RDMA_WRITE, 0) & 1 == 1 }
    }

    /// Posts a list of requests by one doorbell.
    ///
    /// # Errors
    /// When the queue is full or the queue pair broken. The requests before the bad one are posted.
    ///
    /// # Safety
    /// The list is linked, and the elements that it points to are readable; the memory that they
    /// name stays registered until the requests have completed or the queue pair is destroyed.
    pub(super) unsafe fn post_send(&mut self, first: *mut sys::SendWr) -> io::Result<()> {
        let Some(qp) = self.qp else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; the list is as the caller promises.
        status(unsafe { (self.domain.ops().post_send)(qp.as_ptr(), first, &raw mut bad) })
    }

    /// Takes completions; returns how many.
    ///
    /// # Errors
    /// When the completion queue is broken.
    pub(super) fn poll(&mut self, out: &mut [sys::Wc]) -> io::Result<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the completion queue is alive, and there is room for this number.
        let n = unsafe { (self.domain.ops().poll_cq)(self.cq.as_ptr(), room, out.as_mut_ptr()) };
        // Memory that the device wrote before a completion is read after it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        usize::try_from(n).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Asks for one event at the next completion. Completions that are there already raise none:
    /// poll after this call.
    ///
    /// # Errors
    /// When the completion queue is broken.
    pub(super) fn request_event(&mut self) -> io::Result<()> {
        self.drain_events();
        // SAFETY: the completion queue is alive.
        status(unsafe { (self.domain.ops().req_notify_cq)(self.cq.as_ptr(), 0) })
    }

    /// Takes the events that have come; the channel is readable only by new ones afterwards.
    fn drain_events(&mut self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        let take = self.domain.library.ibv_get_cq_event;
        // SAFETY: the channel is alive and does not block.
        while unsafe { take(self.channel.as_ptr(), &raw mut cq, &raw mut context) } == 0 {
            self.unacked += 1;
        }
    }

    /// Stops the queue pair: nothing that the peer posts takes effect after this. Completions that
    /// are in the queue can still be taken.
    pub(super) fn stop(&mut self) {
        let Some(qp) = self.qp.take() else { return };
        for _ in 0..DESTROY_ROUNDS {
            // SAFETY: made by us and destroyed once; the asynchronous events of a queue pair are
            // acknowledged as soon as they are read.
            match unsafe { (self.domain.library.ibv_destroy_qp)(qp.as_ptr()) } {
                0 => return,
                _ => std::thread::yield_now(),
            }
        }
    }

    /// The pool that the receives of this wire come from.
    pub(super) fn receives(&self) -> &Arc<Receives> {
        &self.receives
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop();
        self.drain_events();
        // SAFETY: both were made by us and are destroyed once, after the queue pair; all events
        // that were taken are acknowledged, which the library waits for.
        unsafe {
            (self.domain.library.ibv_ack_cq_events)(self.cq.as_ptr(), self.unacked);
            (self.domain.library.ibv_destroy_cq)(self.cq.as_ptr());
            (self.domain.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Takes descriptors out of the blocking mode in which the library opens them.
pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// The library returns an error number, or -1 and sets `errno`.
pub(super) fn status(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}
