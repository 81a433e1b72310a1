//! Sizes and offsets as the C compiler sees them.

use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;

/// The size or offset in C, and in Rust.
pub(in super::super) type Question = (String, usize);

macro_rules! size {
    ($rust:ty = $c:literal) => {
        (format!("sizeof(struct {})", $c), size_of::<$rust>())
    };
}

macro_rules! offsets {
    ($rust:ty = $c:literal: $($field:ident = $path:literal),* $(,)?) => {
        [$((format!("offsetof(struct {}, {})", $c, $path), offset_of!($rust, $field))),*]
    };
}

fn requests() -> Vec<Question> {
    let mut all = vec![
        size!(SendWr = "ibv_send_wr"),
        size!(RecvWr = "ibv_recv_wr"),
        size!(Sge = "ibv_sge"),
        size!(Wc = "ibv_wc"),
        size!(ContextOps = "ibv_context_ops"),
        size!(AsyncEvent = "ibv_async_event"),
    ];
    all.extend(offsets!(SendWr = "ibv_send_wr": wr_id = "wr_id", next = "next",
        sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode", send_flags = "send_flags",
        imm_data = "imm_data", wr = "wr", xrc_remote_srqn = "qp_type", bind_mw = "bind_mw"));
    let wr = offset_of!(SendWr, wr);
    let within = |field: &str, at: usize| (format!("offsetof(struct ibv_send_wr, {field})"), at);
    all.extend([
        within("wr.rdma.remote_addr", wr + offset_of!(Rdma, remote_addr)),
        within("wr.rdma.rkey", wr + offset_of!(Rdma, rkey)),
        within("wr.atomic.compare_add", wr + offset_of!(Atomic, compare_add)),
        within("wr.atomic.swap", wr + offset_of!(Atomic, swap)),
        within("wr.ud.ah", wr + offset_of!(Ud, ah)),
        within("wr.ud.remote_qpn", wr + offset_of!(Ud, remote_qpn)),
        within("wr.ud.remote_qkey", wr + offset_of!(Ud, remote_qkey)),
        within("wr.atomic.rkey", wr + offset_of!(Atomic, rkey)),
    ]);
    all.extend(offsets!(RecvWr = "ibv_recv_wr": wr_id = "wr_id", next = "next",
        sg_list = "sg_list", num_sge = "num_sge"));
    all.extend(offsets!(Sge = "ibv_sge": addr = "addr", length = "length", lkey = "lkey"));
    all.extend(offsets!(Wc = "ibv_wc": wr_id = "wr_id", status = "status", opcode = "opcode",
        vendor_err = "vendor_err", byte_len = "byte_len", imm_data = "imm_data",
        qp_num = "qp_num", wc_flags = "wc_flags", slid = "slid"));
    all.extend(offsets!(ContextOps = "ibv_context_ops": poll_cq = "poll_cq",
        req_notify_cq = "req_notify_cq", post_srq_recv = "post_srq_recv",
        post_send = "post_send", post_recv = "post_recv"));
    all.extend(offsets!(AsyncEvent = "ibv_async_event": element = "element",
        event_type = "event_type"));
    all
}

fn objects() -> Vec<Question> {
    let mut all = vec![
        size!(DeviceAttr = "ibv_device_attr"),
        size!(PortAttr = "ibv_port_attr"),
        size!(GidEntry = "ibv_gid_entry"),
        size!(SrqInitAttr = "ibv_srq_init_attr"),
        size!(QpInitAttr = "ibv_qp_init_attr"),
        size!(QpAttr = "ibv_qp_attr"),
        size!(QpCap = "ibv_qp_cap"),
        size!(AhAttr = "ibv_ah_attr"),
    ];
    all.extend(offsets!(Device = "ibv_device": node_type = "node_type",
        transport_type = "transport_type"));
    all.extend(offsets!(Context = "ibv_context": device = "device", ops = "ops",
        cmd_fd = "cmd_fd", async_fd = "async_fd"));
    all.extend(offsets!(Mr = "ibv_mr": lkey = "lkey", rkey = "rkey", length = "length"));
    all.extend(offsets!(CompChannel = "ibv_comp_channel": fd = "fd"));
    all.extend(offsets!(Qp = "ibv_qp": qp_num = "qp_num", srq = "srq"));
    all.extend(offsets!(DeviceAttr = "ibv_device_attr": fw_ver = "fw_ver",
        vendor_id = "vendor_id", max_qp_wr = "max_qp_wr", max_cqe = "max_cqe",
        max_qp_rd_atom = "max_qp_rd_atom", max_qp_init_rd_atom = "max_qp_init_rd_atom",
        atomic_cap = "atomic_cap",
        max_mcast_grp = "max_mcast_grp", max_srq_wr = "max_srq_wr",
        phys_port_cnt = "phys_port_cnt"));
    all.extend(offsets!(PortAttr = "ibv_port_attr": state = "state", active_mtu = "active_mtu",
        gid_tbl_len = "gid_tbl_len", max_msg_sz = "max_msg_sz", pkey_tbl_len = "pkey_tbl_len",
        lid = "lid", active_width = "active_width", link_layer = "link_layer"));
    all.extend(offsets!(GidEntry = "ibv_gid_entry": gid = "gid", gid_index = "gid_index",
        gid_type = "gid_type", ndev_ifindex = "ndev_ifindex"));
    all.extend(offsets!(SrqInitAttr = "ibv_srq_init_attr": max_wr = "attr.max_wr",
        srq_limit = "attr.srq_limit"));
    all.extend(offsets!(QpInitAttr = "ibv_qp_init_attr": srq = "srq", cap = "cap",
        qp_type = "qp_type", sq_sig_all = "sq_sig_all"));
    all.extend(offsets!(AhAttr = "ibv_ah_attr": dgid = "grh.dgid", flow_label = "grh.flow_label",
        sgid_index = "grh.sgid_index", hop_limit = "grh.hop_limit",
        traffic_class = "grh.traffic_class", dlid = "dlid", sl = "sl", is_global = "is_global",
        port_num = "port_num"));
    all.extend(offsets!(QpAttr = "ibv_qp_attr": path_mtu = "path_mtu", rq_psn = "rq_psn",
        sq_psn = "sq_psn", dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags",
        ah_attr = "ah_attr", alt_ah_attr = "alt_ah_attr", pkey_index = "pkey_index",
        max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic",
        min_rnr_timer = "min_rnr_timer", port_num = "port_num", timeout = "timeout",
        retry_cnt = "retry_cnt", rnr_retry = "rnr_retry", rate_limit = "rate_limit"));
    all
}

