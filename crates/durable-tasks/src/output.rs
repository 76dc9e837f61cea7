//! What tasks print: the last part is in memory while a task runs, and in the store after its end.
//!
//! The last output of a task arrives after its end. So it is written apart from the outcome, a moment later.
//!
//! Adds to `State` the steps that need the outputs of all endpoints and the live tasks.

use std::collections::{HashMap, HashSet, VecDeque};
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
use dayfly_store::tasks::StoredOutput;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Tasks;
use crate::endpoints::Endpoint;
use crate::state::State;

/// Output that is kept of each task.
const MAX_TASK_BYTES: usize = 64 << 10;
/// Output that is kept of all tasks of an endpoint, with the overhead of each task.
const MAX_BYTES: usize = 16 << 20;
const TASK_OVERHEAD: usize = 256;
/// Overhead of a piece.
const PIECE_OVERHEAD: usize = 64;
/// Maximum size of a piece, which is evicted as a whole.
const MAX_PIECE_BYTES: usize = 4 << 10;
/// Longest delay of a task's last output after its end.
const LATE: Duration = Duration::from_millis(500);
/// Interval between writes. Less than [`LATE`], so that a client that has read everything can read it again after a
/// restart.
const WRITE: Duration = Duration::from_millis(200);
/// Maximum number of outputs in one write: 4 MiB at most.
const MAX_BATCH: usize = 64;
/// Interval between checks whether a task has ended.
const CHECK: Duration = Duration::from_millis(100);

/// The last output of a task.
#[derive(Debug, Default)]
struct Output {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
    /// The number of the first byte that is kept.
    first: u64,
    /// Whether this follows output in the store: it arrived after the task's end, when memory had none of the task.
    continues_stored: bool,
}

impl Output {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= MAX_PIECE_BYTES => {
                piece.extend(bytes)
            }
            _ => self.pieces.push_back((stream, bytes.to_vec())),
        }
        self.bytes += bytes.len();
        while self.size() > MAX_TASK_BYTES
            && let Some((_, piece)) = self.pieces.pop_front()
        {
            self.bytes -= piece.len();
            self.first += piece.len() as u64;
        }
    }

    /// The output as the store has it.
    fn of(first: u64, pieces: Vec<OutputPiece>) -> Self {
        let bytes = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let pieces = pieces.into_iter().map(|piece| (piece.stream, piece.bytes.to_vec()));
        Self {
            pieces: pieces.collect(),
            bytes,
            first,
            continues_stored: false,
        }
    }

    /// Appends later output.
    fn followed_by(self, later: Self) -> Self {
        if later.first > 0 {
            // Output between them was evicted.
            return Self {
                first: self.first + self.bytes as u64 + later.first,
                continues_stored: false,
                ..later
            };
        }
        let mut whole = self;
        for (stream, piece) in &later.pieces {
            whole.add(*stream, piece);
        }
        whole
    }

    /// Size in memory.
    fn size(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE_OVERHEAD
    }

    /// Returns the pieces from byte `from` on, and the number of their first byte.
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

/// The output of an endpoint's tasks.
#[derive(Debug, Default)]
pub struct Outputs {
    known: HashMap<TaskId, Output>,
    /// Tasks in the order of their first output, in which they are evicted.
    order: VecDeque<TaskId>,
    bytes: usize,
}

