//! The manager's objects as owners, and its events as values.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::objects::nonblocking;
use super::super::sys::QpAttr;
use super::CmLibrary;
use super::sys::{self, CmEvent, CmId, ConnParam, EventChannel};
use crate::listener::{broken, time_left};

/// Bytes of ours that a request carries: the rest that InfiniBand leaves beside the addresses.
pub(in crate::verbs) const PRIVATE_BYTES: usize = 56;

/// How long a neighbour is asked for before it is asked again.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Where events of some ids arrive.
pub(in crate::verbs) struct Channel {
    library: Arc<CmLibrary>,
    channel: NonNull<EventChannel>,
}

// SAFETY: librdmacm allows any thread to call any function on an object.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event of an id.
pub(in crate::verbs) struct Event {
    /// One of `enum rdma_cm_event_type`.
    pub(super) kind: c_int,
    /// A negative error number, or why the peer refused.
    pub(super) status: c_int,
    /// The peer's private data, padded with zeros.
    pub(super) message: [u8; PRIVATE_BYTES],
    /// The new connection, when somebody calls.
    pub(super) call: Option<Call>,
}

impl Channel {
    /// # Errors
    /// When there is no device that the manager knows, or the kernel's part of it is not loaded.
    pub(in crate::verbs) fn new(library: &Arc<CmLibrary>) -> io::Result<Arc<Self>> {
        // SAFETY: the library is open.
        let channel = unsafe { (library.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { library: library.clone(), channel };
        nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive, and closes its descriptor when it is destroyed.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Option<Event> {
        let mut event: *mut CmEvent = null_mut();
        // SAFETY: the channel is alive; its descriptor does not block.
        let code =
            unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) };
        let event = NonNull::new(event).filter(|_| code == 0)?;
        // SAFETY: the event is ours until it is acknowledged below.
        let taken = unsafe { self.read(event.as_ref()) };
        // SAFETY: taken above, and acknowledged once; nothing points into it any more.
        unsafe { (self.library.rdma_ack_cm_event)(event.as_ptr()) };
        Some(taken)
    }

    /// # Safety
    /// The event was taken from this channel and is not acknowledged yet.
    unsafe fn read(self: &Arc<Self>, event: &CmEvent) -> Event {
        let mut message = [0; PRIVATE_BYTES];
        let says = [sys::CONNECT_REQUEST, sys::CONNECT_RESPONSE, sys::ESTABLISHED];
        let says = says.contains(&event.event);
        if says && !event.conn.private_data.is_null() {
            let len = usize::from(event.conn.private_data_len).min(PRIVATE_BYTES);
            // SAFETY: events of these kinds point to this number of bytes of their own.
            unsafe {
                let bytes = event.conn.private_data.cast::<u8>();
                std::ptr::copy_nonoverlapping(bytes, message.as_mut_ptr(), len);
            }
        }
        let called = NonNull::new(event.id).filter(|_| event.event == sys::CONNECT_REQUEST);
        let call = called.map(|id| Call { channel: self.clone(), id });
        Event { kind: event.event, status: event.status, message, call }
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// At the deadline.
    pub(super) fn wait(self: &Arc<Self>, deadline: Instant) -> io::Result<Event> {
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            let left = Timespec::try_from(time_left(deadline)?)
                .map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the ids of the channel hold it by `Arc` and are gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// With what attributes a queue pair is brought to a state, as the manager sees the way.
pub(in crate::verbs) struct Way {
    pub(in crate::verbs) attr: QpAttr,
    pub(in crate::verbs) mask: c_int,
}

/// An id: a listener, or one side of a connection.
pub(in crate::verbs) struct Call {
    channel: Arc<Channel>,
    id: NonNull<CmId>,
}

// SAFETY: as for `Channel`; one thread at a time owns an id.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    /// An id of a reliable connection.
    ///
    /// # Errors
    /// When the system gives none.
    pub(super) fn new(channel: &Arc<Channel>) -> io::Result<Self> {
        let mut id = null_mut();
        let create = channel.library.rdma_create_id;
        // SAFETY: the channel is alive, and kept by what is returned.
        status(unsafe { create(channel.channel.as_ptr(), &raw mut id, null_mut(), sys::PS_TCP) })?;
        let id = NonNull::new(id).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { channel: channel.clone(), id })
    }

    /// Listens at this address; port 0 lets the system choose. Returns the port.
    ///
    /// # Errors
    /// When the address is of no device, or the port is taken.
    pub(super) fn listen(&self, at: SocketAddr, backlog: c_int) -> io::Result<u16> {
        let mut at = Address::new(at);
        let library = &self.channel.library;
        // SAFETY: the id is alive, and the address is read during the call.
        unsafe {
            status((library.rdma_bind_addr)(self.id.as_ptr(), at.pointer()))?;
            status((library.rdma_listen)(self.id.as_ptr(), backlog))?;
            Ok(u16::from_be((library.rdma_get_src_port)(self.id.as_ptr())))
        }
    }

    /// The context of the device that the address is of; null before that is known.
    pub(super) fn device(&self) -> *mut super::super::sys::Context {
        // SAFETY: the id is alive, and its front is as declared.
        unsafe { self.id.as_ref().verbs }
    }

    /// Finds the way from an address of ours to the peer's.
    ///
    /// # Errors
    /// When there is none, or at the deadline.
    pub(super) fn resolve(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        deadline: Instant,
    ) -> io::Result<()> {
        let (mut from, mut to) = (Address::new(from), Address::new(to));
        let library = &self.channel.library;
        loop {
            let left = millis(time_left(deadline)?.min(ATTEMPT));
            // SAFETY: the id is alive, and the addresses are read during the call.
            status(unsafe {
                (library.rdma_resolve_addr)(self.id.as_ptr(), from.pointer(), to.pointer(), left)
            })?;
            match self.expect(&[sys::ADDR_RESOLVED], deadline) {
                Ok(_) => break,
                // A neighbour that has not answered yet.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
        let left = millis(time_left(deadline)?);
        // SAFETY: as above.
        status(unsafe { (library.rdma_resolve_route)(self.id.as_ptr(), left) })?;
        self.expect(&[sys::ROUTE_RESOLVED], deadline).map(drop)
    }

    /// Waits for an event of one of these kinds.
    ///
    /// # Errors
    /// When another one comes that ends the attempt, or at the deadline.
    pub(super) fn expect(&self, kinds: &[c_int], deadline: Instant) -> io::Result<Event> {
        loop {
            let event = self.channel.wait(deadline)?;
            match event.kind {
                got if kinds.contains(&got) => return Ok(event),
                sys::REJECTED => {
                    let what = format!("the peer refused (reason {})", event.status);
                    return Err(io::Error::new(io::ErrorKind::ConnectionRefused, what));
                }
                sys::ADDR_ERROR | sys::ROUTE_ERROR | sys::CONNECT_ERROR | sys::UNREACHABLE => {
                    return Err(match event.status {
                        code @ ..0 => io::Error::from_raw_os_error(-code),
                        _ => io::ErrorKind::HostUnreachable.into(),
                    });
                }
                sys::DISCONNECTED | sys::DEVICE_REMOVAL => {
                    return Err(broken("the peer left in the middle of the handshake"));
                }
                // Somebody calls an id that does not listen any more, or a notice of no weight.
                _ => {}
            }
        }
    }

    /// The attributes of this connection's queue pair for a state.
    ///
    /// # Errors
    /// When the connection is not that far.
    pub(in crate::verbs) fn way(&self, state: c_int) -> io::Result<Way> {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut attr: QpAttr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        let mut mask = 0;
        let init = self.channel.library.rdma_init_qp_attr;
        // SAFETY: the id is alive, and the structure complete.
        status(unsafe { init(self.id.as_ptr(), &raw mut attr, &raw mut mask) })?;
        attr.qp_state = state;
        Ok(Way { attr, mask })
    }

    /// Calls the peer.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub(super) fn connect(&self, terms: &mut ConnParam) -> io::Result<()> {
        // SAFETY: the id is alive; the terms and what they point to are read during the call.
        status(unsafe { (self.channel.library.rdma_connect)(self.id.as_ptr(), terms) })
    }

    /// Answers who called.
    ///
    /// # Errors
    /// When the caller is gone.
    pub(super) fn accept(&self, terms: &mut ConnParam) -> io::Result<()> {
        // SAFETY: as above.
        status(unsafe { (self.channel.library.rdma_accept)(self.id.as_ptr(), terms) })
    }

    /// The caller's last word.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(in crate::verbs) fn establish(&self) -> io::Result<()> {
        // SAFETY: the id is alive.
        status(unsafe { (self.channel.library.rdma_establish)(self.id.as_ptr()) })
    }

    /// The caller has been heard over the connection: for the manager it stands from here on,
    /// although the caller's last word may still be under way. A connection that does not stand
    /// cannot be ended in a way that the peer hears.
    pub(super) fn peer_is_up(&self) {
        let event = super::super::sys::EVENT_COMM_EST;
        // SAFETY: the id is alive. A connection that stands already refuses, which changes nothing.
        unsafe { (self.channel.library.rdma_notify)(self.id.as_ptr(), event) };
    }

    /// Refuses who called.
    pub(super) fn refuse(self) {
        // SAFETY: the id is alive. A refusal that cannot be sent leaves the caller to its deadline.
        unsafe { (self.channel.library.rdma_reject)(self.id.as_ptr(), null(), 0) };
    }

    /// Readable when there is an event.
    pub(in crate::verbs) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Takes the events that have come; true when one of them ends the connection.
    pub(in crate::verbs) fn has_ended(&mut self) -> bool {
        let mut ended = false;
        while let Some(event) = self.channel.take() {
            ended |= matches!(
                event.kind,
                sys::DISCONNECTED | sys::DEVICE_REMOVAL | sys::CONNECT_ERROR | sys::REJECTED
            );
        }
        ended
    }

    /// Tells the peer that the connection ends.
    pub(in crate::verbs) fn end(&mut self) {
        // SAFETY: the id is alive. One that has ended already refuses, which changes nothing.
        unsafe { (self.channel.library.rdma_disconnect)(self.id.as_ptr()) };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: made by the library and destroyed once; events are acknowledged as they are
        // taken, which the library waits for.
        unsafe { (self.channel.library.rdma_destroy_id)(self.id.as_ptr()) };
    }
}

/// An IP address as C wants it.
union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    fn new(at: SocketAddr) -> Self {
        match at {
            SocketAddr::V4(at) => Self {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: at.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(at.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(at) => Self {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: at.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: at.ip().octets() },
                    sin6_scope_id: at.scope_id(),
                },
            },
        }
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

fn millis(left: Duration) -> c_int {
    c_int::try_from(left.as_millis().max(1)).unwrap_or(c_int::MAX)
}

fn status(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
