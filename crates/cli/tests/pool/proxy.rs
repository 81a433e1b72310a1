//! Between clients and a memory server: it passes a number of requests on, and then nothing more
//! until it is dropped; or it changes one of them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::bed::Pool;

/// The kind of a request that says no more than that its client lives: how many there are is a
/// matter of time.
const BEAT: u8 = 8;

pub struct Proxy {
    pub address: String,
    shared: Arc<Shared>,
    reached: Receiver<()>,
}

struct Shared {
    left: AtomicUsize,
    /// Where numbers that look like chance begin, if the next request is changed.
    change: Option<u64>,
    ends: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    reached: Sender<()>,
}

impl Proxy {
    /// Passes `requests` requests on, of all clients together.
    pub fn start(pool: &Pool, requests: usize) -> Self {
        Self::with(pool, requests, None)
    }

    /// Passes all requests on, and changes some bytes of one.
    pub fn changing(pool: &Pool, requests: usize, seed: u64) -> Self {
        Self::with(pool, requests, Some(seed))
    }

    fn with(pool: &Pool, requests: usize, change: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tokens = pool.dir.0.join("millstream");
        let token = tokens.join(format!("service-{address}.token"));
        std::fs::copy(tokens.join(format!("service-{}.token", pool.address)), &token).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (reached, hears) = channel();
        let (left, ends, sockets) = (requests.into(), false.into(), Mutex::default());
        let shared = Arc::new(Shared { left, change, ends, sockets, reached });
        let (server, own) = (pool.address.clone(), Arc::clone(&shared));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if own.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                    continue;
                };
                pass(&own, &client, &server);
            }
        });
        Self { address, shared, reached: hears }
    }

    /// How many requests were held back that nobody has waited for.
    pub fn held(&self) -> usize {
        self.reached.try_iter().count()
    }

    /// Whether a request was held back before the process has ended.
    pub fn is_reached_before_end(&self, process: &mut Child) -> bool {
        loop {
            if self.reached.recv_timeout(Duration::from_millis(5)).is_ok() {
                return true;
            }
            if process.try_wait().unwrap().is_some() {
                return self.reached.try_recv().is_ok();
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        for socket in &*self.shared.sockets.lock().unwrap() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let _ = TcpStream::connect(&self.address);
    }
}

/// Passes on what two peers say.
fn pass(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    let copies = || [client, server].map(|socket| socket.try_clone().unwrap());
    shared.sockets.lock().unwrap().extend(copies());
    let [mut to, mut from] = copies();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let ([mut from, mut to], shared) = (copies(), Arc::clone(shared));
    std::thread::spawn(move || {
        while let Some(mut request) = request(&mut from) {
            let is_held = request[8] != BEAT && !shared.admits();
            if let Some(seed) = shared.change.filter(|_| is_held) {
                // The others are as they were.
                shared.left.store(usize::MAX, Ordering::SeqCst);
                change(&mut request, seed);
            } else if is_held {
                let _ = shared.reached.send(());
                // Neither peer hears of the other until one of them ends.
                let _ = from.read(&mut [0]);
                break;
            }
            if to.write_all(&request).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Shared {
    fn admits(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}

/// A request: its length, its checksum, and its body.
fn request(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = vec![0; 8];
    from.read_exact(&mut request).ok()?;
    let length = u32::from_le_bytes(request[..4].try_into().unwrap());
    request.resize(8 + length as usize, 0);
    from.read_exact(&mut request[8..]).ok()?;
    (length > 0).then_some(request)
}

/// Changes some bytes of a request's body, and has its checksum agree.
fn change(request: &mut [u8], seed: u64) {
    let (head, body) = request.split_at_mut(8);
    let mut random = seed;
    for _ in 0..=seed % 4 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let at = (random >> 33) as usize % body.len();
        body[at] ^= ((random >> 20) as u8).max(1);
    }
    head[4..].copy_from_slice(&crc32c(body).to_le_bytes());
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, byte)
}
