//! How a connection comes about: its objects are made, the two sides meet, and the queue pair is
//! brought up.

use std::ffi::c_int;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cm::ready::{self, Speaker};
use super::cm::{self, Call, CmPlace, CmRole, Part, Way};
use super::endpoint::{CONTROL_OPS, CONTROL_RECEIVES, Terms, VerbsEndpoint};
use super::events::Events;
use super::handshake::{Card, Hello, MAGIC, Promise, swap};
use super::line::Line;
use super::objects::{Domain, Wire};
use super::queue::SendQueue;
use super::receives::Receives;
use super::{
    DeviceChoice, GidKind, HOPS, Limits, NOT_READY_TIMER, RETRIES, RETRIES_NOT_READY, VerbsOptions,
    atomics, sys,
};
use crate::listener::{PendingOffer, broken};
use crate::token::Token;
use crate::{Caps, Endpoint, FabricError, LinkId, Offer, Publish};

/// The abilities that both sides of a connection announce.
struct Promises {
    ours: Promise,
    /// As it travels.
    theirs: u8,
}

/// A place to be met at, and what a connection is made of.
pub(super) struct VerbsOffer {
    pub(super) link: LinkId,
    pub(super) place: Rendezvous,
    pub(super) options: VerbsOptions,
    pub(super) domain: Arc<Domain>,
    pub(super) limits: Limits,
    pub(super) choice: DeviceChoice,
    pub(super) receives: Arc<Receives>,
    pub(super) events: Arc<Events>,
}

impl Offer for VerbsOffer {
    fn address(&self) -> Vec<u8> {
        match &self.place {
            Rendezvous::Socket(place) => place.address(),
            Rendezvous::Cm(place) => place.address(),
        }
    }

    fn connect(self: Box<Self>, peer: &[u8]) -> Result<Box<dyn Endpoint>, FabricError> {
        let deadline = Instant::now() + self.options.connect_timeout;
        let link = self.link.to_string();
        let failed = |source| FabricError::Connect { link, source };
        if self.place.is_other(peer) {
            return Err(failed(broken("one side connects by tcp and the other by rdma_cm")));
        }
        match &self.place {
            Rendezvous::Socket(place) => {
                let (stream, _) = place.rendezvous(peer, deadline)?;
                self.made().and_then(|made| self.by_socket(stream, deadline, made))
            }
            Rendezvous::Cm(place) => {
                let malformed = FabricError::Malformed { what: "address" };
                let role = place.role(peer).ok_or(malformed)?;
                self.made().and_then(|made| self.by_cm(place, role, deadline, made))
            }
        }
        .map_err(failed)
    }
}

/// How the two sides meet.
pub(super) enum Rendezvous {
    Socket(PendingOffer),
    Cm(CmPlace),
}

impl Rendezvous {
    /// Whether an address is one of the other way to meet.
    fn is_other(&self, peer: &[u8]) -> bool {
        peer.starts_with(match self {
            Rendezvous::Socket(_) => &cm::MAGIC,
            Rendezvous::Cm(_) => &MAGIC,
        })
    }
}

/// Receives that a connection keeps for control, given back if it does not come about.
struct ReservedReceives(Option<Arc<Receives>>);

impl ReservedReceives {
    fn new(receives: &Arc<Receives>) -> io::Result<Self> {
        match receives.reserve(CONTROL_RECEIVES) {
            CONTROL_RECEIVES => Ok(Self(Some(receives.clone()))),
            less => {
                receives.release(less);
                Err(io::Error::other("all shared receives are promised; raise receives_max"))
            }
        }
    }
}

impl Drop for ReservedReceives {
    fn drop(&mut self) {
        if let Some(receives) = &self.0 {
            receives.release(CONTROL_RECEIVES);
        }
    }
}

/// The objects of a connection; dropped in this order if it does not come about.
struct Made {
    wire: Wire,
    queue: SendQueue,
    reserved: ReservedReceives,
}

impl VerbsOffer {
    fn made(&self) -> io::Result<Made> {
        let reserved = ReservedReceives::new(&self.receives)?;
        let sends = self.limits.ops_max + CONTROL_OPS;
        let completions = sends + self.limits.receives_max + CONTROL_RECEIVES;
        let (wire, inline) = Wire::new(&self.domain, &self.receives, sends, completions)?;
        let queue = SendQueue::new(&self.domain, sends, inline)?;
        Ok(Made { wire, queue, reserved })
    }

