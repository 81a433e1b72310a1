//! This process among those that `mpirun` started: the one place that calls MPI.
//!
//! MPI is initialised once in a process and never again, hence the only static of this crate: what
//! it holds belongs to the library, not to a node.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::library::{Handle, Library, Request, SUCCESS, Status, THREAD_MULTIPLE};
use super::wire::Ending;

static WORLD: OnceLock<Result<Arc<World>, String>> = OnceLock::new();

/// How long [`finish`] waits for connections whose peers have not ended them.
const FINISH: Duration = Duration::from_secs(2);

/// MPI, initialised.
pub(super) struct World {
    library: Library,
    /// This process.
    pub(super) rank: c_int,
    /// All processes.
    pub(super) size: c_int,
    /// Channels that a tag can name.
    pub(super) channels_max: u32,
    /// The next channel of this process; a number is used once, so that what comes late for a
    /// channel that is gone is never taken for another's.
    next: Mutex<u32>,
    /// Connections that were let go before all was sent, or the peer had ended them.
    endings: Mutex<Vec<Ending>>,
}

/// Where messages go to, or come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct MpiChannel {
    pub(super) rank: c_int,
    /// The tag of its messages.
    pub(super) tag: u32,
}

/// A message on its way, and its memory, which stays where it is until it has arrived: to drop a
/// message leaves the memory to MPI.
pub(super) struct Message {
    request: Request,
    bytes: ManuallyDrop<Box<[u8]>>,
}

/// How far a message is.
pub(super) enum Progress {
    /// On its way.
    Pending(Message),
    /// Sent or received: its memory, and how many bytes of it came.
    Done(Box<[u8]>, usize),
}

impl Message {
    fn new(request: Request, bytes: Box<[u8]>) -> Self {
        Self { request, bytes: ManuallyDrop::new(bytes) }
    }
}

impl World {
    /// Initialises MPI, or says again why it could not be.
    ///
    /// # Errors
    /// In words.
    pub(super) fn get() -> Result<Arc<Self>, String> {
        WORLD.get_or_init(|| Self::start().map(Arc::new)).clone()
    }

    fn start() -> Result<Self, String> {
        let library = Library::open()?;
        let (mut initialised, mut provided) = (0, 0);
        // SAFETY: may be called at any time; the place lives.
        let asked = unsafe { (library.Initialized)(&raw mut initialised) };
        if asked != SUCCESS || initialised != 0 {
            return Err("MPI is in use in this process already".into());
        }
        let none = std::ptr::null_mut();
        // SAFETY: the first call, as `Initialized` and the static make sure; arguments may be left
        // out since MPI 2, and the place lives.
        let started =
            unsafe { (library.Init_thread)(none, none.cast(), THREAD_MULTIPLE, &raw mut provided) };
        if started != SUCCESS {
            return Err(format!("MPI_Init_thread failed with {started}"));
        }
        if provided < THREAD_MULTIPLE {
            return Err("this MPI does not let several threads call it".into());
        }
        let (mut rank, mut size, mut found) = (0, 0, 0);
        let mut bound: *const c_int = std::ptr::null();
        let world = library.world;
        // SAFETY: MPI is initialised, the handles are the library's, the places live. The attribute
        // is a pointer to a number that lives as long as the communicator.
        let failed = unsafe {
            (library.Comm_set_errhandler)(world, library.errors_return)
                | (library.Comm_rank)(world, &raw mut rank)
                | (library.Comm_size)(world, &raw mut size)
                | (library.Comm_get_attr)(
                    world,
                    library.tag_ub,
                    (&raw mut bound).cast::<c_void>(),
                    &raw mut found,
                )
        };
        if failed != SUCCESS || found == 0 || bound.is_null() {
            return Err("MPI does not tell rank, size and the greatest tag".into());
        }
        // SAFETY: not null, and a number as said above.
        let channels_max = u32::try_from(unsafe { *bound }).unwrap_or(0);
        let (next, endings) = (Mutex::new(0), Mutex::default());
        Ok(Self { library, rank, size, channels_max, next, endings })
    }