impl Outputs {
    fn add(&mut self, task: TaskId, has_ended: bool, stream: Stream, bytes: &[u8]) {
        let output = self.known.entry(task).or_insert_with(|| {
            self.order.push_back(task);
            self.bytes += TASK_OVERHEAD;
            Output {
                continues_stored: has_ended,
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
            self.bytes -= TASK_OVERHEAD + forgotten.map_or(0, |output| output.size());
        }
    }

    /// Whether memory has output of a task.
    pub fn contains(&self, task: TaskId) -> bool {
        self.known.contains_key(&task)
    }

    /// Whether the output in memory follows output in the store.
    fn continues(&self, task: TaskId) -> bool {
        self.known.get(&task).is_some_and(|output| output.continues_stored)
    }

    /// Puts the stored output of a task, if there is any, before that in memory.
    fn join(&mut self, task: TaskId, stored: Option<(u64, Vec<OutputPiece>)>) {
        let Some(output) = self.known.get_mut(&task).filter(|output| output.continues_stored) else {
            return;
        };
        let before = output.size();
        let stored = stored.map_or_else(Output::default, |(first, pieces)| Output::of(first, pieces));
        *output = stored.followed_by(std::mem::take(output));
        self.bytes = self.bytes + output.size() - before;
    }
}

/// The output of ended tasks that the store does not have.
#[derive(Default)]
pub struct UnwrittenOutput {
    /// Tasks whose output in memory is newer than that in the store.
    unwritten: HashSet<(EndpointId, TaskId)>,
    /// Tasks whose output is being written.
    writing: HashSet<(EndpointId, TaskId)>,
    /// Number of reports of output.
    reports: watch::Sender<u64>,
}

impl UnwrittenOutput {
    /// Notes that the output of an ended task is to be written.
    pub fn add(&mut self, endpoint: EndpointId, task: TaskId) {
        self.unwritten.insert((endpoint, task));
    }

    fn contains(&self, endpoint: EndpointId, task: TaskId) -> bool {
        self.unwritten.contains(&(endpoint, task)) || self.writing.contains(&(endpoint, task))
    }
}

impl State {
    /// A dispatcher reports output. Ignores that of tasks at other endpoints.
    pub fn on_printed(&mut self, id: EndpointId, printed: &[TaskOutput]) {
        for one in printed.iter().filter(|one| !one.bytes.is_empty()) {
            let task = one.attempt.task;
            let live = self.tasks.get(task);
            let is_elsewhere = live.is_some_and(|live| live.endpoint() != id);
            let has_ended = live.is_none();
            if let Some(endpoint) = self.endpoints.get_mut(id).filter(|_| !is_elsewhere) {
                endpoint.outputs_mut().add(task, has_ended, one.stream, &one.bytes);
                if has_ended {
                    self.output.add(id, task);
                }
            }
        }
        self.output.reports.send_modify(|count| *count += 1);
    }

    /// The output of a task in memory from a byte on; `None` if there is none.
    fn output_from(&self, task: TaskId, from: u64) -> Option<(u64, Vec<OutputPiece>)> {
        let mut outputs = self
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.outputs().known.get(&task));
        outputs.next().map(|output| output.read(from))
    }

    /// The endpoint whose output of a task in memory follows output in the store.
    fn endpoint_to_join(&self, task: TaskId) -> Option<EndpointId> {
        let mut endpoints = self.endpoints.iter();
        let found = endpoints.find(|endpoint| endpoint.outputs().continues(task));
        found.map(Endpoint::id)
    }

    fn continues(&self, endpoint: EndpointId, task: TaskId) -> bool {
        let endpoint = self.endpoints.get(endpoint);
        endpoint.is_some_and(|endpoint| endpoint.outputs().continues(task))
    }

    /// The unwritten output that follows output in the store.
    fn outputs_to_join(&self) -> Vec<(EndpointId, TaskId)> {
        let unwritten = self.output.unwritten.iter().copied();
        unwritten
            .filter(|(endpoint, task)| self.continues(*endpoint, *task))
            .collect()
    }

    /// Takes some of the unwritten output that is complete in memory. Drops output that has been evicted.
    fn take_unwritten(&mut self) -> Vec<StoredOutput> {
        let endpoints = &self.endpoints;
        let is_known = |(endpoint, task): &(EndpointId, TaskId)| {
            let endpoint = endpoints.get(*endpoint);
            endpoint.is_some_and(|endpoint| endpoint.outputs().contains(*task))
        };
        self.output.unwritten.retain(is_known);
        let unwritten = self.output.unwritten.iter().copied();
        let some: Vec<_> = unwritten
            .filter(|(endpoint, task)| !self.continues(*endpoint, *task))
            .take(MAX_BATCH)
            .collect();
        let taken = some.into_iter().filter_map(|(endpoint, task)| {
            self.output.unwritten.remove(&(endpoint, task));
            let output = self.endpoints.get(endpoint)?.outputs().known.get(&task)?;
            let (first, pieces) = output.read(0);
            Some(StoredOutput {
                task,
                endpoint,
                first,
                pieces,
            })
        });
        let taken: Vec<_> = taken.collect();
        self.output.writing = taken.iter().map(|one| (one.endpoint, one.task)).collect();
        taken
    }

    /// Whether the store has all known output of a task.
    fn is_written(&self, task: TaskId) -> bool {
        !self
            .endpoints
            .iter()
            .any(|endpoint| self.output.contains(endpoint.id(), task))
    }
}

impl Tasks {
    /// Returns what a task has printed from byte `from` on. While the task runs, waits up to `wait` for something.
    pub async fn output(&self, task: &TaskStatus, from: u64, wait: Duration) -> Result<TaskOutputPage, Failure> {
        let until = Instant::now() + wait;
        let mut ended_at_ms = task.ended_at_ms;
        let mut reports = self.state().output.reports.subscribe();
        loop {
            let to_join = self.state().endpoint_to_join(task.id);
            if let Some(endpoint) = to_join {
                self.join_output(endpoint, task.id).await?;
            }
            let (found, is_written) = {
                let state = self.state();
                if ended_at_ms == 0 && !state.tasks.contains(task.id) {
                    ended_at_ms = now_ms();
                }
                (state.output_from(task.id, from), state.is_written(task.id))
            };
            let found = match found {
                None if ended_at_ms > 0 => self.stored_output(task.id, from).await?,
                found => found,
            };
            let (first, pieces) = found.unwrap_or_else(|| (from, Vec::new()));
            // The end is reported only when all output can be read again after a restart.
            let is_last = ended_at_ms > 0 && now_ms().abs_diff(ended_at_ms) > LATE.as_millis() as u64;
            let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
            if !pieces.is_empty() || (is_last && is_written) || Instant::now() >= until {
                return Ok(TaskOutputPage {
                    from: first,
                    next: first + bytes as u64,
                    over: is_last && is_written && pieces.is_empty(),
                    pieces,
                });
            }
            let check = until.min(Instant::now() + CHECK);
            // The sender lives as long as the state.
            let _ = tokio::time::timeout_at(check, reports.changed()).await;
        }
    }

