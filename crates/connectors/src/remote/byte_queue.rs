//! A stream of bytes from a task to a decoder, bounded.

use std::io::{self, ErrorKind, Read};
use std::task::Waker;

use bytes::{Buf, Bytes};
use dataflow::error::ConnectorError;
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::queue::{QueueSender, queue};

/// Pieces that wait for the decoder at most.
pub(crate) const PIECES_MAX: usize = 16;

/// Bytes of a piece, where the task chooses them: what one read of a socket asks for.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// The two ends of a stream; `waker` is that of the reader's context.
pub(crate) fn byte_queue(waker: &Waker) -> (ByteQueueSender, ByteQueueReader) {
    let (sender, pieces) = queue(PIECES_MAX, waker);
    (ByteQueueSender(sender), ByteQueueReader { pieces, piece: Bytes::new() })
}

/// The task's end. Dropping it ends the stream.
pub(crate) struct ByteQueueSender(QueueSender<io::Result<Bytes>>);

impl ByteQueueSender {
    /// Waits for room, then gives `piece` away; false when nobody reads any more.
    pub(crate) async fn send(&self, piece: Bytes) -> bool {
        piece.is_empty() || self.0.send(Ok(piece)).await
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(&self, error: ConnectorError) {
        // Nobody is left to tell only if nobody reads any more.
        self.0.send(Err(io::Error::other(error))).await;
    }

    /// As [`send`](Self::send), for a thread that may block.
    pub(crate) fn send_blocking(&self, piece: Bytes) -> bool {
        piece.is_empty() || self.0.send_blocking(Ok(piece))
    }
}

/// The decoder's end: reading gives [`ErrorKind::WouldBlock`] while nothing is there.
pub(crate) struct ByteQueueReader {
    pieces: Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl ByteQueueReader {
    /// The next piece as it came; `None` at the end.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] while nothing is there; or what the task says.
    pub(crate) fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        if !self.piece.is_empty() {
            return Ok(Some(std::mem::take(&mut self.piece)));
        }
        match self.pieces.try_recv() {
            Ok(piece) => piece.map(Some),
            Err(TryRecvError::Disconnected) => Ok(None),
            Err(TryRecvError::Empty) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Read for ByteQueueReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(mut piece) = self.next_piece()? else { return Ok(0) };
        let bytes = piece.len().min(into.len());
        piece.copy_to_slice(&mut into[..bytes]);
        self.piece = piece;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_stream_is_not_an_ended_one() {
        let (sender, mut byte_queue) = byte_queue(Waker::noop());
        let mut bytes = [0; 2];
        assert_eq!(byte_queue.read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(sender.send_blocking(Bytes::from_static(b"abc")));
        drop(sender);
        assert_eq!((byte_queue.read(&mut bytes).unwrap(), &bytes), (2, b"ab"));
        assert_eq!((byte_queue.read(&mut bytes).unwrap(), bytes[0]), (1, b'c'));
        assert_eq!(byte_queue.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn the_queue_is_bounded_and_its_reader_may_go() {
        let (sender, byte_queue) = byte_queue(Waker::noop());
        for _ in 0..PIECES_MAX {
            assert!(sender.send_blocking(Bytes::from_static(b"x")));
        }
        assert_eq!(byte_queue.pieces.capacity(), 0);
        drop(byte_queue);
        assert!(!sender.send_blocking(Bytes::from_static(b"x")));
    }
}