    fn by_socket(
        &self,
        mut stream: TcpStream,
        deadline: Instant,
        mut made: Made,
    ) -> io::Result<Box<dyn Endpoint>> {
        let hello = self.hello(&made)?;
        self.initialise(&mut made.wire, self.first(sys::QPS_INIT))?;
        let bytes = swap(&mut stream, &hello.encode(), deadline)?;
        let peer = Hello::decode(&bytes).map_err(broken)?;
        if peer.roce != hello.roce {
            return Err(broken("one side is on Ethernet and the other on InfiniBand"));
        }
        let wire = &mut made.wire;
        self.ready_to_receive(wire, self.to(&hello, &peer), &peer.card)?;
        let mut way = self.first(sys::QPS_RTS);
        (way.attr.sq_psn, way.mask) = (hello.psn, way.mask | sys::QP_SQ_PSN);
        self.ready_to_send(wire, way, &peer.card)?;
        let ours = self.promise(wire);
        let [theirs] = swap(&mut stream, &[ours.encode()], deadline)?;
        prepare(&stream)?;
        let promises = Promises { ours, theirs };
        self.finish(Line::Socket(stream), made, [hello.card, peer.card], promises)
    }

    fn by_cm(
        &self,
        place: &CmPlace,
        CmRole { part, token }: CmRole,
        deadline: Instant,
        mut made: Made,
    ) -> io::Result<Box<dyn Endpoint>> {
        let own = self.card(&made.queue)?;
        let (number, wire) = (made.wire.number(), &mut made.wire);
        let (mut call, peer) = match part {
            Part::Calls(at) => {
                let call = place.find(at, deadline)?;
                self.initialise(wire, call.way(sys::QPS_INIT)?)?;
                let (peer, last_word) = place.ask(&call, &token, &own, number, deadline)?;
                self.come_up(wire, &call, &peer)?;
                if last_word {
                    call.establish()?;
                }
                (call, peer)
            }
            Part::Answers => {
                let (call, peer) = place.answer(deadline)?;
                self.initialise(wire, call.way(sys::QPS_INIT)?)?;
                self.come_up(wire, &call, &peer)?;
                place.accept(&call, &token, &own, number)?;
                (call, peer)
            }
        };
        let ours = self.promise(wire);
        let calls = matches!(part, Part::Calls(_));
        let speaker = Speaker { promise: ours, calls, iwarp: self.limits.iwarp };
        let Made { wire, queue, .. } = &mut made;
        let theirs = ready::exchange_promises(wire, queue, &mut call, speaker, deadline)?;
        self.finish(Line::Cm(call), made, [own, peer], Promises { ours, theirs })
    }

    /// Both states that a connection has beyond the first, by the manager's attributes.
    /// Of iWARP the manager brings the queue pair up itself.
    fn come_up(&self, wire: &mut Wire, call: &Call, peer: &Card) -> io::Result<()> {
        if self.limits.iwarp {
            return Ok(());
        }
        self.ready_to_receive(wire, call.way(sys::QPS_RTR)?, peer)?;
        self.ready_to_send(wire, call.way(sys::QPS_RTS)?, peer)
    }

    fn finish(
        &self,
        line: Line,
        made: Made,
        [own, peer]: [Card; 2],
        Promises { ours, theirs }: Promises,
    ) -> io::Result<Box<dyn Endpoint>> {
        let Promise { publish, headed } = ours
            .weaker(theirs)
            .ok_or_else(|| broken("the peer offers features that this version does not know"))?;
        let caps = Caps {
            publish,
            atomics: atomics(peer.atomics),
            max_msg: self.limits.message_max.min(peer.message_max as usize),
            ..self.limits.caps(headed)
        };
        let terms = Terms {
            caps,
            tag: own.tag,
            peer_tag: peer.tag,
            peer_counter: peer.counter,
            access: self.access(),
            relaxed: self.options.relaxed_ordering,
            headed,
            receives_max: self.limits.receives_max,
        };
        let (domain, events) = (self.domain.clone(), self.events.clone());
        let Made { wire, queue, mut reserved } = made;
        let endpoint = VerbsEndpoint::new(terms, domain, events, wire, queue, line)?;
        reserved.0 = None;
        Ok(Box::new(endpoint))
    }

    fn card(&self, queue: &SendQueue) -> io::Result<Card> {
        Ok(Card {
            tag: Token::random()?.word() as u32,
            message_max: self.limits.message_max as u32,
            counter: queue.counter(),
            mtu: self.choice.mtu as u16,
            reads_max: self.limits.reads.0,
            atomics: self.limits.atomics,
        })
    }

    fn hello(&self, made: &Made) -> io::Result<Hello> {
        Ok(Hello {
            gid: self.choice.gid.address.octets(),
            queue_pair: made.wire.number(),
            psn: Token::random()?.word() as u32 & 0x00ff_ffff,
            card: self.card(&made.queue)?,
            lid: self.limits.lid,
            roce: self.choice.gid.kind != GidKind::Infiniband,
        })
    }

