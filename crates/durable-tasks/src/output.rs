//! What tasks print: the last of it, in memory, for whoever asks while they run or soon after, and in the store once they have ended.
//!
//! What a task printed last comes after its end, so that it is written apart from the outcome, a moment later.

use std::collections::{HashMap, VecDeque};
use std::sync::Weak;
use std::time::Duration;

use dayfly_protocol::blob::Blob;
use dayfly_protocol::dispatch::TaskOutput;
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TaskId};
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::{OutputPiece, TaskOutputPage, TaskStatus};
use dayfly_store::StoreError;
use dayfly_store::system::now_ms;
use dayfly_store::tasks::KeptOutput;
use tokio::time::Instant;

use crate::Tasks;
use crate::state::State;

/// What is kept of each task.
const KEPT_BYTES: usize = 64 << 10;
/// What is kept of all tasks of an endpoint, each with what keeping it takes.
const MAX_BYTES: usize = 16 << 20;
const EACH_BYTES: usize = 256;
/// What keeping a piece takes beside its bytes.
const EACH_PIECE_BYTES: usize = 64;
/// What one piece grows to: it is dropped as a whole.
const PIECE_BYTES: usize = 4 << 10;
/// What a task printed last may come so much later than its end.
const LATE: Duration = Duration::from_millis(500);
/// Between two looks whether there is something to write; less than [`LATE`], so that whoever has read all of it can read it again
/// after a restart.
const KEEP: Duration = Duration::from_millis(200);
/// Outputs in one write: 4 MiB at most.
const KEPT_AT_ONCE: usize = 64;
/// Between two looks whether a task has ended.
const LOOK: Duration = Duration::from_millis(100);

/// The last of what a task printed.
#[derive(Debug, Default)]
struct Output {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
    /// The number of the first byte that is kept.
    first: u64,
    /// Whether this comes after what the store may have of the task: it came after its end, and nothing else of it is in memory.
    follows_kept: bool,
}

impl Output {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= PIECE_BYTES => piece.extend(bytes),
            _ => self.pieces.push_back((stream, bytes.to_vec())),
        }
        self.bytes += bytes.len();
        while self.size() > KEPT_BYTES
            && let Some((_, piece)) = self.pieces.pop_front()
        {
            self.bytes -= piece.len();
            self.first += piece.len() as u64;
        }
    }

    /// As it was kept.
    fn of(first: u64, pieces: Vec<OutputPiece>) -> Self {
        let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let pieces = pieces.into_iter().map(|piece| (piece.stream, piece.bytes.to_vec()));
        Self {
            pieces: pieces.collect(),
            bytes,
            first,
            follows_kept: false,
        }
    }

    /// The same, and then what follows it here.
    fn with(self, later: Self) -> Self {
        if later.first > 0 {
            // Some between them is gone.
            return Self {
                first: self.first + self.bytes as u64 + later.first,
                follows_kept: false,
                ..later
            };
        }
        let mut whole = self;
        for (stream, piece) in &later.pieces {
            whole.add(*stream, piece);
        }
        whole
    }

    /// What it takes of the memory.
    fn size(&self) -> usize {
        self.bytes + self.pieces.len() * EACH_PIECE_BYTES
    }

    /// What is kept from byte `from` on, and the number of its first byte.
    fn read(&self, from: u64) -> (u64, Vec<OutputPiece>) {
        let start = from.clamp(self.first, self.first + self.bytes as u64);
        let mut skip = usize::try_from(start - self.first).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        for (stream, piece) in &self.pieces {
            match piece.get(skip..).filter(|wanted| !wanted.is_empty()) {
                Some(wanted) => {
                    pieces.push(OutputPiece {
                        stream: *stream,
                        bytes: Blob::from(wanted.to_vec()),
                    });
                    skip = 0;
                }
                None => skip -= piece.len(),
            }
        }
        (start, pieces)
    }
}

/// What the tasks of an endpoint printed.
#[derive(Debug, Default)]
pub struct Outputs {
    known: HashMap<TaskId, Output>,
    /// The one that printed first is forgotten first.
    order: VecDeque<TaskId>,
    bytes: usize,
}

