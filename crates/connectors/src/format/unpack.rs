//! Packed pieces whose length was stated beforehand: pages of Parquet, columns of Arrow IPC.
//!
//! Invariant: no more bytes are made than were stated, whatever the packed bytes say, and a piece
//! that has fewer or more is damaged. The readers of the libraries trust some of these formats to
//! end by themselves: ten kilobytes of Brotli became eight gigabytes.

use std::io::Read;

use lz4_flex::block::decompress_into;
use lz4_flex::frame::FrameDecoder;

/// How a piece is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Brotli,
    Gzip,
    /// Blocks behind their two lengths, as Hadoop has them; a frame or a block in older files.
    Lz4Hadoop,
    Lz4Block,
    Lz4Frame,
    Snappy,
    Zstd,
}

/// An unpacker, which keeps the decompressors that are dear to make.
#[derive(Default)]
pub(crate) struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Unpacker {
    /// Appends to `out` what was packed: exactly `bytes` of it.
    ///
    /// # Errors
    /// When it is damaged, or of another length. `out` may have a part of it then.
    pub(crate) fn unpack(
        &mut self,
        packing: Packing,
        packed: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let begin = out.len();
        let made = match packing {
            Packing::Brotli => read(brotli::Decompressor::new(packed, BUFFER_BYTES), bytes, out)?,
            Packing::Gzip => read(flate2::read::MultiGzDecoder::new(packed), bytes, out)?,
            Packing::Lz4Frame => read(FrameDecoder::new(packed), bytes, out)?,
            Packing::Snappy => {
                let stated = snap::raw::decompress_len(packed).map_err(text_of)?;
                if stated != bytes {
                    return Err(other_length(stated, bytes));
                }
                out.resize(begin + bytes, 0);
                snap::raw::Decoder::new().decompress(packed, &mut out[begin..]).map_err(text_of)?
            }
            Packing::Lz4Block => {
                out.resize(begin + bytes, 0);
                decompress_into(packed, &mut out[begin..]).map_err(text_of)?
            }
            Packing::Lz4Hadoop => {
                out.resize(begin + bytes, 0);
                match hadoop(packed, &mut out[begin..]) {
                    Some(()) => bytes,
                    None => {
                        out.truncate(begin);
                        let frame = read(FrameDecoder::new(packed), bytes, out);
                        match frame {
                            Ok(made) => made,
                            Err(_) => {
                                out.truncate(begin);
                                return self.unpack(Packing::Lz4Block, packed, bytes, out);
                            }
                        }
                    }
                }
            }
            Packing::Zstd => {
                out.resize(begin + bytes, 0);
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Decompressor::new().map_err(text_of)?),
                };
                zstd.decompress_to_buffer(packed, &mut out[begin..]).map_err(text_of)?
            }
        };
        if made == bytes { Ok(()) } else { Err(other_length(made, bytes)) }
    }
}

/// Bytes that a reader of Brotli takes at a time.
const BUFFER_BYTES: usize = 4 << 10;

/// Reads to the end, or to one byte more than there may be.
fn read(packed: impl Read, bytes: usize, out: &mut Vec<u8>) -> Result<usize, String> {
    packed.take(bytes as u64 + 1).read_to_end(out).map_err(text_of)
}

/// Blocks of LZ4, each behind the length that it has and the length that it takes.
fn hadoop(mut packed: &[u8], mut out: &mut [u8]) -> Option<()> {
    while !packed.is_empty() {
        let (made, rest) = packed.split_first_chunk::<4>()?;
        let (taken, rest) = rest.split_first_chunk::<4>()?;
        let [made, taken] = [made, taken].map(|word| u32::from_be_bytes(*word) as usize);
        let (block, rest) = rest.split_at_checked(taken)?;
        let (to, behind) = out.split_at_mut_checked(made)?;
        if decompress_into(block, to).ok()? != made {
            return None;
        }
        (packed, out) = (rest, behind);
    }
    out.is_empty().then_some(())
}

fn text_of(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn other_length(made: usize, stated: usize) -> String {
    if made > stated {
        format!("it unpacks to more than the {stated} bytes that it states")
    } else {
        format!("it unpacks to {made} bytes and states {stated}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(packing: Packing, text: &[u8]) -> Vec<u8> {
        match packing {
            Packing::Brotli => {
                let mut packer = brotli::CompressorWriter::new(Vec::new(), BUFFER_BYTES, 5, 22);
                packer.write_all(text).unwrap();
                packer.into_inner()
            }
            Packing::Gzip => {
                let mut packer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                packer.write_all(text).unwrap();
                packer.finish().unwrap()
            }
            Packing::Lz4Block => lz4_flex::block::compress(text),
            Packing::Lz4Frame => {
                let mut packer = lz4_flex::frame::FrameEncoder::new(Vec::new());
                packer.write_all(text).unwrap();
                packer.finish().unwrap()
            }
            Packing::Lz4Hadoop => {
                let halves = text.chunks(text.len().div_ceil(2)).map(|half| {
                    let block = lz4_flex::block::compress(half);
                    let lengths = [half.len() as u32, block.len() as u32].map(u32::to_be_bytes);
                    [&lengths.concat()[..], &block].concat()
                });
                halves.collect::<Vec<_>>().concat()
            }
            Packing::Snappy => snap::raw::Encoder::new().compress_vec(text).unwrap(),
            Packing::Zstd => zstd::bulk::compress(text, 3).unwrap(),
        }
    }

    #[test]
    fn what_was_packed_is_given_back_and_no_byte_more() {
        use Packing::{Brotli, Gzip, Lz4Block, Lz4Frame, Lz4Hadoop, Snappy, Zstd};
        let text = b"one two three one two three ".repeat(1_000);
        let mut unpacker = Unpacker::default();
        for packing in [Brotli, Gzip, Lz4Block, Lz4Frame, Lz4Hadoop, Snappy, Zstd] {
            let packed = packed(packing, &text);
            let mut out = b"before".to_vec();
            unpacker.unpack(packing, &packed, text.len(), &mut out).unwrap();
            assert!(out == [b"before", &text[..]].concat(), "{packing:?}");
            for stated in [0, 16, text.len() - 1, text.len() + 1] {
                let mut out = Vec::new();
                let unpacked = unpacker.unpack(packing, &packed, stated, &mut out);
                assert!(unpacked.is_err(), "{packing:?} as {stated} bytes");
                assert!(out.len() <= stated + 1, "{packing:?} as {stated} bytes: {}", out.len());
            }
            let cut = &packed[..packed.len() / 2];
            assert!(unpacker.unpack(packing, cut, text.len(), &mut Vec::new()).is_err());
        }
        let mut out = Vec::new();
        for older in [Lz4Frame, Lz4Block] {
            out.clear();
            unpacker.unpack(Lz4Hadoop, &packed(older, &text), text.len(), &mut out).unwrap();
            assert!(out == text, "{older:?}");
        }
    }
}