    /// The access rights of peers to exported memory.
    fn access(&self) -> c_int {
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;
        if self.limits.atomics > 0 { access | sys::ACCESS_REMOTE_ATOMIC } else { access }
    }

    /// The attributes of a state without those that the way to the peer decides.
    fn first(&self, state: c_int) -> Way {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut attr: sys::QpAttr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        attr.pkey_index = self.options.pkey_index;
        attr.port_num = self.choice.port;
        let mask = match state {
            sys::QPS_INIT => sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT,
            _ => sys::QP_STATE,
        };
        Way { attr, mask }
    }

    /// The way to a peer that has told its address.
    fn to(&self, own: &Hello, peer: &Hello) -> Way {
        let Way { mut attr, mask } = self.first(sys::QPS_RTR);
        attr.path_mtu = 5;
        attr.dest_qp_num = peer.queue_pair;
        attr.rq_psn = peer.psn;
        let ah = &mut attr.ah_attr;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| peer.gid[at + i]));
        ah.dgid = [word(0), word(8)];
        ah.sgid_index = self.choice.gid.index as u8;
        ah.hop_limit = HOPS;
        ah.dlid = peer.lid;
        ah.is_global = u8::from(own.roce);
        ah.port_num = self.choice.port;
        Way { attr, mask: mask | sys::QP_AV | sys::QP_DEST_QPN | sys::QP_RQ_PSN }
    }

    fn initialise(&self, wire: &mut Wire, Way { mut attr, mask }: Way) -> io::Result<()> {
        attr.qp_access_flags = (self.access() & !sys::ACCESS_LOCAL_WRITE) as u32;
        wire.modify(&mut attr, mask | sys::QP_ACCESS_FLAGS)
            .map_err(|error| explained("the device does not start", &error))
    }

    fn ready_to_receive(
        &self,
        wire: &mut Wire,
        Way { mut attr, mask }: Way,
        peer: &Card,
    ) -> io::Result<()> {
        let mtu = self.choice.mtu.min(peer.mtu.into());
        attr.path_mtu = attr.path_mtu.min(sys::mtu_code(mtu));
        attr.max_dest_rd_atomic = self.limits.reads.0;
        attr.min_rnr_timer = NOT_READY_TIMER;
        let ah = &mut attr.ah_attr;
        let set = |value: &mut u8, asked: u8| *value = if asked == 0 { *value } else { asked };
        set(&mut ah.traffic_class, self.options.traffic_class);
        set(&mut ah.sl, self.options.service_level);
        let gid = [ah.dgid[0].to_ne_bytes(), ah.dgid[1].to_ne_bytes()].concat();
        let mask = mask | sys::QP_PATH_MTU | sys::QP_MAX_DEST_RD_ATOMIC | sys::QP_MIN_RNR_TIMER;
        wire.modify(&mut attr, mask).map_err(|error| {
            let gid: [u8; 16] = gid.try_into().unwrap_or_default();
            let peer = std::net::Ipv6Addr::from(gid);
            let own = &self.choice.gid;
            let what = format!(
                "there is no route from {} ({}, gid index {}) to {peer}; choose the gid index of \
                 an address in the peer's network",
                own.address, own.kind, own.index
            );
            explained(&what, &error)
        })
    }

    fn ready_to_send(
        &self,
        wire: &mut Wire,
        Way { mut attr, mask }: Way,
        peer: &Card,
    ) -> io::Result<()> {
        attr.timeout = self.options.ack_timeout.clamp(1, 31);
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES_NOT_READY;
        attr.max_rd_atomic = self.limits.reads.1.min(peer.reads_max).max(1);
        let mask = mask
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_MAX_QP_RD_ATOMIC;
        wire.modify(&mut attr, mask).map_err(|error| explained("the device does not send", &error))
    }

    /// The strongest mode that this side can promise for what it receives.
    fn promise(&self, wire: &Wire) -> Promise {
        let keeps_order = cfg!(target_arch = "x86_64") && !self.options.relaxed_ordering;
        let publish = match self.options.publish {
            None | Some(Publish::InOrderPoll) if keeps_order && wire.writes_in_order() => {
                Publish::InOrderPoll
            }
            None | Some(Publish::InOrderPoll | Publish::Notify) => Publish::Notify,
            Some(Publish::NotifyCounted) => Publish::NotifyCounted,
        };
        Promise { publish, headed: self.limits.headed }
    }
}

fn explained(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The socket is silent from here on; the system asks a silent peer whether it is there.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nonblocking(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    Ok(())
}