impl Outputs {
    fn add(&mut self, task: TaskId, has_ended: bool, stream: Stream, bytes: &[u8]) {
        let output = self.known.entry(task).or_insert_with(|| {
            self.order.push_back(task);
            self.bytes += EACH_BYTES;
            Output {
                follows_kept: has_ended,
                ..Output::default()
            }
        });
        let before = output.size();
        output.add(stream, bytes);
        self.bytes = self.bytes + output.size() - before;
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            let forgotten = self.known.remove(&oldest);
            self.bytes -= EACH_BYTES + forgotten.map_or(0, |output| output.size());
        }
    }
}

impl Outputs {
    /// Whether the task printed anything that is in memory.
    pub fn knows(&self, task: TaskId) -> bool {
        self.known.contains_key(&task)
    }

    /// Whether what is in memory comes after what the store may have.
    fn follows_kept(&self, task: TaskId) -> bool {
        self.known.get(&task).is_some_and(|output| output.follows_kept)
    }

    /// Puts what the store has of a task, if anything, before what follows it in memory.
    fn join(&mut self, task: TaskId, kept: Option<(u64, Vec<OutputPiece>)>) {
        let Some(output) = self.known.get_mut(&task).filter(|output| output.follows_kept) else {
            return;
        };
        let before = output.size();
        let kept = kept.map_or_else(Output::default, |(first, pieces)| Output::of(first, pieces));
        *output = kept.with(std::mem::take(output));
        self.bytes = self.bytes + output.size() - before;
    }
}

impl State {
    /// Executions print. What one of another endpoint's is said to have printed is nobody's.
    pub(super) fn on_printed(&mut self, id: EndpointId, printed: &[TaskOutput]) {
        for one in printed.iter().filter(|one| !one.bytes.is_empty()) {
            let task = one.attempt.task;
            let elsewhere = self.live.get(&task).is_some_and(|live| live.endpoint != id);
            let has_ended = !self.live.contains_key(&task);
            if let Some(endpoint) = self.endpoints.get_mut(&id).filter(|_| !elsewhere) {
                endpoint.outputs.add(task, has_ended, one.stream, &one.bytes);
                if has_ended {
                    self.unkept.insert((id, task));
                }
            }
        }
        self.printed.send_modify(|count| *count += 1);
    }

    /// What is in memory of what a task printed; none if that is nothing.
    fn printed_from(&self, task: TaskId, from: u64) -> Option<(u64, Vec<OutputPiece>)> {
        let mut outputs = self
            .endpoints
            .values()
            .filter_map(|endpoint| endpoint.outputs.known.get(&task));
        outputs.next().map(|output| output.read(from))
    }

    /// Where something of a task is in memory that comes after what the store may have.
    fn following(&self, task: TaskId) -> Option<EndpointId> {
        let mut endpoints = self.endpoints.iter();
        endpoints.find_map(|(id, endpoint)| endpoint.outputs.follows_kept(task).then_some(*id))
    }

    /// What is not in the store yet, and comes after what that may have.
    fn unkept_following(&self) -> Vec<(EndpointId, TaskId)> {
        let follows = |(endpoint, task): &&(EndpointId, TaskId)| {
            let endpoint = self.endpoints.get(endpoint);
            endpoint.is_some_and(|endpoint| endpoint.outputs.follows_kept(*task))
        };
        self.unkept.iter().filter(follows).copied().collect()
    }

    /// Some of what is not in the store yet and needs nothing from there. What was forgotten meanwhile is no more to be kept.
    fn take_unkept(&mut self) -> Vec<KeptOutput> {
        let endpoints = &self.endpoints;
        let is_there = |(endpoint, task): &(EndpointId, TaskId)| {
            let endpoint = endpoints.get(endpoint);
            endpoint.is_some_and(|endpoint| endpoint.outputs.knows(*task))
        };
        self.unkept.retain(is_there);
        let is_whole = |(endpoint, task): &&(EndpointId, TaskId)| {
            let endpoint = endpoints.get(endpoint);
            !endpoint.is_some_and(|endpoint| endpoint.outputs.follows_kept(*task))
        };
        let some = self.unkept.iter().filter(is_whole).take(KEPT_AT_ONCE);
        let some: Vec<_> = some.copied().collect();
        let kept = some.into_iter().filter_map(|(endpoint, task)| {
            self.unkept.remove(&(endpoint, task));
            let output = self.endpoints.get(&endpoint)?.outputs.known.get(&task)?;
            let (first, pieces) = output.read(0);
            Some(KeptOutput {
                task,
                endpoint,
                first,
                pieces,
            })
        });
        let kept: Vec<_> = kept.collect();
        self.keeping = kept.iter().map(|one| (one.endpoint, one.task)).collect();
        kept
    }