    /// Reads output from the store.
    async fn stored_output(&self, task: TaskId, from: u64) -> Result<Option<(u64, Vec<OutputPiece>)>, Failure> {
        let stored = self.store.output(task).wait().await?;
        Ok(stored.map(|(first, pieces)| Output::of(first, pieces).read(from)))
    }

    /// Puts the output in the store before that in memory.
    async fn join_output(&self, endpoint: EndpointId, task: TaskId) -> Result<(), StoreError> {
        let stored = self.store.output(task).wait().await?;
        if let Some(endpoint) = self.state().endpoints.get_mut(endpoint) {
            endpoint.outputs_mut().join(task, stored);
        }
        Ok(())
    }

    /// Writes all output of ended tasks that the store does not have, and what they lent and borrowed.
    pub async fn write_output(&self) -> Result<(), StoreError> {
        let _writing = self.writing_output.lock().await;
        self.write_loans().await?;
        loop {
            let to_join = self.state().outputs_to_join();
            for (endpoint, task) in to_join {
                self.join_output(endpoint, task).await?;
            }
            let some = self.state().take_unwritten();
            if some.is_empty() {
                return Ok(());
            }
            let again: Vec<_> = some.iter().map(|one| (one.endpoint, one.task)).collect();
            let written = self.store.keep_output(some, self.contents.full()).wait().await;
            let mut state = self.state();
            state.output.writing.clear();
            match written {
                // The output of tenants whose quota is full stays in memory only.
                Ok(more) => self.contents.count(more),
                Err(error) => {
                    state.output.unwritten.extend(again);
                    return Err(error);
                }
            }
        }
    }
}

/// Writes the output of ended tasks, until the manager stops or another manager has the tasks.
pub async fn run(tasks: Weak<Tasks>) {
    loop {
        tokio::time::sleep(WRITE).await;
        let Some(tasks) = tasks.upgrade() else { return };
        match tasks.write_output().await {
            Ok(()) => {}
            Err(StoreError::Moved) => return,
            Err(error) => tracing::debug!(%error, "the output of tasks is not written yet"),
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
    fn output_is_read_in_order_from_any_byte() {
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
    fn last_output_is_kept_with_its_position() {
        let mut output = Output::default();
        for number in 0..100_000 {
            output.add(Stream::Out, format!("{number:09}\n").as_bytes());
        }
        let (first, pieces) = output.read(0);
        let text = text(&pieces);
        assert!(text.len() <= MAX_TASK_BYTES && text.len() > MAX_TASK_BYTES - 2 * MAX_PIECE_BYTES);
        assert!(text.ends_with("000099999\n"));
        assert_eq!(first as usize + text.len(), 1_000_000);
    }

    #[test]
    fn late_output_follows_stored_output() {
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
            assert_eq!(outputs.bytes, TASK_OVERHEAD + output.size());
            assert!(output.size() <= MAX_TASK_BYTES);
            // A second join changes nothing.
            let read = output.read(0);
            outputs.join(task, Some((0, Vec::new())));
            assert_eq!(outputs.known[&task].read(0), read);
            (read.0, text(&read.1))
        };
        assert_eq!(joined(b"xyz", kept("early ")), (7, "early xyz".into()));
        assert_eq!(joined(b"xyz", None), (0, "xyz".into()));
        // The last part is kept, with its position.
        let (first, text) = joined(&[b'x'; MAX_TASK_BYTES - 1000], kept(&"e".repeat(2000)));
        assert_eq!(first as usize + text.len(), 7 + 2000 + MAX_TASK_BYTES - 1000);
        let mut long = Outputs::default();
        for _ in 0..100 {
            long.add(task, true, Stream::Out, &[b'x'; MAX_PIECE_BYTES]);
        }
        long.join(task, kept("early "));
        let (first, pieces) = long.known[&task].read(0);
        let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        assert_eq!(first as usize + bytes, 7 + 6 + 100 * MAX_PIECE_BYTES);
    }

    #[test]
    fn earliest_output_is_evicted_beyond_the_bound() {
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
        // Single bytes in alternating streams take no more memory.
        for number in 0..100_000 {
            let stream = if number % 2 == 0 { Stream::Out } else { Stream::Err };
            outputs.add(task(7), false, stream, b"x");
        }
        assert!(outputs.known[&task(7)].size() <= MAX_TASK_BYTES);
    }
}
