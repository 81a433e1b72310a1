//! The watchdog of connections that stand and carry nothing ([`fabric::pulse`]).
//!
//! It runs on the node's own thread, until all nodes have ended. Once a second it tells the other
//! nodes, by a message over the control plane, how many bytes this node has put into each
//! connection with them; of one that has ended, as when a worker is done, it tells so once.

use std::sync::Arc;
use std::time::Duration;

use cluster::{CONTROL_MESSAGE_BYTES_MAX, Control};
use fabric::pulse::{
    ConnectionWatch, EndedConnection, Name, Pulse, STILL_LOOKS, encode_counts, entries,
};

use crate::pairs::Pairs;

/// Between two looks.
const LOOK_NS: u64 = 1_000_000_000;
/// The topic of these messages. Topics of workers are made of their numbers, and never this one.
const ABOUT: u64 = u64::MAX;

/// The watch of a node over its connections.
pub(crate) struct Vigil<'a> {
    control: &'a Control,
    pairs: &'a Pairs,
    watch: ConnectionWatch,
    next_ns: u64,
}

impl<'a> Vigil<'a> {
    pub(crate) fn new(control: &'a Control, pairs: &'a Pairs) -> Self {
        Self { control, pairs, watch: ConnectionWatch::default(), next_ns: 0 }
    }

    /// Looks, and tells the others, where it is time for that.
    pub(crate) fn turn(&mut self, now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + LOOK_NS;
        let others = || (0..self.control.nodes()).filter(|rank| *rank != self.control.rank());
        // Of what is sent of a connection that has ended nothing is kept but for one that is found
        // here by then, and it stood here before it ended there.
        for rank in others() {
            listen(self.control, &mut self.watch, rank);
        }
        let (pulses, ended) = (self.pairs.pulses(), self.pairs.ended());
        for rank in others() {
            let used = pulses.iter().filter(|(of, _)| *of == rank).map(|(_, pulse)| sent(pulse));
            let ended = ended.iter().filter(|(of, _)| *of == rank);
            let ended = ended.map(|(_, EndedConnection { name, sent, .. })| (*name, *sent));
            for message in encode_counts(used.chain(ended), CONTROL_MESSAGE_BYTES_MAX) {
                // A message to a node that is gone is dropped; the job ends for that reason.
                let sent = self.control.send_to(rank, ABOUT, message);
                debug_assert!(sent.is_ok(), "a short note");
            }
        }
        let counts: Vec<_> = pulses.iter().map(|(_, pulse)| pulse.count()).collect();
        for (name, missing) in self.watch.look(&counts) {
            let overdue = counts.iter().zip(&pulses).find(|(count, _)| count.name == name);
            let Some((_, (rank, pulse))) = overdue else { continue };
            tracing::warn!(
                "the connection with node {rank} is open and has carried nothing for {STILL_LOOKS} \
                 s, with {missing} bytes in flight: it is closed"
            );
            pulse.give_up();
        }
    }
}

/// Receives the messages of a node.
fn listen(control: &Control, watch: &mut ConnectionWatch, rank: u32) {
    // A node that has failed or closed tells nothing more.
    while let Ok(Some(message)) = control.receive_message(rank, ABOUT, Duration::ZERO) {
        for (name, sent) in entries(&message) {
            watch.announce(name, sent);
        }
    }
}

/// The name of a connection and the bytes put into it.
fn sent(pulse: &Arc<Pulse>) -> (Name, u64) {
    let count = pulse.count();
    (count.name, count.sent)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    use dataflow::job::Settings;
    use fabric::{Completion, Endpoint, Flags, LinkId, OpId, RemoteRange, Src};

    use super::*;
    use crate::FabricKind;
    use crate::links::NodeLayout;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Takes all that the one says who connects, and hands on the greeting alone; what the other
    /// says it hands on.
    fn black_hole(listener: &TcpListener, port: u16) {
        let (mut caller, _) = listener.accept().expect("a caller");
        let mut called = TcpStream::connect(("127.0.0.1", port)).expect("somebody called");
        let (mut answers, mut back) =
            (called.try_clone().expect("one"), caller.try_clone().expect("one"));
        thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let mut greeting = [0; 60];
        caller.read_exact(&mut greeting).expect("it greets");
        called.write_all(&greeting).expect("it listens");
        while let Ok(1..) = caller.read(&mut [0; 4096]) {}
    }

    /// Two nodes whose connection swallows what the first one says: the second one gives it up, by
    /// what it is sent over the control plane, at looks that are a second of their clock apart.
    #[test]
    fn a_connection_that_swallows_everything_is_given_up_by_who_gets_nothing() {
        let controls = cluster::in_process(2).unwrap();
        thread::scope(|scope| {
            for control in &controls {
                scope.spawn(move || node(control));
            }
        });
    }

    fn node(control: &Control) {
        let (rank, settings) = (control.rank(), Settings::default());
        let layout = NodeLayout { rank, nodes: 2, per_node: 1 };
        let pairs = Pairs::agree(FabricKind::Tcp, control, layout, &settings).unwrap();
        let fabric = pairs.with(1 - rank);
        let offer = fabric.offer(LinkId { local: rank, remote: 1 - rank }).unwrap();
        let mut addresses = control.all_gather("addresses", offer.address()).unwrap();
        let mut address = addresses.swap_remove(1 - rank as usize);
        if rank == 0 {
            let port = u16::from_le_bytes([address[24], address[25]]);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let through = listener.local_addr().unwrap().port();
            address[24..26].copy_from_slice(&through.to_le_bytes());
            thread::spawn(move || black_hole(&listener, port));
        }
        let mut end = offer.connect(&address).unwrap();
        let slab = fabric.slab(4096).unwrap();
        let key = end.export(&slab.range(0..4096).unwrap()).unwrap();
        let keys = control.all_gather("keys", key.encode().to_vec()).unwrap();
        if rank == 0 {
            let key = fabric::RemoteKey::decode(&keys[1]).unwrap();
            let dst = RemoteRange { key, offset: 0 };
            end.write(Src::Inline(&[7; 8]), dst, OpId(1), Flags::SIGNAL).unwrap();
            end.submit();
        }
        let mut vigil = Vigil::new(control, &pairs);
        let (start, mut now_ns) = (Instant::now(), 0);
        // The second one finds it, and the first one is sent that it has.
        loop {
            now_ns += LOOK_NS;
            vigil.turn(now_ns);
            let failed = has_failed(&mut *end);
            let sent = control.all_gather("look", vec![failed.into()]).unwrap();
            if sent[1] == [1] {
                break assert!(!failed || rank == 1, "who gets what it is sent has nothing to say");
            }
            assert!(start.elapsed() < TIMEOUT, "nobody gives the connection up");
        }
        control.close();
    }

    fn has_failed(end: &mut dyn Endpoint) -> bool {
        let mut seen = Vec::new();
        end.poll(&mut seen);
        seen.iter().any(|completion| matches!(completion, Completion::Error { .. }))
    }
}