    /// A channel by which a peer reaches this process.
    pub(super) fn channel(&self) -> io::Result<u32> {
        self.tidy();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next >= self.channels_max {
            return Err(io::Error::other("this MPI has no more tags for channels"));
        }
        *next += 1;
        Ok(*next)
    }

    /// Sends bytes to a channel of a rank.
    pub(super) fn send(&self, bytes: Box<[u8]>, len: usize, to: MpiChannel) -> io::Result<Message> {
        let mut message = Message::new(self.library.no_request, bytes);
        let len = len.min(message.bytes.len());
        let Library { world, byte, .. } = self.library;
        // SAFETY: the bytes are on the heap, owned by the message, and nobody changes them before
        // the request has ended: `done` alone gives them back.
        let sent = unsafe {
            (self.library.Isend)(
                message.bytes.as_ptr().cast(),
                len as c_int,
                byte,
                to.rank,
                to.tag as c_int,
                world,
                &raw mut message.request,
            )
        };
        checked(sent).map(|()| message)
    }

    /// Prepares to receive what comes for a channel from a rank.
    pub(super) fn receive(&self, bytes: Box<[u8]>, from: MpiChannel) -> io::Result<Message> {
        let mut message = Message::new(self.library.no_request, bytes);
        let Library { world, byte, .. } = self.library;
        // SAFETY: as above; MPI alone writes to the bytes until the request has ended.
        let posted = unsafe {
            (self.library.Irecv)(
                message.bytes.as_mut_ptr().cast(),
                message.bytes.len() as c_int,
                byte,
                from.rank,
                from.tag as c_int,
                world,
                &raw mut message.request,
            )
        };
        checked(posted).map(|()| message)
    }

    /// Makes progress, and tells whether the message has been sent or received.
    pub(super) fn test(&self, mut message: Message) -> io::Result<Progress> {
        let (mut done, mut count): (c_int, c_int) = (0, 0);
        let mut status: Status = [0; 8];
        // SAFETY: the request is one that MPI gave, and the places live.
        let tested = unsafe {
            (self.library.Test)(&raw mut message.request, &raw mut done, &raw mut status)
        };
        if tested != SUCCESS {
            return Err(io::Error::other(format!("MPI error {tested}")));
        }
        if done == 0 {
            return Ok(Progress::Pending(message));
        }
        // SAFETY: the status was filled above; of a message that was sent the count is not used.
        let counted =
            unsafe { (self.library.Get_count)(&raw const status, self.byte(), &raw mut count) };
        let count = if counted == SUCCESS { usize::try_from(count).unwrap_or(0) } else { 0 };
        Ok(Progress::Done(ManuallyDrop::into_inner(message.bytes), count))
    }

    /// Lets a receive end for which nothing comes; it is done like any other.
    pub(super) fn cancel(&self, message: &mut Message) {
        // SAFETY: the request is one that MPI gave and that has not ended.
        let code = unsafe { (self.library.Cancel)(&raw mut message.request) };
        debug_assert_eq!(code, SUCCESS, "a receive can be cancelled");
    }

    fn byte(&self) -> Handle {
        self.library.byte
    }

    /// Takes over what is left of a connection.
    pub(super) fn end(&self, ending: Ending) {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner).push(ending);
    }

    /// Lets connections go on that were let go; true when none is left.
    pub(super) fn tidy(&self) -> bool {
        let mut endings = self.endings.lock().unwrap_or_else(PoisonError::into_inner);
        endings.retain_mut(|ending| !ending.step(self));
        endings.is_empty()
    }
}

fn checked(code: c_int) -> io::Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(io::Error::other(format!("MPI error {code}"))) }
}

/// Ends MPI in this process, which a launcher wants to see before the process ends. Nothing of this
/// transport may be used afterwards. Does nothing where MPI was not used, and leaves it to the
/// launcher where a peer does not end its connections.
pub fn finish() {
    let Some(Ok(world)) = WORLD.get() else { return };
    let start = Instant::now();
    while !world.tidy() {
        if start.elapsed() > FINISH {
            return;
        }
        std::thread::yield_now();
    }
    // SAFETY: MPI is initialised, every request has ended, and the caller uses it no more.
    unsafe { (world.library.Finalize)() };
}
