//! Asynchronous events of a device: read by whichever endpoint looks, heard by whom they concern.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};

use super::objects::{Domain, nonblocking};
use super::sys;

/// Tells an endpoint that its connection is broken, and wakes it.
pub(super) struct Alarm {
    rung: AtomicBool,
    event: OwnedFd,
}

impl Alarm {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { rung: AtomicBool::new(false), event })
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// True once the connection is broken.
    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The events of a device and the queue pairs that they may concern.
pub(super) struct Events {
    domain: Arc<Domain>,
    alarms: Mutex<HashMap<u32, Weak<Alarm>>>,
}

impl Events {
    /// # Errors
    /// When the descriptor of the events cannot be made non-blocking.
    pub(super) fn new(domain: &Arc<Domain>) -> io::Result<Arc<Self>> {
        // SAFETY: the descriptor belongs to the context, which `domain` keeps open.
        nonblocking(unsafe { BorrowedFd::borrow_raw(domain.async_fd()) })?;
        Ok(Arc::new(Self { domain: domain.clone(), alarms: Mutex::default() }))
    }

    /// The descriptor that an event makes readable.
    pub(super) fn fd(&self) -> RawFd {
        self.domain.async_fd()
    }

    /// The alarm of a queue pair; it is forgotten when it is dropped.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn subscribe(&self, queue_pair: u32) -> io::Result<Arc<Alarm>> {
        let alarm = Arc::new(Alarm::new()?);
        let mut alarms = self.lock();
        alarms.retain(|_, alarm| alarm.strong_count() > 0);
        alarms.insert(queue_pair, Arc::downgrade(&alarm));
        Ok(alarm)
    }

    /// Takes all events that have come, and rings whom they concern.
    pub(super) fn drain(&self) {
        let library = &self.domain.library;
        let alarms = self.lock();
        let ring = |concerns: &dyn Fn(u32) -> bool| {
            let concerned = alarms.iter().filter(|(number, _)| concerns(**number));
            concerned.filter_map(|(_, alarm)| alarm.upgrade()).for_each(|alarm| alarm.ring());
        };
        let mut event = sys::AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
        loop {
            // SAFETY: the context is open; its descriptor does not block.
            if unsafe { (library.ibv_get_async_event)(self.domain.context(), &raw mut event) } != 0
            {
                return;
            }
            match event.event_type {
                sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR => {
                    // SAFETY: the event is of a queue pair, which cannot be destroyed before the
                    // event is acknowledged.
                    let number = unsafe { (*event.element.cast::<sys::Qp>()).qp_num };
                    ring(&|queue_pair| queue_pair == number);
                }
                // Which connections a completion queue or the shared receives serve is not worth a
                // table: the device is about to be lost.
                sys::EVENT_CQ_ERR | sys::EVENT_SRQ_ERR | sys::EVENT_DEVICE_FATAL => {
                    ring(&|_| true);
                }
                // A port that goes down may come back before the retries are used up, which alone
                // decide.
                _ => {}
            }
            // SAFETY: the event was taken above, and is acknowledged once.
            unsafe { (library.ibv_ack_async_event)(&raw mut event) };
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Weak<Alarm>>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
