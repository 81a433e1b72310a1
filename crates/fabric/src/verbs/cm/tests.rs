//! Words between peers, and structures as the C compiler sees them.

use std::mem::{offset_of, size_of};

use super::super::handshake::Card;
use super::super::sys::tests::agree_with_c;
use super::place::words;
use super::sys::*;
use super::*;
use crate::token::Token;

#[test]
fn a_request_has_room_for_token_and_card() {
    let card = Card {
        tag: 1,
        message_max: 1 << 23,
        counter: (2, 3),
        mtu: 4096,
        reads_max: 16,
        atomics: 1,
    };
    let token = Token::from_bytes([9; 16]);
    let message = words(&token, &card);
    assert_eq!((&message[..8], &message[8..24]), (&MAGIC[..], &token.bytes()[..]));
    let of_card: [u8; Card::BYTES] = message[24..48].try_into().expect("so many");
    assert_eq!(Card::decode(&of_card), Ok(card));
    assert_eq!(message[48..], [0; 8]);
}

#[test]
fn layouts_are_those_of_the_c_headers() {
    let at = |of: &str, field: &str, at: usize| (format!("offsetof(struct {of}, {field})"), at);
    let value = |c: &str, value: c_int| (c.to_string(), value as usize);
    let conn = offset_of!(CmEvent, conn);
    agree_with_c(
        "rdma/rdma_cma.h",
        &[
            ("sizeof(struct rdma_conn_param)".into(), size_of::<ConnParam>()),
            at("rdma_event_channel", "fd", offset_of!(EventChannel, fd)),
            at("rdma_cm_id", "verbs", offset_of!(CmId, verbs)),
            at("rdma_cm_id", "channel", offset_of!(CmId, channel)),
            at("rdma_cm_event", "id", offset_of!(CmEvent, id)),
            at("rdma_cm_event", "listen_id", offset_of!(CmEvent, listen_id)),
            at("rdma_cm_event", "event", offset_of!(CmEvent, event)),
            at("rdma_cm_event", "status", offset_of!(CmEvent, status)),
            at("rdma_cm_event", "param.conn", conn),
            at("rdma_conn_param", "private_data_len", offset_of!(ConnParam, private_data_len)),
            at("rdma_conn_param", "initiator_depth", offset_of!(ConnParam, initiator_depth)),
            at("rdma_conn_param", "rnr_retry_count", offset_of!(ConnParam, rnr_retry_count)),
            at("rdma_conn_param", "srq", offset_of!(ConnParam, srq)),
            at("rdma_conn_param", "qp_num", offset_of!(ConnParam, qp_num)),
            value("RDMA_PS_TCP", PS_TCP),
            value("RDMA_CM_EVENT_ROUTE_RESOLVED", ROUTE_RESOLVED),
            value("RDMA_CM_EVENT_CONNECT_REQUEST", CONNECT_REQUEST),
            value("RDMA_CM_EVENT_CONNECT_RESPONSE", CONNECT_RESPONSE),
            value("RDMA_CM_EVENT_UNREACHABLE", UNREACHABLE),
            value("RDMA_CM_EVENT_REJECTED", REJECTED),
            value("RDMA_CM_EVENT_DISCONNECTED", DISCONNECTED),
            value("RDMA_CM_EVENT_DEVICE_REMOVAL", DEVICE_REMOVAL),
        ],
    );
}
