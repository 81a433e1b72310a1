//! libibverbs, opened when it is asked for: the same program runs where it is not installed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use super::sys;

/// What the dynamic linker looks for, in this order.
const NAMES: [&CStr; 2] = [c"libibverbs.so.1", c"libibverbs.so"];

/// Why libibverbs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; install rdma-core (Debian and Ubuntu: libibverbs1 ibverbs-providers)",
            self.0
        )
    }
}

/// Declares the table of functions, and how it is filled.
macro_rules! functions {
    (required { $($(#[$note:meta])* $name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
     optional { $($(#[$of:meta])* $maybe:ident: fn($($oarg:ty),*) $(-> $oret:ty)?;)* }) => {
        /// The functions of libibverbs that this transport calls. Those of the data path are in
        /// [`sys::ContextOps`].
        pub(super) struct Library {
            $($(#[$note])* pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $($(#[$of])* pub(super) $maybe:
                Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl Library {
            fn fill(handle: *mut c_void) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let name = stringify!($name);
                        let found = symbol(handle, name).ok_or_else(|| {
                            Missing(format!("libibverbs has no {name}: it is too old"))
                        })?;
                        // SAFETY: the symbol is the function of this name, whose C prototype this
                        // type repeats.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                    $($maybe: symbol(handle, stringify!($maybe)).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($oarg),*) $(-> $oret)?,
                            >(found)
                        }
                    }),)*
                })
            }
        }
    };
}

functions! {
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

impl Library {
    /// Opens libibverbs.
    ///
    /// # Errors
    /// When it is not installed, or lacks a function.
    pub(super) fn open() -> Result<Arc<Self>, Missing> {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: the name ends with a zero byte. The initialisers of the library are those of
            // rdma-core, which expects to be opened like this. The handle is never closed: device
            // providers that the library has loaded cannot be unloaded.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Self::fill(handle).map(Arc::new);
            }
            // SAFETY: called after a failure on the same thread, so that the text is the one of
            // this failure; it is copied before another call.
            let said = unsafe {
                let text = libc::dlerror();
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            };
            if reason.is_empty() {
                reason = said.unwrap_or_else(|| "libibverbs.so.1 cannot be opened".into());
            }
        }
        Err(Missing(reason))
    }
}

fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open and the name ends with a zero byte. Without a version the default
    // one is found, which is the one that the headers of the installed library describe.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
