//! The part of libibverbs' C interface that this transport uses: structures and constants of
//! `<infiniband/verbs.h>`, ABI `IBVERBS_1.1`.
//!
//! The simulated library (`crates/verbs-sim`) includes this file too, so that both agree.
//!
//! Of structures that the library allocates only the fields up to the last one in use are named.
//! Structures that we allocate are complete. A test compares sizes and offsets with the C headers
//! where they are installed.

#[cfg(test)]
#[path = "sys/tests.rs"]
pub(super) mod tests;

use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_device`.
#[repr(C)]
pub(super) struct Device {
    pub(super) dummies: [*const c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
}

/// `IBV_TRANSPORT_IB`: InfiniBand and RoCE.
pub(super) const TRANSPORT_IB: c_int = 0;
/// `IBV_TRANSPORT_IWARP`.
pub(super) const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_context_ops`: the calls of the data path go through this table.
#[repr(C)]
pub(super) struct ContextOps {
    pub(super) compat_1: [*const c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub(super) compat_2: [*const c_void; 7],
    pub(super) post_srq_recv:
        unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub(super) compat_3: [*const c_void; 4],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub(super) compat_4: [*const c_void; 5],
}

/// `struct ibv_pd`.
#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(super) struct Srq {
    pub(super) context: *mut Context,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    pub(super) fw_ver: [u8; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    pub(super) max_ee: c_int,
    pub(super) max_rdd: c_int,
    pub(super) max_mw: c_int,
    pub(super) max_raw_ipv6_qp: c_int,
    pub(super) max_raw_ethy_qp: c_int,
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    pub(super) max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    pub(super) max_fmr: c_int,
    pub(super) max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `IBV_ATOMIC_NONE`.
pub(super) const ATOMIC_NONE: c_int = 0;
/// `IBV_ATOMIC_GLOB`.
pub(super) const ATOMIC_GLOB: c_int = 2;

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttr {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

/// `IBV_PORT_ACTIVE`.
pub(super) const PORT_ACTIVE: c_int = 4;
/// `IBV_PORT_ACTIVE_DEFER`.
pub(super) const PORT_ACTIVE_DEFER: c_int = 5;

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GidEntry {
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `IBV_GID_TYPE_IB`.
pub(super) const GID_IB: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V1`.
pub(super) const GID_ROCE_V1: u32 = 1;
/// `IBV_GID_TYPE_ROCE_V2`.
pub(super) const GID_ROCE_V2: u32 = 2;

/// `struct ibv_srq_init_attr` with its `struct ibv_srq_attr`.
#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `IBV_QPT_RC`.
pub(super) const QPT_RC: c_int = 2;
/// `IBV_QPT_UD`.
pub(super) const QPT_UD: c_int = 4;

/// `struct ibv_ah`.
#[repr(C)]
pub(super) struct Ah {
    pub(super) context: *mut Context,
}

/// `struct ibv_ah_attr` with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AhAttr {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) pad: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `enum ibv_qp_state`.
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;

/// `enum ibv_qp_attr_mask`.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

/// `enum ibv_access_flags`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
pub(super) const ACCESS_RELAXED_ORDERING: c_int = 1 << 20;

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    /// Big-endian.
    pub(super) imm_data: u32,
    pub(super) wr: Target,
    pub(super) xrc_remote_srqn: u32,
    pub(super) bind_mw: [u64; 6],
}

/// The union `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Target {
    pub(super) rdma: Rdma,
    pub(super) atomic: Atomic,
    pub(super) ud: Ud,
}

/// Where a datagram goes to.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Ud {
    pub(super) ah: *mut Ah,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
}

/// Where a write goes to or a read comes from.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// Place and operands of an atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

/// `enum ibv_wr_opcode`.
pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_SEND_WITH_IMM: c_int = 3;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(super) const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;

/// `enum ibv_send_flags`.
pub(super) const SEND_FENCE: c_uint = 1;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_INLINE: c_uint = 1 << 3;

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Big-endian.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `enum ibv_wc_status`.
pub(super) const WC_SUCCESS: c_int = 0;
pub(super) const WC_REM_INV_REQ_ERR: c_int = 9;
pub(super) const WC_REM_ACCESS_ERR: c_int = 10;
pub(super) const WC_REM_OP_ERR: c_int = 11;
pub(super) const WC_RNR_RETRY_EXC_ERR: c_int = 13;

/// `enum ibv_wc_opcode`: all that are receives have this bit.
pub(super) const WC_RECV: c_int = 1 << 7;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
pub(super) const WC_RECV_RDMA_WITH_IMM: c_int = WC_RECV + 1;
/// `IBV_WC_WITH_IMM` of `enum ibv_wc_flags`.
pub(super) const WC_WITH_IMM: c_uint = 1 << 1;

/// `struct ibv_async_event`. The union is wide enough for its pointers and its port number.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

/// `enum ibv_event_type`.
pub(super) const EVENT_CQ_ERR: c_int = 0;
pub(super) const EVENT_QP_FATAL: c_int = 1;
pub(super) const EVENT_QP_REQ_ERR: c_int = 2;
pub(super) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(super) const EVENT_COMM_EST: c_int = 4;
pub(super) const EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const EVENT_SRQ_ERR: c_int = 14;

/// Bytes of an MTU as the library numbers it: 1 is 256, 5 is 4096.
pub(super) fn mtu_bytes(code: c_int) -> u32 {
    128 << code.clamp(0, 5)
}

/// The inverse of [`mtu_bytes`].
pub(super) fn mtu_code(bytes: u32) -> c_int {
    (bytes / 128).max(2).ilog2().min(5) as c_int
}
