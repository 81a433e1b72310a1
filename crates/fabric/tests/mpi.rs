//! MPI passes the conformance suite, and joins the processes that `mpirun` started. Started by
//! `mpirun -n 2` (scripts/test-mpi.sh); alone it says that it did not run.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::conformance::{self, Bed, pattern};
use fabric::mpi::{MpiFabric, finish};
use fabric::{
    Armed, Completion, Endpoint, Fabric, Flags, LinkId, OpId, Publish, RemoteKey, RemoteRange,
    SlabRange, Src,
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a message of [`cross`], and messages.
const SLOT: usize = 100_000;
const ROUNDS: u32 = 500;
/// Channels that two workers use at once.
const THREADS: u32 = 3;

fn main() -> ExitCode {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
    if names.iter().all(|name| std::env::var_os(name).is_none()) {
        println!("NOT RUN: mpirun -n 2 starts this test");
        return ExitCode::SUCCESS;
    }
    let world = MpiFabric::new(Publish::Notify).expect("MPI");
    let (rank, size) = world.rank_and_size();
    assert_eq!(size, 2, "mpirun -n 2");
    for publish in [Publish::Notify, Publish::InOrderPoll] {
        let fabrics = [0, 1].map(|_| MpiFabric::new(publish).expect("MPI"));
        let report = conformance::run(&mut MpiBed(fabrics));
        assert_eq!(report.passed.len(), conformance::cases().len());
        println!("rank {rank}: {} cases passed, {publish:?}", report.passed.len());
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let world = world.clone();
            scope.spawn(move || cross(&*world, rank, thread));
        }
    });
    println!("rank {rank}: {ROUNDS} messages each way on each of {THREADS} threads");
    finish();
    ExitCode::SUCCESS
}

/// Both ends in this process: MPI carries messages of a process to itself.
struct MpiBed([Arc<MpiFabric>; 2]);

impl Bed for MpiBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

/// A worker's end of a connection with the other rank, as each thread of a job has one.
struct Side {
    end: Box<dyn Endpoint>,
    memory: SlabRange,
    peer: RemoteKey,
    seen: Vec<Completion>,
}

impl Side {
    /// The exchange of addresses goes through a file of each rank.
    fn connect(fabric: &dyn Fabric, rank: u32, thread: u32) -> Self {
        let addresses = Addresses::new(rank, thread);
        let link = LinkId { local: 2 * thread + rank, remote: 2 * thread + 1 - rank };
        let offer = fabric.offer(link).expect("an offer");
        let address = addresses.exchange("address", &offer.address());
        let mut end = offer.connect(&address).expect("the other rank");
        let slab = fabric.slab(2 * SLOT).expect("memory");
        let memory = slab.range(0..2 * SLOT).expect("a range");
        let key = end.export(&memory).expect("own memory").encode();
        let peer = RemoteKey::decode(&addresses.exchange("key", &key)).expect("a key");
        end.post_recvs(8);
        end.submit();
        Self { end, memory, peer, seen: Vec::new() }
    }

    /// Polls until a completion came, sleeping in between.
    fn until(&mut self, wanted: &Completion) {
        let start = Instant::now();
        loop {
            self.end.poll(&mut self.seen);
            if let Some(at) = self.seen.iter().position(|seen| seen == wanted) {
                self.seen.remove(at);
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{wanted:?} did not come: {:?}", self.seen);
            if let Armed::Fd(fd) = self.end.arm() {
                fabric::wait(&[fd], TIMEOUT);
            }
        }
    }

    /// Bytes of the half that the peer writes to.
    fn got(&self) -> Vec<u8> {
        let word = |at| self.memory.slab().load(at, Ordering::Relaxed).to_le_bytes();
        (SLOT..2 * SLOT).step_by(8).flat_map(word).collect()
    }
}

/// Each rank writes into the other's memory, and checks what it finds in its own.
fn cross(fabric: &dyn Fabric, rank: u32, thread: u32) {
    let mut side = Side::connect(fabric, rank, thread);
    let seed = |rank: u32, round: u32| u64::from(round << 8 | thread << 1 | rank) + 1;
    for round in 0..ROUNDS {
        let bytes = pattern(seed(rank, round), SLOT);
        for (at, word) in (0..SLOT).step_by(8).zip(bytes.as_chunks::<8>().0) {
            side.memory.slab().store(at, u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        while side.end.budget().notices == 0 {
            side.end.poll(&mut side.seen);
        }
        let src = side.memory.part(0, SLOT).expect("a part");
        let dst = RemoteRange { key: side.peer, offset: SLOT as u64 };
        let id = OpId(round.into());
        side.end.write_notify(Src::Slab(&src), dst, round, id, Flags::SIGNAL).expect("posted");
        side.end.submit();
        side.until(&Completion::Notify { imm: round });
        assert_eq!(side.got(), pattern(seed(1 - rank, round), SLOT), "round {round}");
        side.until(&Completion::Local { id });
        side.end.post_recvs(1);
        // The next write of the peer waits for this word: its memory was read.
        side.end.send(&round.to_le_bytes(), OpId(u64::MAX)).expect("posted");
        side.end.post_recvs(1);
        side.end.submit();
        side.until(&Completion::Recv { bytes: round.to_le_bytes().to_vec() });
    }
}

/// Files of a directory that both ranks see.
struct Addresses {
    directory: std::path::PathBuf,
    rank: u32,
    thread: u32,
}

impl Addresses {
    fn new(rank: u32, thread: u32) -> Self {
        let directory = std::env::var_os("MPI_TEST_DIRECTORY").expect("a directory of this run");
        Self { directory: directory.into(), rank, thread }
    }

    fn exchange(&self, step: &str, own: &[u8]) -> Vec<u8> {
        let file = |rank| self.directory.join(format!("{step}-{}-{rank}", self.thread));
        let part = self.directory.join(format!("{step}-{}-{}.part", self.thread, self.rank));
        std::fs::write(&part, own).expect("a file");
        std::fs::rename(&part, file(self.rank)).expect("a file");
        let start = Instant::now();
        loop {
            if let Ok(bytes) = std::fs::read(file(1 - self.rank)) {
                return bytes;
            }
            assert!(start.elapsed() < TIMEOUT, "the other rank leaves no {step}");
            std::thread::yield_now();
        }
    }
}