/// Constants whose value another place of the code relies on.
fn constants() -> Vec<Question> {
    let of = |c: &str, value: i64| (c.to_string(), value as usize);
    vec![
        of("IBV_QPT_RC", QPT_RC.into()),
        of("IBV_QPT_UD", QPT_UD.into()),
        of("IBV_QP_QKEY", QP_QKEY.into()),
        of("IBV_QPS_INIT", QPS_INIT.into()),
        of("IBV_QPS_RTR", QPS_RTR.into()),
        of("IBV_QPS_RTS", QPS_RTS.into()),
        of("IBV_QPS_ERR", QPS_ERR.into()),
        of("IBV_QP_AV", QP_AV.into()),
        of("IBV_QP_DEST_QPN", QP_DEST_QPN.into()),
        of("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC.into()),
        of("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER.into()),
        of("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM.into()),
        of("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM.into()),
        of("IBV_WR_RDMA_READ", WR_RDMA_READ.into()),
        of("IBV_WR_ATOMIC_FETCH_AND_ADD", WR_ATOMIC_FETCH_AND_ADD.into()),
        of("IBV_SEND_INLINE", SEND_INLINE.into()),
        of("IBV_WC_REM_ACCESS_ERR", WC_REM_ACCESS_ERR.into()),
        of("IBV_WC_RNR_RETRY_EXC_ERR", WC_RNR_RETRY_EXC_ERR.into()),
        of("IBV_WC_RECV_RDMA_WITH_IMM", WC_RECV_RDMA_WITH_IMM.into()),
        of("IBV_ACCESS_RELAXED_ORDERING", ACCESS_RELAXED_ORDERING.into()),
        of("IBV_EVENT_QP_ACCESS_ERR", EVENT_QP_ACCESS_ERR.into()),
        of("IBV_EVENT_COMM_EST", EVENT_COMM_EST.into()),
        of("IBV_EVENT_DEVICE_FATAL", EVENT_DEVICE_FATAL.into()),
        of("IBV_EVENT_SRQ_ERR", EVENT_SRQ_ERR.into()),
        of("IBV_PORT_ACTIVE", PORT_ACTIVE.into()),
        of("IBV_GID_TYPE_ROCE_V2", GID_ROCE_V2.into()),
        of("IBV_TRANSPORT_IB", TRANSPORT_IB.into()),
        of("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP.into()),
    ]
}

#[test]
fn layouts_are_those_of_the_c_headers() {
    agree_with_c("infiniband/verbs.h", &[requests(), objects(), constants()].concat());
}

/// Asks the C compiler, where it and the header are installed.
pub(in super::super) fn agree_with_c(header: &str, questions: &[Question]) {
    let there = ["/usr/include", "/usr/local/include"]
        .into_iter()
        .any(|at| std::path::Path::new(at).join(header).exists());
    if !there || Command::new("cc").arg("--version").output().is_err() {
        println!("NOT RUN: needs a C compiler and <{header}> (libibverbs-dev, librdmacm-dev)");
        return;
    }
    let mut source =
        format!("#include <{header}>\n#include <stddef.h>\n#include <stdio.h>\nint main() {{\n");
    for (c, _) in questions {
        source += &format!("  printf(\"%zu\\n\", (size_t)({c}));\n");
    }
    source += "}\n";
    let name = header.replace(['/', '.'], "-");
    let dir = std::env::temp_dir().join(format!("millstream-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (program, file) = (dir.join("layout"), dir.join("layout.c"));
    std::fs::write(&file, source).expect("a file");
    let compiled = Command::new("cc").arg(&file).arg("-o").arg(&program).status();
    assert!(compiled.expect("cc runs").success());
    let message = Command::new(&program).output().expect("the program runs");
    std::fs::remove_dir_all(&dir).expect("the directory goes");
    let message = String::from_utf8(message.stdout).expect("numbers");
    assert_eq!(message.lines().count(), questions.len());
    for ((c, rust), line) in questions.iter().zip(message.lines()) {
        assert_eq!(line.parse(), Ok(*rust), "{c}");
    }
}

#[test]
fn mtu_codes_are_powers_of_two() {
    assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
    assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_code), [1, 2, 3, 4, 5]);
}
