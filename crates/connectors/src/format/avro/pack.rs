//! The blocks of a file of Avro: how they are packed, and how they are written.

use std::io::{Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Crc;
use liblzma::stream::Stream;

use crate::format::InputVersion;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"Obj\x01";

/// Bytes of the mark behind each block, the same in all of a file.
pub(super) const MARK_BYTES: usize = 16;

/// Bytes of a block at most, unpacked.
const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// Memory that a block packed by xz may ask for.
const XZ_BYTES_MAX: u64 = 256 << 20;

/// Level of xz, of 9: its own default.
const XZ_LEVEL: u32 = 6;

/// Bytes of rows in a block, about, as a sink writes it.
const BLOCK_BYTES: usize = 64 << 10;

/// How blocks are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockCodec {
    None,
    Deflate,
    Snappy,
    Zstandard,
    Bzip2,
    Xz,
}

impl BlockCodec {
    /// All of them, as files name them.
    pub(crate) const ALL: [(&str, Self); 6] = [
        ("null", Self::None),
        ("deflate", Self::Deflate),
        ("snappy", Self::Snappy),
        ("zstandard", Self::Zstandard),
        ("bzip2", Self::Bzip2),
        ("xz", Self::Xz),
    ];

    pub(super) fn named(name: &[u8]) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(own, _)| own.as_bytes() == name);
        found.map(|(_, codec)| *codec).ok_or_else(|| {
            format!("its blocks are packed by '{}'", String::from_utf8_lossy(name).escape_debug())
        })
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, codec)| *codec == self).map_or("", |(name, _)| name)
    }

    /// The bytes of a block.
    ///
    /// # Errors
    /// When it is damaged, or too large.
    pub(super) fn unpack(self, packed: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::None => Ok(packed.to_vec()),
            Self::Deflate => read(flate2::read::DeflateDecoder::new(packed)),
            Self::Bzip2 => read(bzip2::read::BzDecoder::new(packed)),
            Self::Zstandard => read(zstd::Decoder::with_buffer(packed).map_err(text_of)?),
            Self::Xz => {
                let stream = Stream::new_stream_decoder(XZ_BYTES_MAX, 0).map_err(text_of)?;
                read(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
            Self::Snappy => {
                let (packed, sum) = packed.split_last_chunk::<4>().ok_or("a block has no sum")?;
                let bytes = snap::raw::decompress_len(packed).map_err(text_of)?;
                if bytes > UNPACKED_BYTES_MAX {
                    return Err(too_large());
                }
                let unpacked = snap::raw::Decoder::new().decompress_vec(packed).map_err(text_of)?;
                if checksum(&unpacked) != *sum {
                    return Err("a block does not have its checksum".into());
                }
                Ok(unpacked)
            }
        }
    }

    fn pack(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        Ok(match self {
            Self::None => bytes.to_vec(),
            Self::Deflate => {
                let level = flate2::Compression::default();
                let mut packer = flate2::write::DeflateEncoder::new(vec![], level);
                packer.write_all(bytes)?;
                packer.finish()?
            }
            Self::Snappy => {
                let packed = snap::raw::Encoder::new().compress_vec(bytes);
                let mut packed = packed.map_err(std::io::Error::other)?;
                packed.extend(checksum(bytes));
                packed
            }
            Self::Zstandard => zstd::encode_all(bytes, zstd::DEFAULT_COMPRESSION_LEVEL)?,
            Self::Bzip2 => {
                let level = bzip2::Compression::default();
                let mut packer = bzip2::write::BzEncoder::new(vec![], level);
                packer.write_all(bytes)?;
                packer.finish()?
            }
            Self::Xz => {
                let mut packer = liblzma::write::XzEncoder::new(vec![], XZ_LEVEL);
                packer.write_all(bytes)?;
                packer.finish()?
            }
        })
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_be_bytes()
}

/// Reads to the end, or fails behind the last byte that there may be.
fn read(packed: impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    packed.take(UNPACKED_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(text_of)?;
    if bytes.len() > UNPACKED_BYTES_MAX { Err(too_large()) } else { Ok(bytes) }
}

fn text_of(error: impl std::fmt::Display) -> String {
    format!("a block cannot be unpacked: {error}")
}

fn too_large() -> String {
    format!("a block unpacks to more than {UNPACKED_BYTES_MAX} bytes")
}

/// The blocks of a file that is written.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    codec: BlockCodec,
    mark: [u8; MARK_BYTES],
    /// Rows of the block that is being filled.
    rows: u64,
    pub(super) bytes: Vec<u8>,
}

impl BlockWriter {
    /// A file at `place` with rows of this schema; its first bytes are appended to `out`. The mark,
    /// by which readers find blocks, is made of the place and the time: it should be in no other
    /// file, nor in the values.
    pub(crate) fn begin(codec: BlockCodec, schema: &str, place: &str, out: &mut Vec<u8>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let seed = InputVersion::mark_of(now.to_le_bytes().iter().chain(place.as_bytes()));
        let mut mark = [0; MARK_BYTES];
        let other = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ schema.len() as u64;
        mark[..8].copy_from_slice(&seed.to_le_bytes());
        mark[8..].copy_from_slice(&other.to_le_bytes());
        out.extend(MAGIC);
        put_long(2, out);
        for (key, value) in [("avro.schema", schema), ("avro.codec", codec.name())] {
            put_bytes(key.as_bytes(), out);
            put_bytes(value.as_bytes(), out);
        }
        put_long(0, out);
        out.extend(mark);
        Self { codec, mark, rows: 0, bytes: vec![] }
    }

    /// Bytes of rows that were not appended to the file yet.
    pub(crate) fn unwritten(&self) -> usize {
        self.bytes.len()
    }

    /// A row ends, the last one of the block in `bytes`, which is appended to `out` if it is full.
    pub(super) fn end_row(&mut self, bytes: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), String> {
        self.rows += 1;
        if bytes.len() < BLOCK_BYTES {
            return Ok(());
        }
        self.put(bytes, out).map_err(|error| error.to_string())?;
        bytes.clear();
        Ok(())
    }

    /// Appends the block to `out`, if it has rows.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub(crate) fn end_block(&mut self, out: &mut Vec<u8>) -> std::io::Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        if self.rows > 0 { self.put(&bytes, out) } else { Ok(()) }
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        let packed = self.codec.pack(bytes)?;
        put_long(self.rows.cast_signed(), out);
        put_bytes(&packed, out);
        out.extend(self.mark);
        self.rows = 0;
        Ok(())
    }
}

/// Appends a number as Avro has it.
pub(super) fn put_long(value: i64, out: &mut Vec<u8>) {
    let mut left = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while left >= 0x80 {
        out.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Appends bytes behind their length.
pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_long(bytes.len() as i64, out);
    out.extend_from_slice(bytes);
}
