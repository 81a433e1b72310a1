//! The part of librdmacm's C interface that is used: structures and constants of
//! `<rdma/rdma_cma.h>`. A test compares them with the C headers where they are installed.

use std::ffi::{c_int, c_void};

use super::super::sys::Context;

/// `struct rdma_event_channel`.
#[repr(C)]
pub(in crate::verbs) struct EventChannel {
    pub(in crate::verbs) fd: c_int,
}

/// The front of `struct rdma_cm_id`.
#[repr(C)]
pub(in crate::verbs) struct CmId {
    pub(in crate::verbs) verbs: *mut Context,
    pub(in crate::verbs) channel: *mut EventChannel,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::verbs) struct ConnParam {
    pub(in crate::verbs) private_data: *const c_void,
    pub(in crate::verbs) private_data_len: u8,
    pub(in crate::verbs) responder_resources: u8,
    pub(in crate::verbs) initiator_depth: u8,
    pub(in crate::verbs) flow_control: u8,
    pub(in crate::verbs) retry_count: u8,
    pub(in crate::verbs) rnr_retry_count: u8,
    pub(in crate::verbs) srq: u8,
    pub(in crate::verbs) qp_num: u32,
}

/// The front of `struct rdma_cm_event`: of the union, what is said of a connection.
#[repr(C)]
pub(in crate::verbs) struct CmEvent {
    pub(in crate::verbs) id: *mut CmId,
    pub(in crate::verbs) listen_id: *mut CmId,
    pub(in crate::verbs) event: c_int,
    pub(in crate::verbs) status: c_int,
    pub(in crate::verbs) conn: ConnParam,
}

/// `RDMA_PS_TCP`: reliable connections.
pub(in crate::verbs) const PS_TCP: c_int = 0x0106;

/// `enum rdma_cm_event_type`.
pub(in crate::verbs) const ADDR_RESOLVED: c_int = 0;
pub(in crate::verbs) const ADDR_ERROR: c_int = 1;
pub(in crate::verbs) const ROUTE_RESOLVED: c_int = 2;
pub(in crate::verbs) const ROUTE_ERROR: c_int = 3;
pub(in crate::verbs) const CONNECT_REQUEST: c_int = 4;
pub(in crate::verbs) const CONNECT_RESPONSE: c_int = 5;
pub(in crate::verbs) const CONNECT_ERROR: c_int = 6;
pub(in crate::verbs) const UNREACHABLE: c_int = 7;
pub(in crate::verbs) const REJECTED: c_int = 8;
pub(in crate::verbs) const ESTABLISHED: c_int = 9;
pub(in crate::verbs) const DISCONNECTED: c_int = 10;
pub(in crate::verbs) const DEVICE_REMOVAL: c_int = 11;
