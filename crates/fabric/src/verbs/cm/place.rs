//! An offer that connects through the connection manager: the caller, the called side, and their
//! private data.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::super::handshake::Card;
use super::super::{DeviceChoice, GidKind, RETRIES, RETRIES_NOT_READY, VerbsOptions};
use super::CmLibrary;
use super::call::{Call, Channel, PRIVATE_BYTES};
use super::sys::{self, ConnParam};
use crate::LinkId;
use crate::listener::{address, broken, parse};
use crate::token::Token;

/// First bytes of an address and of what is said: name and version of the protocol.
pub(in crate::verbs) const MAGIC: [u8; 8] = *b"MLSRCM\x00\x02";
/// Calls that may wait while nobody looks. The peer calls once; the rest are strangers.
const BACKLOG: i32 = 8;

/// The IP address by which the manager knows the chosen port: that of its RoCE address, else the
/// one that peers reach this process by, which then has to be that of the port's interface.
pub(in crate::verbs) fn address_of(choice: &DeviceChoice, options: &VerbsOptions) -> IpAddr {
    let gid = choice.gid.address;
    let unroutable = choice.gid.kind == GidKind::Infiniband || gid.segments()[0] == 0xfe80;
    match gid.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None if unroutable => options.advertise.unwrap_or(options.bind),
        None => gid.into(),
    }
}

/// An offer's place: from here on the peer may call.
pub(in crate::verbs) struct CmPlace {
    link: LinkId,
    token: Token,
    at: SocketAddr,
    // The ids go before their channel, which they hold.
    listener: Option<Call>,
    channel: Arc<Channel>,
}

/// The part of a side.
pub(in crate::verbs) enum Part {
    /// To call the peer there.
    Calls(SocketAddr),
    /// To be called.
    Answers,
}

/// The part that a side takes, and its peer.
pub(in crate::verbs) struct CmRole {
    pub(in crate::verbs) part: Part,
    /// Of the peer.
    pub(in crate::verbs) token: Token,
}

impl CmPlace {
    /// # Errors
    /// When the manager gives nothing, or the address is not that of a device.
    pub(in crate::verbs) fn new(
        library: &Arc<CmLibrary>,
        link: LinkId,
        at: IpAddr,
    ) -> io::Result<Self> {
        let channel = Channel::new(library).map_err(|error| {
            let what = format!(
                "rdma_cm gives no events: {error}; is the kernel's module rdma_ucm loaded?"
            );
            io::Error::new(error.kind(), what)
        })?;
        let mut at = SocketAddr::new(at, 0);
        let mut listener = None;
        // Where the numbers are equal, the tokens decide who calls.
        if link.local >= link.remote {
            let call = Call::new(&channel)?;
            let port = call.listen(at, BACKLOG).map_err(|error| {
                let what = format!("rdma_cm does not listen at {}: {error}", at.ip());
                io::Error::new(error.kind(), what)
            })?;
            at.set_port(port);
            listener = Some(call);
        }
        Ok(Self { link, token: Token::random()?, at, listener, channel })
    }

    /// The address for the peer.
    pub(in crate::verbs) fn address(&self) -> Vec<u8> {
        address(&MAGIC, &self.token, self.at)
    }

    /// The listening id, where there is one.
    pub(in crate::verbs) fn listener(&self) -> Option<&Call> {
        self.listener.as_ref()
    }

    /// The part of this side; `None` when the bytes are no address.
    pub(in crate::verbs) fn role(&self, peer: &[u8]) -> Option<CmRole> {
        let (token, at) = parse(&MAGIC, peer)?;
        let calls = (self.link.local, self.token) < (self.link.remote, token);
        let part = if calls { Part::Calls(at) } else { Part::Answers };
        Some(CmRole { part, token })
    }

    /// An id that has found the way to the peer.
    ///
    /// # Errors
    /// When there is no way, or at the deadline.
    pub(in crate::verbs) fn find(&self, peer: SocketAddr, deadline: Instant) -> io::Result<Call> {
        let call = Call::new(&self.channel)?;
        let from = SocketAddr::new(self.at.ip(), 0);
        call.resolve(from, peer, deadline).map_err(|error| {
            let what = format!("rdma_cm finds no route from {} to {peer}: {error}", from.ip());
            io::Error::new(error.kind(), what)
        })?;
        Ok(call)
    }

    /// Calls the peer; returns what it says of itself, and whether the caller has the last word.
    /// Over iWARP the connection stands then.
    ///
    /// # Errors
    /// When it refuses or is another one, or at the deadline.
    pub(in crate::verbs) fn ask(
        &self,
        call: &Call,
        peer: &Token,
        own: &Card,
        queue_pair: u32,
        deadline: Instant,
    ) -> io::Result<(Card, bool)> {
        let message = words(peer, own);
        call.connect(&mut terms(&message, own, queue_pair))?;
        let answer = call.expect(&[sys::CONNECT_RESPONSE, sys::ESTABLISHED], deadline)?;
        let card =
            self.read(&answer.message).ok_or_else(|| broken("the answer is not the peer's"))?;
        Ok((card.map_err(broken)?, answer.kind == sys::CONNECT_RESPONSE))
    }

    /// Waits until the peer calls; refuses others.
    ///
    /// # Errors
    /// At the deadline, or when the device is gone.
    pub(in crate::verbs) fn answer(&self, deadline: Instant) -> io::Result<(Call, Card)> {
        loop {
            let event = self.channel.wait(deadline)?;
            if event.kind == sys::DEVICE_REMOVAL {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let Some(call) = event.call else { continue };
            match self.read(&event.message) {
                Some(card) => return Ok((call, card.map_err(broken)?)),
                None => call.refuse(),
            }
        }
    }

    /// Says to who called that it is the one.
    ///
    /// # Errors
    /// When the caller is gone.
    pub(in crate::verbs) fn accept(
        &self,
        call: &Call,
        peer: &Token,
        own: &Card,
        queue_pair: u32,
    ) -> io::Result<()> {
        let message = words(peer, own);
        call.accept(&mut terms(&message, own, queue_pair))
    }

    /// The peer's card; `None` when it does not know our token.
    fn read(&self, message: &[u8; PRIVATE_BYTES]) -> Option<Result<Card, &'static str>> {
        let (magic, rest) = message.split_first_chunk::<8>()?;
        let (token, rest) = rest.split_first_chunk::<{ Token::BYTES }>()?;
        let (card, rest) = rest.split_first_chunk::<{ Card::BYTES }>()?;
        let ours = *magic == MAGIC && token == self.token.bytes();
        (ours && rest.iter().all(|byte| *byte == 0)).then(|| Card::decode(card))
    }
}

/// Magic, the token of who is spoken to, the card of who speaks, and zeros.
pub(super) fn words(to: &Token, own: &Card) -> [u8; PRIVATE_BYTES] {
    let mut out = [0; PRIVATE_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..24].copy_from_slice(to.bytes());
    out[24..24 + Card::BYTES].copy_from_slice(&own.encode());
    out
}

/// The parameters for the manager; they point to `message`.
fn terms(message: &[u8; PRIVATE_BYTES], own: &Card, queue_pair: u32) -> ConnParam {
    ConnParam {
        private_data: message.as_ptr().cast(),
        private_data_len: PRIVATE_BYTES as u8,
        responder_resources: own.reads_max,
        initiator_depth: own.reads_max,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES_NOT_READY,
        srq: 1,
        qp_num: queue_pair,
    }
}
