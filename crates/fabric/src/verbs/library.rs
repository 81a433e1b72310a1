//! libibverbs, opened when it is asked for: the same program runs where it is not installed. So is
//! librdmacm, whose table is in [`cm`](super::cm).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;

use super::sys;

/// The names that the dynamic linker tries, in this order.
const NAMES: [&CStr; 2] = [c"libibverbs.so.1", c"libibverbs.so"];

/// Why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) reason: String,
    /// Debian's packages that bring it.
    pub(super) packages: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, packages } = self;
        write!(f, "{reason}; install rdma-core (Debian and Ubuntu: {packages})")
    }
}

/// Declares the table of functions of a library, and how it is opened and filled. A path of types
/// in the prototypes is that of the place where this is used.
macro_rules! functions {
    ($(#[$head:meta])* $table:ident from $names:expr, $packages:literal
     required { $($(#[$note:meta])* $name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
     optional { $($(#[$of:meta])* $maybe:ident: fn($($oarg:ty),*) $(-> $oret:ty)?;)* }) => {
        $(#[$head])*
        pub(super) struct $table {
            $($(#[$note])* pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $($(#[$of])* pub(super) $maybe:
                Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl $table {
            /// Opens the library.
            ///
            /// # Errors
            /// When it is not installed, or lacks a function.
            pub(super) fn open() -> Result<std::sync::Arc<Self>, $crate::verbs::library::Missing> {
                use $crate::verbs::library::{Missing, open, symbol};
                let missing = |reason| Missing { reason, packages: $packages };
                let handle = open(&$names).map_err(missing)?;
                Ok(std::sync::Arc::new(Self {
                    $($name: {
                        let name = stringify!($name);
                        let found = symbol(handle, name).ok_or_else(|| {
                            let library = $names[0].to_string_lossy();
                            missing(format!("{library} has no {name}: it is too old"))
                        })?;
                        // SAFETY: the symbol is the function of this name, whose C prototype this
                        // type repeats.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                    $($maybe: symbol(handle, stringify!($maybe)).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($oarg),*) $(-> $oret)?,
                            >(found)
                        }
                    }),)*
                }))
            }
        }
    };
}
pub(super) use functions;

functions! {
    /// The functions of libibverbs that this transport calls. Those of the data path are in
    /// [`sys::ContextOps`].
    Library from NAMES, "libibverbs1 ibverbs-providers"
    required {
    /// Null-terminated list of all devices.
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut sys::Device;
    ibv_free_device_list: fn(*mut *mut sys::Device);
    ibv_get_device_name: fn(*mut sys::Device) -> *const c_char;
    ibv_open_device: fn(*mut sys::Device) -> *mut sys::Context;
    ibv_close_device: fn(*mut sys::Context) -> c_int;
    ibv_query_device: fn(*mut sys::Context, *mut sys::DeviceAttr) -> c_int;
    /// Fills the fields up to `phys_state`; the rest has to be zeroed before.
    ibv_query_port: fn(*mut sys::Context, u8, *mut sys::PortAttr) -> c_int;
    ibv_alloc_pd: fn(*mut sys::Context) -> *mut sys::Pd;
    ibv_dealloc_pd: fn(*mut sys::Pd) -> c_int;
    ibv_reg_mr: fn(*mut sys::Pd, *mut c_void, usize, c_int) -> *mut sys::Mr;
    ibv_dereg_mr: fn(*mut sys::Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut sys::Context) -> *mut sys::CompChannel;
    ibv_destroy_comp_channel: fn(*mut sys::CompChannel) -> c_int;
    ibv_create_cq:
        fn(*mut sys::Context, c_int, *mut c_void, *mut sys::CompChannel, c_int) -> *mut sys::Cq;
    ibv_destroy_cq: fn(*mut sys::Cq) -> c_int;
    ibv_get_cq_event:
        fn(*mut sys::CompChannel, *mut *mut sys::Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut sys::Cq, u32);
    ibv_create_srq: fn(*mut sys::Pd, *mut sys::SrqInitAttr) -> *mut sys::Srq;
    ibv_destroy_srq: fn(*mut sys::Srq) -> c_int;
    ibv_create_qp: fn(*mut sys::Pd, *mut sys::QpInitAttr) -> *mut sys::Qp;
    ibv_modify_qp: fn(*mut sys::Qp, *mut sys::QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut sys::Qp) -> c_int;
    ibv_create_ah: fn(*mut sys::Pd, *mut sys::AhAttr) -> *mut sys::Ah;
    ibv_destroy_ah: fn(*mut sys::Ah) -> c_int;
    /// The address of a group, and its place within an InfiniBand subnet.
    ibv_attach_mcast: fn(*mut sys::Qp, *const [u64; 2], u16) -> c_int;
    ibv_detach_mcast: fn(*mut sys::Qp, *const [u64; 2], u16) -> c_int;
    ibv_get_async_event: fn(*mut sys::Context, *mut sys::AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut sys::AsyncEvent);
    /// Last argument: the size of an entry.
    _ibv_query_gid_table: fn(*mut sys::Context, *mut sys::GidEntry, usize, u32, usize) -> isize;
    }
    optional {
        /// As `ibv_reg_mr` at an address of choice, with flags that a device may ignore.
        ibv_reg_mr_iova2: fn(*mut sys::Pd, *mut c_void, usize, u64, u32) -> *mut sys::Mr;
        /// Since rdma-core 41.
        ibv_query_qp_data_in_order: fn(*mut sys::Qp, c_int, u32) -> c_int;
    }
}

/// Opens the first of these libraries that there is, or says why there is none.
pub(super) fn open(names: &[&CStr]) -> Result<*mut c_void, String> {
    let mut reason = None;
    for name in names {
        // SAFETY: the name ends with a zero byte. The initialisers of the library are those of
        // rdma-core, which expects to be opened like this. The handle is never closed: device
        // providers that the library has loaded cannot be unloaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(handle);
        }
        // SAFETY: called after a failure on the same thread, so that the text is the one of this
        // failure; it is copied before another call.
        let message = unsafe {
            let text = libc::dlerror();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let unsaid = || format!("{} cannot be opened", name.to_string_lossy());
        reason.get_or_insert_with(|| message.unwrap_or_else(unsaid));
    }
    Err(reason.unwrap_or_default())
}

pub(super) fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open and the name ends with a zero byte. Without a version the default
    // one is found, which is the one that the headers of the installed library describe.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
