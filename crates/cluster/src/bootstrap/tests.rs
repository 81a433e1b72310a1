use std::io::Read;

use super::*;
use crate::mesh::welcome;
use crate::secure::SecureStream;

/// A job of three ranks, which meet in a directory of the test.
struct Job {
    directory: PathBuf,
}

impl Job {
    fn new(name: &str) -> Self {
        let name = format!("millstream-bootstrap-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        Self { directory }
    }

    fn assignment(&self, rank: u32) -> Assignment {
        Assignment {
            rank,
            nodes: 3,
            launcher: "a test",
            job: "job".into(),
            local: None,
            cores: None,
            directory: self.directory.clone(),
            pmi: None,
        }
    }

    fn join(&self, rank: u32) -> Result<Control, ClusterError> {
        let limit = Duration::from_secs(60);
        let options =
            JoinOptions { listen: None, directory: None, limit, certs: None, insecure: false };
        self.assignment(rank).join(&options)
    }

    /// Leaves the card of a rank that listens here; dropping the result takes it away.
    fn publish(&self, rank: u32, listener: &TcpListener) -> CardExchange {
        let (at, token) = (listener.local_addr().unwrap(), JobToken::random().unwrap());
        let card = Card { rank, nodes: 3, at, process: std::process::id(), host: host(), token };
        CardExchange::publish(&self.assignment(rank), None, &card, soon()).unwrap()
    }

    /// Waits for the card of a rank.
    fn card(&self, rank: u32) -> Card {
        let file = self.directory.join(format!(".millstream-job-{rank}"));
        loop {
            match std::fs::read_to_string(&file).ok().as_deref().and_then(Card::decode) {
                Some(card) => return card,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Calls the node of a card as a rank.
    fn call_as(rank: u32, card: &Card) -> Result<Peer, ClusterError> {
        let security = Security::Token;
        let Card { at, token, .. } = *card;
        let own = Invitation { rank, nodes: 3, generation: 1, at, parent: 0, token, security };
        call_at(card, card.rank, &own, soon())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn soon() -> JoinDeadline {
    JoinDeadline::of(Duration::from_secs(60))
}

/// Lets ranks that have met exchange their numbers.
fn exchange(controls: [Control; 3]) {
    std::thread::scope(|scope| {
        for control in controls {
            scope.spawn(move || {
                let ranks = control.all_gather("ranks", vec![control.rank() as u8]).unwrap();
                assert_eq!(ranks, [[0], [1], [2]]);
                control.close();
            });
        }
    });
}

#[test]
fn a_rank_above_that_dies_while_ranks_meet_is_met_again() {
    let job = &Job::new("above");
    let controls = std::thread::scope(|scope| {
        let zero = scope.spawn(|| job.join(0));
        let card = job.card(0);
        // Rank 0 has welcomed it, and waits for rank 1.
        let first = Job::call_as(2, &card).unwrap();
        let refused = Job::call_as(2, &card).err().unwrap();
        assert!(refused.to_string().contains(JOINED_ALREADY), "{refused}");
        assert!(worth_another_look(refused).is_ok(), "the first one may die");
        drop(first);
        let others = [1, 2].map(|rank| scope.spawn(move || job.join(rank)));
        let [one, two] = others.map(|thread| thread.join().unwrap().unwrap());
        [zero.join().unwrap().unwrap(), one, two]
    });
    exchange(controls);
}

#[test]
fn a_rank_below_that_dies_while_ranks_meet_is_met_again() {
    let job = &Job::new("below");
    let controls = std::thread::scope(|scope| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cards = job.publish(0, &listener);
        let one = scope.spawn(|| job.join(1));
        let mut socket = listener.accept().unwrap().0;
        socket.read_exact(&mut [0; Hello::BYTES]).unwrap();
        welcome(&mut SecureStream::Plain(socket), 1, &[]).unwrap();
        // This rank 0 is gone: its card, its address, and its connection with rank 1.
        drop((cards, listener));
        let others = [0, 2].map(|rank| scope.spawn(move || job.join(rank)));
        let [zero, two] = others.map(|thread| thread.join().unwrap().unwrap());
        [zero, one.join().unwrap().unwrap(), two]
    });
    exchange(controls);
}