    /// Whether the store has all that is known of what a task printed.
    fn is_kept(&self, task: TaskId) -> bool {
        let mut endpoints = self.endpoints.keys();
        !endpoints.any(|id| self.unkept.contains(&(*id, task)) || self.keeping.contains(&(*id, task)))
    }
}

impl Tasks {
    /// What a task has printed from byte `from` on; waits for something as long as it has not ended.
    pub async fn output(&self, task: &TaskStatus, from: u64, wait: Duration) -> Result<TaskOutputPage, Failure> {
        let until = Instant::now() + wait;
        let mut ended_at_ms = task.ended_at_ms;
        let mut printed = self.state().printed.subscribe();
        loop {
            let following = self.state().following(task.id);
            if let Some(endpoint) = following {
                self.join(endpoint, task.id).await?;
            }
            let (found, is_kept) = {
                let state = self.state();
                if ended_at_ms == 0 && !state.live.contains_key(&task.id) {
                    ended_at_ms = now_ms();
                }
                (state.printed_from(task.id, from), state.is_kept(task.id))
            };
            let found = match found {
                None if ended_at_ms > 0 => self.kept_output(task.id, from).await?,
                found => found,
            };
            let (first, pieces) = found.unwrap_or_else(|| (from, Vec::new()));
            // Nobody hears that it is over before it can be read again after a restart.
            let is_last = ended_at_ms > 0 && now_ms().abs_diff(ended_at_ms) > LATE.as_millis() as u64;
            let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
            if !pieces.is_empty() || (is_last && is_kept) || Instant::now() >= until {
                return Ok(TaskOutputPage {
                    from: first,
                    next: first + bytes as u64,
                    over: is_last && is_kept && pieces.is_empty(),
                    pieces,
                });
            }
            let look = until.min(Instant::now() + LOOK);
            // Its sender lives as long as the state.
            let _ = tokio::time::timeout_at(look, printed.changed()).await;
        }
    }

    /// The same out of the store.
    async fn kept_output(&self, task: TaskId, from: u64) -> Result<Option<(u64, Vec<OutputPiece>)>, Failure> {
        let kept = self.store.printed(task).wait().await?;
        Ok(kept.map(|(first, pieces)| Output::of(first, pieces).read(from)))
    }

    /// Puts what the store has of a task before what it printed since this manager started.
    async fn join(&self, endpoint: EndpointId, task: TaskId) -> Result<(), StoreError> {
        let kept = self.store.printed(task).wait().await?;
        if let Some(endpoint) = self.state().endpoints.get_mut(&endpoint) {
            endpoint.outputs.join(task, kept);
        }
        Ok(())
    }

    /// Writes what tasks printed that have ended, as far as it is not written.
    pub async fn keep_printed(&self) -> Result<(), StoreError> {
        let _turn = self.keeping_printed.lock().await;
        loop {
            let following = self.state().unkept_following();
            for (endpoint, task) in following {
                self.join(endpoint, task).await?;
            }
            let some = self.state().take_unkept();
            if some.is_empty() {
                return Ok(());
            }
            let again: Vec<_> = some.iter().map(|one| (one.endpoint, one.task)).collect();
            let written = self.store.keep_printed(some, self.contents.full()).wait().await;
            let mut state = self.state();
            state.keeping.clear();
            match written {
                // Tenants that have all that they may have it in memory alone.
                Ok(more) => self.contents.count(more),
                Err(error) => {
                    state.unkept.extend(again);
                    return Err(error);
                }
            }
        }
    }
}

