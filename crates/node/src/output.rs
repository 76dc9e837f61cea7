//! Output of an executor and its workers. The end of it is kept, for the lease's holder to read, live or afterwards,
//! and for the node to explain a death.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::node_api::{Piece, Printer, Stream};
use tokio::sync::watch;

/// Bytes that are kept of a live lease: the last ones.
const LIVE_BYTES: usize = 256 << 10;
/// Bytes that are kept of an ended lease, for as long as the states of its channels.
const ENDED_BYTES: usize = 16 << 10;
/// Bytes in one response; encoding doubles them.
const MAX_RESPONSE_BYTES: usize = 128 << 10;
/// Largest piece in bytes; pieces are dropped as a whole.
const MAX_PIECE_BYTES: usize = 4 << 10;

/// The end of the output.
#[derive(Debug)]
pub struct OutputBuffer {
    buffered: Mutex<Buffered>,
    /// Bytes of output in total.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Buffered {
    pieces: VecDeque<OutputPart>,
    bytes: usize,
    /// Number of the first kept byte, counted over all output.
    first: u64,
}

/// Output on one stream by one call.
#[derive(Debug)]
struct OutputPart {
    stream: Stream,
    by: Option<Printer>,
    bytes: Vec<u8>,
}

impl Buffered {
    fn trim(&mut self, most: usize) {
        while self.bytes > most
            && let Some(part) = self.pieces.pop_front()
        {
            self.bytes -= part.bytes.len();
            self.first += part.bytes.len() as u64;
        }
    }
}

impl Default for OutputBuffer {
    fn default() -> Self {
        Self {
            buffered: Mutex::default(),
            count: watch::channel(0).0,
        }
    }
}

impl OutputBuffer {
    fn buffered(&self) -> MutexGuard<'_, Buffered> {
        self.buffered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, with its call if that is known.
    pub fn add(&self, stream: Stream, by: Option<Printer>, bytes: &[u8]) {
        let mut buffered = self.buffered();
        match buffered.pieces.back_mut() {
            Some(last)
                if last.stream == stream && last.by == by && last.bytes.len() + bytes.len() <= MAX_PIECE_BYTES =>
            {
                last.bytes.extend(bytes);
            }
            _ => buffered.pieces.push_back(OutputPart {
                stream,
                by,
                bytes: bytes.to_vec(),
            }),
        }
        buffered.bytes += bytes.len();
        buffered.trim(LIVE_BYTES);
        self.count.send_modify(|count| *count += bytes.len() as u64);
    }

    /// Continues another executor's output, which this one replaces.
    pub fn prepend(&self, before: &Self) {
        let mut before = std::mem::take(&mut *before.buffered());
        let mut buffered = self.buffered();
        let printed = before.first + before.bytes as u64;
        before.pieces.append(&mut buffered.pieces);
        before.bytes += buffered.bytes;
        *buffered = before;
        buffered.trim(LIVE_BYTES);
        self.count.send_modify(|count| *count += printed);
    }

    /// Reduces the kept output after the lease's end.
    pub fn close(&self) {
        self.buffered().trim(ENDED_BYTES);
    }

    /// Output from byte `from` on, as far as it is kept and fits in a response, and the number of its first byte.
    pub fn read(&self, from: u64) -> (u64, Vec<Piece>) {
        let buffered = self.buffered();
        let start = from.clamp(buffered.first, buffered.first + buffered.bytes as u64);
        let (mut skip, mut room) = ((start - buffered.first) as usize, MAX_RESPONSE_BYTES);
        let mut pieces = Vec::new();
        for part in &buffered.pieces {
            let Some(wanted) = part.bytes.get(skip..).filter(|wanted| !wanted.is_empty()) else {
                skip -= part.bytes.len();
                continue;
            };
            skip = 0;
            let wanted = &wanted[..wanted.len().min(room)];
            room -= wanted.len();
            if wanted.is_empty() {
                break;
            }
            pieces.push(Piece {
                stream: part.stream,
                bytes: hex::encode(wanted),
                by: part.by,
            });
        }
        (start, pieces)
    }

    /// The last `most` bytes, as text.
    pub fn last(&self, most: usize) -> String {
        let buffered = self.buffered();
        let all: Vec<u8> = buffered.pieces.iter().flat_map(|part| &part.bytes).copied().collect();
        let last = &all[all.len().saturating_sub(most)..];
        String::from_utf8_lossy(last).trim().to_owned()
    }

    /// Waits for output from byte `from` on, at most `limit`.
    pub async fn wait(&self, from: u64, limit: Duration) {
        let mut count = self.count.subscribe();
        let _ = tokio::time::timeout(limit, count.wait_for(|count| *count > from)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[Piece]) -> String {
        let bytes = pieces.iter().flat_map(|piece| hex::decode(&piece.bytes).unwrap());
        String::from_utf8(bytes.collect()).unwrap()
    }

    #[test]
    fn output_is_read_in_order_from_any_offset() {
        let output = OutputBuffer::default();
        output.add(Stream::Out, None, b"one ");
        output.add(Stream::Out, None, b"two ");
        output.add(Stream::Err, None, b"three");
        let (from, pieces) = output.read(0);
        assert_eq!((from, text(&pieces).as_str()), (0, "one two three"));
        assert_eq!(
            pieces.iter().map(|piece| piece.stream).collect::<Vec<_>>(),
            [Stream::Out, Stream::Err]
        );
        for from in 0..=13 {
            assert_eq!(text(&output.read(from).1), &"one two three"[from as usize..]);
        }
        assert_eq!(output.read(99), (13, Vec::new()));
        assert_eq!(output.last(5), "three");
    }

    #[test]
    fn excess_output_is_dropped_from_its_beginning() {
        let output = OutputBuffer::default();
        for _ in 0..LIVE_BYTES / 1000 + 100 {
            output.add(Stream::Out, None, &[b'x'; 1000]);
        }
        let all = ((LIVE_BYTES / 1000 + 100) * 1000) as u64;
        let (mut from, mut read) = (0, 0);
        loop {
            let (start, pieces) = output.read(from);
            let length = text(&pieces).len();
            if length == 0 {
                break;
            }
            assert!(length <= MAX_RESPONSE_BYTES);
            assert!(from == 0 || start == from, "nothing is missing in the middle");
            read += length;
            from = start + length as u64;
        }
        assert_eq!(from, all);
        assert!(read <= LIVE_BYTES && read > LIVE_BYTES - 2 * MAX_PIECE_BYTES, "{read}");
        output.close();
        assert!(text(&output.read(0).1).len() <= ENDED_BYTES);
    }

    #[test]
    fn output_of_next_executor_follows_earlier_output() {
        let (first, second) = (OutputBuffer::default(), OutputBuffer::default());
        first.add(Stream::Out, None, b"before ");
        second.add(Stream::Out, None, b"after");
        second.prepend(&first);
        second.add(Stream::Out, None, b"wards");
        assert_eq!(text(&second.read(0).1), "before afterwards");
        assert_eq!(second.read(7).0, 7);
    }

    #[tokio::test]
    async fn waiting_reader_is_woken_by_new_output() {
        let output = std::sync::Arc::new(OutputBuffer::default());
        output.add(Stream::Out, None, b"old");
        let waiting = tokio::spawn({
            let output = output.clone();
            async move { output.wait(3, Duration::from_secs(20)).await }
        });
        tokio::task::yield_now().await;
        output.add(Stream::Err, None, b"new");
        waiting.await.unwrap();
        assert_eq!(text(&output.read(3).1), "new");
    }
}
