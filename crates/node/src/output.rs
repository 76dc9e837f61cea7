//! Output of an executor and its workers. The end of it is kept, for the lease's holder to read, live or afterwards,
//! and for the node to explain a death.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::node_api::{Piece, Printer, Stream};
use tokio::sync::watch;

/// Bytes that are kept of a live lease: the last ones.
const KEPT_BYTES: usize = 256 << 10;
/// Bytes that are kept of an ended lease, as long as its calls' fates.
const LEFT_BYTES: usize = 16 << 10;
/// Bytes in one response; encoding doubles them.
const ANSWER_BYTES: usize = 128 << 10;
/// Largest piece in bytes; pieces are dropped as a whole.
const PIECE_BYTES: usize = 4 << 10;

/// The end of the output.
#[derive(Debug)]
pub struct Printed {
    kept: Mutex<Kept>,
    /// Bytes of output in total.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    pieces: VecDeque<Part>,
    bytes: usize,
    /// Number of the first kept byte, counted over all output.
    first: u64,
}

/// Output on one stream by one call.
#[derive(Debug)]
struct Part {
    stream: Stream,
    by: Option<Printer>,
    bytes: Vec<u8>,
}

impl Kept {
    fn trim(&mut self, most: usize) {
        while self.bytes > most
            && let Some(part) = self.pieces.pop_front()
        {
            self.bytes -= part.bytes.len();
            self.first += part.bytes.len() as u64;
        }
    }
}

impl Default for Printed {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            count: watch::channel(0).0,
        }
    }
}

impl Printed {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, with its call if that is known.
    pub fn add(&self, stream: Stream, by: Option<Printer>, bytes: &[u8]) {
        let mut kept = self.kept();
        match kept.pieces.back_mut() {
            Some(last) if last.stream == stream && last.by == by && last.bytes.len() + bytes.len() <= PIECE_BYTES => {
                last.bytes.extend(bytes);
            }
            _ => kept.pieces.push_back(Part {
                stream,
                by,
                bytes: bytes.to_vec(),
            }),
        }
        kept.bytes += bytes.len();
        kept.trim(KEPT_BYTES);
        self.count.send_modify(|count| *count += bytes.len() as u64);
    }

    /// Continues another executor's output, which this one replaces.
    pub fn follow(&self, before: &Self) {
        let mut before = std::mem::take(&mut *before.kept());
        let mut kept = self.kept();
        let printed = before.first + before.bytes as u64;
        before.pieces.append(&mut kept.pieces);
        before.bytes += kept.bytes;
        *kept = before;
        kept.trim(KEPT_BYTES);
        self.count.send_modify(|count| *count += printed);
    }

    /// Reduces the kept output after the lease's end.
    pub fn close(&self) {
        self.kept().trim(LEFT_BYTES);
    }

    /// Output from byte `from` on, as far as it is kept and fits in a response, and the number of its first byte.
    pub fn read(&self, from: u64) -> (u64, Vec<Piece>) {
        let kept = self.kept();
        let start = from.clamp(kept.first, kept.first + kept.bytes as u64);
        let (mut skip, mut room) = ((start - kept.first) as usize, ANSWER_BYTES);
        let mut pieces = Vec::new();
        for part in &kept.pieces {
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
        let kept = self.kept();
        let all: Vec<u8> = kept.pieces.iter().flat_map(|part| &part.bytes).copied().collect();
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
        let printed = Printed::default();
        printed.add(Stream::Out, None, b"one ");
        printed.add(Stream::Out, None, b"two ");
        printed.add(Stream::Err, None, b"three");
        let (from, pieces) = printed.read(0);
        assert_eq!((from, text(&pieces).as_str()), (0, "one two three"));
        assert_eq!(
            pieces.iter().map(|piece| piece.stream).collect::<Vec<_>>(),
            [Stream::Out, Stream::Err]
        );
        for from in 0..=13 {
            assert_eq!(text(&printed.read(from).1), &"one two three"[from as usize..]);
        }
        assert_eq!(printed.read(99), (13, Vec::new()));
        assert_eq!(printed.last(5), "three");
    }

    #[test]
    fn excess_output_is_dropped_from_its_beginning() {
        let printed = Printed::default();
        for _ in 0..KEPT_BYTES / 1000 + 100 {
            printed.add(Stream::Out, None, &[b'x'; 1000]);
        }
        let all = ((KEPT_BYTES / 1000 + 100) * 1000) as u64;
        let (mut from, mut read) = (0, 0);
        loop {
            let (start, pieces) = printed.read(from);
            let length = text(&pieces).len();
            if length == 0 {
                break;
            }
            assert!(length <= ANSWER_BYTES);
            assert!(from == 0 || start == from, "nothing is missing in the middle");
            read += length;
            from = start + length as u64;
        }
        assert_eq!(from, all);
        assert!(read <= KEPT_BYTES && read > KEPT_BYTES - 2 * PIECE_BYTES, "{read}");
        printed.close();
        assert!(text(&printed.read(0).1).len() <= LEFT_BYTES);
    }

    #[test]
    fn output_of_next_executor_follows_earlier_output() {
        let (first, second) = (Printed::default(), Printed::default());
        first.add(Stream::Out, None, b"before ");
        second.add(Stream::Out, None, b"after");
        second.follow(&first);
        second.add(Stream::Out, None, b"wards");
        assert_eq!(text(&second.read(0).1), "before afterwards");
        assert_eq!(second.read(7).0, 7);
    }

    #[tokio::test]
    async fn waiting_reader_is_woken_by_new_output() {
        let printed = std::sync::Arc::new(Printed::default());
        printed.add(Stream::Out, None, b"old");
        let waiting = tokio::spawn({
            let printed = printed.clone();
            async move { printed.wait(3, Duration::from_secs(20)).await }
        });
        tokio::task::yield_now().await;
        printed.add(Stream::Err, None, b"new");
        waiting.await.unwrap();
        assert_eq!(text(&printed.read(3).1), "new");
    }
}
