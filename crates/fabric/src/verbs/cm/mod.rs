//! Connections by the connection manager of rdma-core, librdmacm, which is opened when it is asked
//! for: it finds the way by IP address, and needs no socket between the two sides.
//!
//! ```text
//!   caller                                         called
//!   resolve address, route                         listens from its offer on
//!   REQ (token of the offer, card)  ───────────▶   token known? else refused
//!                                   ◀───────────   REP (token of the caller, card); RTR, RTS
//!   RTR, RTS; RTU                   ───────────▶
//!   Ready (publish mode)            ═══════════▶   over the connection itself
//!                                   ◀═══════════   Ready
//! ```
//!
//! The queue pair stays ours: the manager only says with what attributes it is brought up. Who the
//! caller is, is said by the random token of the offer, as over a socket; a stranger is refused and
//! costs nothing but the refusal.
//!
//! Afterwards the manager says when the peer disconnects or its process ends. Of a host that
//! vanishes it says nothing: that is noticed by who posts, and by the control plane.

mod call;
mod place;
pub(super) mod ready;
mod sys;

#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int, c_void};

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::library::functions;
use super::objects::Domain;
use super::sys::QpAttr;
use crate::LinkId;
use sys::{CmEvent, CmId, ConnParam, EventChannel};

pub(super) use call::{Call, Way};
pub(super) use place::{CmPlace, CmRole, MAGIC, Part, address_of};

/// The names that the dynamic linker tries, in this order.
const NAMES: [&CStr; 2] = [c"librdmacm.so.1", c"librdmacm.so"];

functions! {
    /// The functions of librdmacm that are called. All return 0, or -1 and set `errno`, if nothing
    /// else is said.
    CmLibrary from NAMES, "librdmacm1"
    required {
    rdma_create_event_channel: fn() -> *mut EventChannel;
    rdma_destroy_event_channel: fn(*mut EventChannel);
    rdma_create_id: fn(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
    /// Waits until the events of the id are acknowledged.
    rdma_destroy_id: fn(*mut CmId) -> c_int;
    rdma_bind_addr: fn(*mut CmId, *mut libc::sockaddr) -> c_int;
    rdma_listen: fn(*mut CmId, c_int) -> c_int;
    /// Big-endian.
    rdma_get_src_port: fn(*mut CmId) -> u16;
    rdma_resolve_addr: fn(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut CmId, c_int) -> c_int;
    rdma_connect: fn(*mut CmId, *mut ConnParam) -> c_int;
    rdma_accept: fn(*mut CmId, *mut ConnParam) -> c_int;
    /// The last step of a caller that brings its queue pair up itself.
    rdma_establish: fn(*mut CmId) -> c_int;
    /// Says that the called side has heard of the caller before the manager has.
    rdma_notify: fn(*mut CmId, c_int) -> c_int;
    rdma_reject: fn(*mut CmId, *const c_void, u8) -> c_int;
    rdma_disconnect: fn(*mut CmId) -> c_int;
    rdma_get_cm_event: fn(*mut EventChannel, *mut *mut CmEvent) -> c_int;
    rdma_ack_cm_event: fn(*mut CmEvent) -> c_int;
    rdma_init_qp_attr: fn(*mut CmId, *mut QpAttr, *mut c_int) -> c_int;
    }
    optional {}
}

/// Listens at an address for once, to say at the start what would fail at each connection.
///
/// # Errors
/// The reason, in words.
pub(super) fn check(
    library: &Arc<CmLibrary>,
    domain: &Domain,
    at: IpAddr,
    device: &str,
) -> Result<(), String> {
    let worded = |error: io::Error| error.to_string();
    let nobody = LinkId { local: 0, remote: 0 };
    let place = CmPlace::new(library, nobody, at).map_err(worded)?;
    let context = place.listener().map_or(std::ptr::null_mut(), Call::device);
    // SAFETY: the manager's context of a device stays open for as long as the library is.
    let found = unsafe { domain.name_of(context) };
    match found {
        Some(found) if found == device => Ok(()),
        found => {
            let found = found.unwrap_or_else(|| "no device".into());
            Err(format!(
                "rdma_cm connects by IP addresses, and {at} belongs to {found} instead of \
                 {device}; choose with gid or advertise an address of its network interface"
            ))
        }
    }
}
