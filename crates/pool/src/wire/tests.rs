//! Messages are read as they were written, and no others.

use super::*;
use crate::access::{LoadMode, LookOutcome, OriginLook};
use crate::manifest::{Block, Buckets, CachedOrigin, Codec, Definition, KeyFamily, Layout};
use crate::pointer::{ExtentId, Pointer};

fn end_look(outcome: LookOutcome) -> ClientRequest {
    ClientRequest::EndLook { table: "t".into(), outcome }
}

/// Requests of servers with directories.
fn saved_requests() -> Vec<ClientRequest> {
    let (name, address) = ("m1".into(), "h:7741".into());
    let server = ServerPlace { name, address, identity: 1 << 63, incarnation: 9 };
    let name = "m0".to_owned();
    vec![
        ClientRequest::Distribute { load: 1, servers: vec![server.clone()] },
        ClientRequest::Relocate { servers: vec![server] },
        ClientRequest::Claim {
            identity: 7,
            name: name.clone(),
            link: 9,
            extents: vec![1],
            last: true,
        },
        ClientRequest::Forget { name: name.clone(), living: Some(1 << 40) },
        ClientRequest::Forget { name, living: None },
        ClientRequest::Hold { load: 1, extents: vec![(2, 3)], unused: vec![4] },
        ClientRequest::Release { extents: vec![2, u32::MAX] },
    ]
}

fn requests() -> Vec<ClientRequest> {
    let definition = Definition {
        schema: vec![1, 2],
        columns: vec![Layout::Fixed(4), Layout::Bits, Layout::Bytes],
        buckets: vec![Buckets { column: 1, bits: 3, family: KeyFamily::Decimal }],
        strip_rows: 8192,
    };
    let snapshot = StatementId { job: u128::MAX - 1, statement: 3 };
    let block = |codec| Block {
        at: Pointer { extent: ExtentId { server: 1, number: 2 }, offset: 64 },
        bytes: 5,
        codec,
        nulls: 1,
        least: i64::MIN,
        greatest: i64::MAX,
    };
    let strip = Strip {
        rows: 7,
        blocks: [Codec::Plain, Codec::Distance(2), Codec::Constant].map(block).into(),
    };
    let strips = vec![(3, strip)];
    let pin = |at, snapshot| ClientRequest::Pin { table: "t".into(), at, snapshot };
    let begin = |mode| ClientRequest::Begin {
        load: TableLoad {
            table: "é".into(),
            definition: definition.clone(),
            mode,
            origin: (mode == LoadMode::Overwrite)
                .then(|| CachedOrigin { name: "/é.csv".into(), mark: 1 << 63 }),
        },
        snapshot,
        writers: 4,
    };
    let mut requests = vec![
        ClientRequest::Hello {
            protocol: PROTOCOL,
            client: "process 7".into(),
            token: vec![9; 32],
            rights: Rights::Write,
        },
        ClientRequest::Connect { fabric: "tcp".into(), address: vec![0, 255] },
        ClientRequest::Tables,
        pin(At::Newest, Some(snapshot)),
        pin(At::Version(7), None),
        ClientRequest::Manifest { lease: 1, from: 2 },
        ClientRequest::Keys { extents: vec![1, u32::MAX] },
        ClientRequest::Unpin { lease: 3 },
        ClientRequest::Beat,
        begin(LoadMode::Create),
        begin(LoadMode::Append),
        begin(LoadMode::Overwrite),
        ClientRequest::Grant { load: 1, bytes: 2, part: true },
        ClientRequest::Seal { load: 1, extent: 2, used: 3, crc: 4 },
        ClientRequest::Commit { load: 1, writer: 2, strips: strips.clone(), last: true },
        ClientRequest::Abort { load: 1, reason: "no room".into() },
        ClientRequest::Drop { table: "t".into() },
        ClientRequest::Stat,
        ClientRequest::Look { table: "t".into(), statement: snapshot, age_max_ns: u64::MAX },
        end_look(LookOutcome::Copy),
        end_look(LookOutcome::Failed),
        end_look(LookOutcome::Abandoned),
        ClientRequest::Verify { extents: vec![] },
        ClientRequest::Outcome { load: 1 << 40, snapshot },
        ClientRequest::Replace { load: 1, writer: 2, strips: strips.clone() },
        ClientRequest::HandIn { load: 1, writer: 2, strips, last: false },
    ];
    requests.extend(saved_requests());
    requests
}

