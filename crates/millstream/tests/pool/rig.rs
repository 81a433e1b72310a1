//! A server, and tables of one column of whole numbers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use millstream::FabricKind;
use millstream::pool::{
    At, BlockRange, Client, MemoryOptions, MemoryServer, Pinned, PoolAccess, PoolError, PoolOptions,
};
use pool::access::{EncodedBlock, EncodedStrip, LoadMode, StripWriter, TableLoad};
use pool::manifest::{Codec, Definition, Layout};
use pool::wire::{ClientRequest, PROTOCOL, Rights, ServerResponse, split};

/// How long a change is awaited that comes at once on a machine with nothing else to do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

const STRIP_ROWS: usize = 1024;

/// A directory that is removed at the end.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, made) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("millstream-memory-{process}-{made}"));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// The names of files that end in this, in order.
    pub(crate) fn files(&self, end: &str) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().path());
        let is = |path: &PathBuf| path.to_str().unwrap().ends_with(end);
        let mut files: Vec<PathBuf> = files.filter(is).collect();
        files.sort();
        files
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn options(directory: Option<&Path>) -> MemoryOptions {
    MemoryOptions {
        bytes: 256 << 20,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        directory: directory.map(Path::to_owned),
        ..MemoryOptions::default()
    }
}

pub(crate) fn serve(directory: Option<&Path>) -> MemoryServer {
    MemoryServer::start(options(directory)).unwrap()
}

pub(crate) fn client(at: SocketAddr, fabric: FabricKind) -> Client {
    Client::new(PoolOptions { fabric, ..PoolOptions::new(vec![at.to_string()]) }).unwrap()
}

fn definition(layout: Layout) -> Definition {
    let (columns, buckets) = (vec![layout], vec![]);
    Definition { schema: b"one".to_vec(), columns, buckets, strip_rows: STRIP_ROWS as u32 }
}

/// Begins a load and writes its strips, all of which are sealed then.
pub(crate) fn written(
    client: &Client,
    table: &str,
    mode: LoadMode,
    layout: Layout,
    strips: Vec<(u32, Vec<u8>)>,
) -> Result<Box<dyn StripWriter>, PoolError> {
    let load = table_load(table, mode, layout);
    let mut writer = client.begin(&load)?.writer(0, Waker::noop().clone())?;
    write(&mut *writer, strips)?;
    seal(&mut *writer)?;
    Ok(writer)
}

pub(crate) fn table_load(table: &str, mode: LoadMode, layout: Layout) -> TableLoad {
    TableLoad { table: table.into(), definition: definition(layout), mode, origin: None }
}

/// Writes strips when there is room for them.
pub(crate) fn write(
    writer: &mut dyn StripWriter,
    strips: Vec<(u32, Vec<u8>)>,
) -> Result<(), PoolError> {
    for (rows, bytes) in strips {
        while !writer.has_room()? {
            std::thread::yield_now();
        }
        let (least, greatest) = (i64::MIN, i64::MAX);
        let block = EncodedBlock { bytes, codec: Codec::Plain, nulls: 0, least, greatest };
        writer.write(0, EncodedStrip { rows, blocks: vec![block] })?;
    }
    Ok(())
}

/// Waits until all strips of a writer are sealed.
pub(crate) fn seal(writer: &mut dyn StripWriter) -> Result<(), PoolError> {
    while !writer.is_sealed()? {
        std::thread::yield_now();
    }
    Ok(())
}

/// The strips of some numbers.
pub(crate) fn strips(values: impl Iterator<Item = u64>) -> Vec<(u32, Vec<u8>)> {
    let values: Vec<u64> = values.collect();
    let strip = |values: &[u64]| {
        (values.len() as u32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    };
    values.chunks(STRIP_ROWS).map(strip).collect()
}

/// Loads numbers.
pub(crate) fn load(
    client: &Client,
    table: &str,
    mode: LoadMode,
    values: std::ops::Range<u64>,
) -> Result<(), PoolError> {
    written(client, table, mode, Layout::Fixed(8), strips(values))?.commit()
}

/// The version of a table and its blocks, in order.
pub(crate) fn blocks(client: &Client, table: &str) -> Result<(u64, Vec<Vec<u8>>), PoolError> {
    let Pinned { manifest, blocks } = client.pin(table, At::Newest)?;
    let mut reader = blocks.open(4, Waker::noop().clone())?;
    for block in manifest.strips.iter().flat_map(|strip| &strip.blocks) {
        reader.want(BlockRange { at: block.at, bytes: block.bytes });
    }
    let mut read = Vec::new();
    while reader.wanted() > 0 {
        match reader.next()? {
            Some(block) => read.push((*block).as_ref().to_vec()),
            None => std::thread::yield_now(),
        }
    }
    Ok((manifest.version, read))
}

/// The version of a table, the number of its rows and their sum.
pub(crate) fn sums(client: &Client, table: &str) -> Result<(u64, u64, u64), PoolError> {
    let (version, blocks) = blocks(client, table)?;
    let values = blocks.iter().flat_map(|block| block.chunks(8));
    let values = values.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    let (count, sum) = values.fold((0, 0), |(count, sum), value| (count + 1, sum + value));
    Ok((version, count, sum))
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn awaited(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The file by which clients of this user find the token of a server.
pub(crate) fn token_file(at: SocketAddr) -> PathBuf {
    let of = |name| std::env::var_os(name).map(PathBuf::from);
    let home = of("HOME").map(|home| home.join(".local/state"));
    let all = [of("XDG_RUNTIME_DIR"), of("XDG_STATE_HOME"), home];
    let files = all.into_iter().flatten();
    let mut files = files.map(|path| path.join(format!("millstream/service-{at}.token")));
    files.find(|path| path.exists()).expect("the server has left a token")
}

/// The token in a file.
pub(crate) fn token(file: &Path) -> Vec<u8> {
    let digits = std::fs::read_to_string(file).unwrap();
    let digits: Vec<char> = digits.trim().chars().collect();
    let byte = |two: &[char]| u8::from_str_radix(&two.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A client that sends what it likes.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Says hello with the token of this user.
    pub(crate) fn greeted(at: SocketAddr) -> Self {
        let (raw, rights) = Self::hello(at, token(&token_file(at)), Rights::Write);
        assert_eq!(rights, Some(Rights::Write));
        raw
    }

    /// Says hello; gives the rights that it has, none where it was refused.
    pub(crate) fn hello(at: SocketAddr, token: Vec<u8>, rights: Rights) -> (Self, Option<Rights>) {
        let mut raw = Self(TcpStream::connect(at).unwrap());
        let client = "raw".into();
        let hello = ClientRequest::Hello { protocol: PROTOCOL, client, token, rights };
        match raw.ask(&hello) {
            ServerResponse::Welcome(welcome) => (raw, Some(welcome.rights)),
            ServerResponse::Failed(_) => (raw, None),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, request: &ClientRequest) -> ServerResponse {
        self.0.write_all(&request.encode()).unwrap();
        self.hear().expect("an answer")
    }

    /// The next response; `None` when the connection has ended.
    pub(crate) fn hear(&mut self) -> Option<ServerResponse> {
        let mut bytes = Vec::new();
        loop {
            if let Some((body, _)) = split(&bytes).unwrap() {
                return Some(ServerResponse::decode(body).unwrap());
            }
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => bytes.push(byte[0]),
                _ => return None,
            }
        }
    }
}

/// A statement's text on the ways that a client reads.
pub(crate) const FABRICS: [FabricKind; 2] = [FabricKind::Shm, FabricKind::Tcp];