/// Writes what tasks printed that have ended, in steps, until the manager ends or another has the tasks.
pub async fn keep(tasks: Weak<Tasks>) {
    loop {
        tokio::time::sleep(KEEP).await;
        let Some(tasks) = tasks.upgrade() else { return };
        match tasks.keep_printed().await {
            Ok(()) => {}
            Err(StoreError::Moved) => return,
            Err(error) => tracing::debug!(%error, "what tasks printed is not written yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[OutputPiece]) -> String {
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_was_printed_is_read_from_anywhere_in_its_order() {
        let mut output = Output::default();
        output.add(Stream::Out, b"one ");
        output.add(Stream::Out, b"two ");
        output.add(Stream::Err, b"three");
        let (first, pieces) = output.read(0);
        assert_eq!((first, text(&pieces), pieces.len()), (0, "one two three".into(), 2));
        assert_eq!(text(&output.read(4).1), "two three");
        assert_eq!(text(&output.read(9).1), "hree");
        assert_eq!(output.read(13), (13, Vec::new()));
        assert_eq!(output.read(99), (13, Vec::new()));
    }

    #[test]
    fn the_last_of_it_is_kept_and_the_place_of_what_is_not() {
        let mut output = Output::default();
        for number in 0..100_000 {
            output.add(Stream::Out, format!("{number:09}\n").as_bytes());
        }
        let (first, pieces) = output.read(0);
        let text = text(&pieces);
        assert!(text.len() <= KEPT_BYTES && text.len() > KEPT_BYTES - 2 * PIECE_BYTES);
        assert!(text.ends_with("000099999\n"));
        assert_eq!(first as usize + text.len(), 1_000_000);
    }

    #[test]
    fn late_output_follows_what_the_store_has() {
        let task = TaskId([1; 16]);
        let kept = |text: &str| {
            let bytes = Blob::from(text.as_bytes().to_vec());
            let stream = Stream::Out;
            Some((7, vec![OutputPiece { stream, bytes }]))
        };
        let joined = |late: &[u8], kept| {
            let mut outputs = Outputs::default();
            outputs.add(task, true, Stream::Out, b"x");
            outputs.add(task, true, Stream::Out, &late[1..]);
            outputs.join(task, kept);
            let output = &outputs.known[&task];
            assert_eq!(outputs.bytes, EACH_BYTES + output.size());
            assert!(output.size() <= KEPT_BYTES);
            // A second time it is not put before it again.
            let read = output.read(0);
            outputs.join(task, Some((0, Vec::new())));
            assert_eq!(outputs.known[&task].read(0), read);
            (read.0, text(&read.1))
        };
        assert_eq!(joined(b"xyz", kept("early ")), (7, "early xyz".into()));
        assert_eq!(joined(b"xyz", None), (0, "xyz".into()));
        // The last of it is kept, and the place of what is not.
        let (first, text) = joined(&[b'x'; KEPT_BYTES - 1000], kept(&"e".repeat(2000)));
        assert_eq!(first as usize + text.len(), 7 + 2000 + KEPT_BYTES - 1000);
        let mut long = Outputs::default();
        for _ in 0..100 {
            long.add(task, true, Stream::Out, &[b'x'; PIECE_BYTES]);
        }
        long.join(task, kept("early "));
        let (first, pieces) = long.known[&task].read(0);
        let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        assert_eq!(first as usize + bytes, 7 + 6 + 100 * PIECE_BYTES);
    }

    #[test]
    fn what_was_printed_first_goes_first_where_many_print() {
        let mut outputs = Outputs::default();
        let task = |number: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            TaskId(id)
        };
        for number in 0..1_000 {
            outputs.add(task(number), false, Stream::Out, &[b'x'; 60_000]);
        }
        assert!(outputs.bytes <= MAX_BYTES);
        assert!(!outputs.known.contains_key(&task(0)) && outputs.known.contains_key(&task(999)));
        assert_eq!(outputs.known.len(), outputs.order.len());
        for number in 0..500_000 {
            outputs.add(task(number), false, Stream::Out, b"x");
        }
        assert!(outputs.bytes <= MAX_BYTES && outputs.known.len() < 100_000);
        // Nor does it take more to print a byte at a time, here and there.
        for number in 0..100_000 {
            let stream = if number % 2 == 0 { Stream::Out } else { Stream::Err };
            outputs.add(task(7), false, stream, b"x");
        }
        assert!(outputs.known[&task(7)].size() <= KEPT_BYTES);
    }
}