fn responses() -> Vec<ServerResponse> {
    let errors = [
        PoolError::NoTable { table: "t".into(), nearest: None },
        PoolError::NoVersion { table: "t".into(), version: 4, reason: "gone".into() },
        PoolError::Full { needed: 5, free: 3 },
        PoolError::Mismatch { detail: "other columns".into() },
        PoolError::Refused { reason: "no".into() },
        PoolError::Damaged { table: "t".into(), reason: "a bit".into() },
        PoolError::Lost { server: "m1".into(), reason: "closed".into() },
        PoolError::GivenUp { reason: "node 1 failed".into() },
    ];
    let summary =
        TableSummary { name: "t".into(), version: 1, rows: 2, bytes: 3, leases: 4, damaged: true };
    let mut responses = vec![
        ServerResponse::Welcome(Welcome {
            name: "m0".into(),
            host: "h".into(),
            fabrics: vec!["shm".into(), "tcp".into()],
            rights: Rights::Read,
            incarnation: 7,
            identity: 1 << 50,
            keeps: true,
        }),
        ServerResponse::Done,
        ServerResponse::UnderWay,
        ServerResponse::Working,
        ServerResponse::Look(OriginLook::Current),
        ServerResponse::Look(OriginLook::Wait),
        ServerResponse::Look(OriginLook::Due),
        ServerResponse::Look(OriginLook::Resting),
        ServerResponse::Address(vec![1, 2]),
        ServerResponse::Tables(vec![summary]),
        ServerResponse::Pinned { version: 1, lease: 2, manifest_bytes: 3 },
        ServerResponse::Manifest(vec![0; 100]),
        ServerResponse::Keys(vec![vec![1], vec![]]),
        ServerResponse::Load(5),
        ServerResponse::Numbers(vec![1, u16::MAX]),
        ServerResponse::Missing(vec![3, u32::MAX]),
        ServerResponse::Forgotten { tables: vec!["t".into()], extents: 5 },
        ServerResponse::Extent { number: 1, bytes: 2, key: vec![3] },
        ServerResponse::Committed { version: None },
        ServerResponse::Committed { version: Some(9) },
        ServerResponse::Stat(Stat { name: "m0".into(), bytes: 3, clients: 2, ..Stat::default() }),
        ServerResponse::Broken { lease: 1, reason: "it was silent".into() },
    ];
    responses.extend(errors.map(ServerResponse::Failed));
    responses
}

fn body(message: &[u8]) -> &[u8] {
    let (body, taken) = split(message).unwrap().unwrap();
    assert_eq!(taken, message.len());
    body
}

#[test]
fn messages_are_read_as_they_were_written() {
    for request in requests() {
        assert_eq!(ClientRequest::decode(body(&request.encode())), Ok(request));
    }
    for response in responses() {
        assert_eq!(ServerResponse::decode(body(&response.encode())), Ok(response));
    }
}

#[test]
fn the_reason_of_an_abort_is_short_and_has_no_control_characters() {
    let encoded = |reason: &str| {
        let mut out = FieldWriter::default();
        out.u8(13);
        out.u64(7);
        out.text(reason);
        out.0
    };
    let longest = "x".repeat(REASON_BYTES_MAX);
    for reason in ["", "é", &longest] {
        let abort = ClientRequest::Abort { load: 7, reason: reason.into() };
        assert_eq!(ClientRequest::decode(&encoded(reason)), Ok(abort));
    }
    for wrong in [&format!("{longest}x"), "a\nb", "\u{1b}[2J", "\u{9b}2J", "\0"] {
        assert!(ClientRequest::decode(&encoded(wrong)).is_err(), "{wrong:?}");
    }
    // A client sends what may be sent, whatever its error is.
    for (error, sent) in [
        ("two\nlines \u{1b}[31m", "two lines  [31m"),
        (&format!("{}é", &longest[1..]), &longest[1..]),
    ] {
        let request = ClientRequest::abort(7, error);
        assert_eq!(request, ClientRequest::Abort { load: 7, reason: sent.into() });
        assert_eq!(ClientRequest::decode(body(&request.encode())), Ok(request));
    }
}

#[test]
fn a_body_that_is_cut_or_longer_is_refused() {
    let of_requests = requests().into_iter().map(|of| (of.encode(), true));
    let of_responses = responses().into_iter().map(|of| (of.encode(), false));
    for (message, asks) in of_requests.chain(of_responses) {
        let whole = body(&message);
        let longer = [whole, &[0]].concat();
        let cut = (0..whole.len()).map(|len| &whole[..len]);
        for wrong in cut.chain([&longer[..]]) {
            let refused = if asks {
                ClientRequest::decode(wrong).is_err()
            } else {
                ServerResponse::decode(wrong).is_err()
            };
            assert!(refused, "{wrong:?} of {whole:?}");
        }
    }
}

#[test]
fn a_message_that_is_damaged_is_refused_and_one_that_is_cut_is_waited_for() {
    for request in requests() {
        let message = request.encode();
        for len in 0..message.len() {
            assert_eq!(split(&message[..len]), Ok(None));
        }
        for at in HEADER_BYTES..message.len() {
            let mut damaged = message.clone();
            damaged[at] ^= 1;
            assert!(split(&damaged).is_err(), "byte {at} of {request:?}");
        }
    }
    let bytes = (MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes();
    assert!(split(&[&bytes[..], &[0; 4]].concat()).is_err());
    assert!(split(&[0; 8]).is_err(), "without a kind");
}

#[test]
fn lists_take_no_more_memory_than_they_have_bytes() {
    let mut keys = FieldWriter::default();
    keys.u8(6);
    keys.u32(KEYS_MAX as u32 + 1);
    assert!(ClientRequest::decode(&keys.0).is_err());
    let mut tables = FieldWriter::default();
    tables.u8(5);
    tables.u32(u32::MAX);
    assert!(ServerResponse::decode(&tables.0).is_err());
}
