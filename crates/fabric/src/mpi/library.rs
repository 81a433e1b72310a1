//! The MPI library that started this process, opened when it is asked for.
//!
//! Open MPI and MPICH have the same functions and different handles: Open MPI's are addresses of
//! objects in the library, MPICH's are numbers that its binary interface has kept since version 3.
//! Both fit into a machine word, which is how they travel here; a status is only carried from one
//! call to the next. So neither headers nor a compiler of theirs are needed, and one program works
//! with both.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// A communicator, a datatype, an error handler.
pub(super) type Handle = usize;
/// Room for a request of either library.
pub(super) type Request = usize;
/// Room for a status of either library, which is at most 40 bytes long.
pub(super) type Status = [u64; 8];

/// `MPI_SUCCESS` of both.
pub(super) const SUCCESS: c_int = 0;
/// `MPI_THREAD_MULTIPLE` of both.
pub(super) const THREAD_MULTIPLE: c_int = 3;

/// Open MPI 4 and 5; and MPICH 3 and 4, by the two names that distributions give it.
const OPEN_MPI: [&CStr; 1] = [c"libmpi.so.40"];
const MPICH: [&CStr; 2] = [c"libmpich.so.12", c"libmpi.so.12"];

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*);)*) => {
        /// The functions of MPI that this transport calls, by their names without `MPI_`.
        #[expect(non_snake_case, reason = "they are MPI's names")]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            /// `MPI_COMM_WORLD`.
            pub(super) world: Handle,
            /// `MPI_BYTE`.
            pub(super) byte: Handle,
            /// `MPI_ERRORS_RETURN`.
            pub(super) errors_return: Handle,
            /// `MPI_REQUEST_NULL`.
            pub(super) no_request: Request,
            /// `MPI_TAG_UB`.
            pub(super) tag_ub: c_int,
        }

        impl Library {
            fn fill(handle: *mut c_void, constants: Constants) -> Result<Self, String> {
                let Constants { world, byte, errors_return, no_request, tag_ub } = constants;
                Ok(Self {
                    $($name: {
                        let name = concat!("MPI_", stringify!($name));
                        let found = symbol(handle, name)
                            .ok_or_else(|| format!("the library has no {name}"))?;
                        // SAFETY: the symbol is the function of this name, whose C prototype this
                        // type repeats; handles are passed in registers, where the upper half of
                        // one that is an `int` is not looked at.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_int,
                            >(found)
                        }
                    },)*
                    world,
                    byte,
                    errors_return,
                    no_request,
                    tag_ub,
                })
            }
        }
    };
}

functions! {
    Init_thread: fn(*mut c_int, *mut c_void, c_int, *mut c_int);
    Initialized: fn(*mut c_int);
    Finalize: fn();
    Comm_rank: fn(Handle, *mut c_int);
    Comm_size: fn(Handle, *mut c_int);
    Comm_set_errhandler: fn(Handle, Handle);
    Comm_get_attr: fn(Handle, c_int, *mut c_void, *mut c_int);
    Isend: fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Request);
    Irecv: fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Request);
    Test: fn(*mut Request, *mut c_int, *mut Status);
    Cancel: fn(*mut Request);
    Get_count: fn(*const Status, Handle, *mut c_int);
}

struct Constants {
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    no_request: Request,
    tag_ub: c_int,
}

impl Library {
    /// Opens the library of the `mpirun` that started this process.
    ///
    /// # Errors
    /// In words, when it is not installed or lacks something.
    pub(super) fn open() -> Result<Self, String> {
        let open_mpi = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
        if !open_mpi && std::env::var_os("PMI_SIZE").is_none() {
            return Err("no mpirun started this process".into());
        }
        let names = if open_mpi { &OPEN_MPI[..] } else { &MPICH[..] };
        let mut reason = String::new();
        for name in names {
            // SAFETY: the name ends with a zero byte. The initialisers are those of an MPI library,
            // which expects to be opened once; modules of Open MPI look for its symbols globally.
            // The handle is never closed.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if handle.is_null() {
                reason = last_error().unwrap_or_else(|| name.to_string_lossy().into_owned());
                continue;
            }
            return Self::fill(handle, constants(handle)?);
        }
        let packages = if open_mpi { "libopenmpi3 or newer" } else { "libmpich12" };
        Err(format!("{reason}; install the library of this mpirun (Debian: {packages})"))
    }
}

fn constants(handle: *mut c_void) -> Result<Constants, String> {
    if symbol(handle, "ompi_mpi_comm_world").is_none() {
        return Ok(Constants {
            world: 0x4400_0000,
            byte: 0x4c00_010d,
            errors_return: 0x5400_0001,
            no_request: 0x2c00_0000,
            tag_ub: 0x6440_0001,
        });
    }
    let of = |name: &str| {
        let found = symbol(handle, name).ok_or_else(|| format!("the library has no {name}"))?;
        Ok::<_, String>(found as usize)
    };
    Ok(Constants {
        world: of("ompi_mpi_comm_world")?,
        byte: of("ompi_mpi_byte")?,
        errors_return: of("ompi_mpi_errors_return")?,
        no_request: of("ompi_request_null")?,
        tag_ub: 0,
    })
}

fn last_error() -> Option<String> {
    // SAFETY: called after a failure on the same thread, so that the text is the one of this
    // failure; it is copied before another call.
    unsafe {
        let text: *mut c_char = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open and the name ends with a zero byte.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
