//! Executor processes: start, communication, end.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dayfly_executor::meter::Meter;
use dayfly_fabric::descriptors;
use dayfly_protocol::api::Sandbox;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::{FromExecutor, MAX_PACKET_BYTES, ToExecutor};
use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::{Printer, Stream};
use dayfly_sandbox::filter::{Asking, Refusal};
use dayfly_sandbox::isolation::Shown;
use dayfly_sandbox::{Child, Program, SandboxError, Spawner, Watch};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, AsyncWriteExt, Interest};

use crate::enclosures::Enclosure;
use crate::environments::Built;
use crate::images::Image;
use crate::output::Printed;
use crate::{Output, readable};

/// Limit for an executor's start: a Python on a cold network file system imports for seconds.
pub const READY_DEADLINE: Duration = Duration::from_secs(10);
/// Time for an executor to end by itself before it is killed.
const END_DEADLINE: Duration = Duration::from_millis(500);
/// Longest wait for output in the pipes of an executor that has ended.
const OUTPUT_DEADLINE: Duration = Duration::from_millis(100);
/// Most output pipes of an executor's workers: more than the workers of a lease need.
const MAX_READERS: usize = 4096;
/// Bytes of an executor's output that explain its death.
const LAST_WORDS_BYTES: usize = 4 << 10;

/// Properties of an executor, which determine the leases that it can serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Language runtime.
    pub language: Language,
    /// What it may see; `None` for an executor that is not isolated.
    pub opening: Option<Opening>,
}

impl Kind {
    /// Isolation of its workers.
    pub fn sandbox(&self) -> Sandbox {
        match &self.opening {
            None => Sandbox::Process,
            Some(opening) if opening.image.is_some() => Sandbox::Container,
            Some(_) => Sandbox::Isolated,
        }
    }

    /// Whether its workers have the host's network.
    pub fn has_network(&self) -> bool {
        self.opening.as_ref().is_none_or(|opening| opening.network)
    }
}

/// What an isolated executor may see of its host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opening {
    /// Files and directories.
    pub shown: Vec<Shown>,
    /// Whether it shares the network.
    pub network: bool,
    /// The image in place of the host's programs and libraries, for a container.
    pub image: Option<Arc<Image>>,
}

/// Language runtime of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Language {
    Native,
    Python {
        executable: PathBuf,
        /// Directories on its module path.
        path: Vec<String>,
        /// The built environment of the interpreter, if it belongs to one.
        environment: Option<Arc<Built>>,
    },
}

/// The node's end of an executor's control socket, for sending.
#[derive(Debug, Clone)]
pub struct Control(Arc<AsyncFd<OwnedFd>>);

impl Control {
    /// Sends a message with its descriptors. Never blocks; a full socket is an error, since the executor does not read.
    pub fn send(&self, message: &ToExecutor, files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        descriptors::send(self.0.get_ref(), &bytes, files).map(drop)
    }
}

/// One executor process.
#[derive(Debug)]
pub struct Executor {
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    control: Control,
    packet: Vec<u8>,
    printed: Arc<Printed>,
    readers: tokio::task::JoinSet<()>,
    /// For each worker, the last call of its predecessor, once that is gone; see [`Caller`].
    last_calls: HashMap<WorkerIndex, Arc<OnceLock<u32>>>,
    reaped: bool,
    watch: Option<AsyncFd<Watch>>,
    /// Its enclosure, if it is isolated.
    pub enclosure: Option<Enclosure>,
    /// The executor's description of its runtime.
    pub runtime: String,
}

/// An event of an executor.
#[derive(Debug)]
pub enum Heard {
    /// A message of the executor, with its descriptor.
    Said(FromExecutor, Option<OwnedFd>),
    /// The kernel refused a system call of the executor or of a worker.
    Refused(Refusal),
}

impl Executor {
    /// Starts an executor and waits until it is ready.
    pub async fn start(
        spawner: Arc<Spawner>,
        program: Program,
        enclosure: Option<Enclosure>,
        output: Output,
    ) -> Result<Self, Failure> {
        let failed = |text: String| Failure::new(Code::ExecutorFailed, text);
        let name = program.program.display().to_string();
        let child = start_child(spawner, program).await?;
        let system = |error: std::io::Error| failed(format!("the node cannot watch `{name}`: {error}"));
        let printed = Arc::new(Printed::default());
        let mut readers = tokio::task::JoinSet::new();
        let pipe = readable::watch(child.output).map_err(system)?;
        readers.spawn(drain(pipe, printed.clone(), Stream::Out, None, output));
        let pipe = readable::watch(child.errors).map_err(system)?;
        readers.spawn(drain(pipe, printed.clone(), Stream::Err, None, output));
        let mut executor = Self {
            pid: child.pid,
            pidfd: readable::watch(child.pidfd).map_err(system)?,
            control: Control(Arc::new(readable::watch(child.control).map_err(system)?)),
            packet: vec![0; MAX_PACKET_BYTES],
            readers,
            last_calls: HashMap::new(),
            printed,
            reaped: false,
            watch: child.watch.map(readable::watch).transpose().map_err(system)?,
            enclosure,
            runtime: String::new(),
        };
        for precaution in child.skipped {
            tracing::warn!(
                pid = executor.pid,
                missing = precaution.describe(),
                "this machine lacks a precaution"
            );
        }
        match tokio::time::timeout(READY_DEADLINE, executor.said()).await {
            Ok(Some(FromExecutor::Ready { runtime })) => {
                executor.runtime = runtime;
                Ok(executor)
            }
            Ok(Some(FromExecutor::Failed { message })) => {
                executor.end().await;
                Err(failed(format!("the executor `{name}` failed: {message}")))
            }
            Ok(_) => {
                let words = executor.last_words().await;
                executor.end().await;
                Err(failed(format!(
                    "the executor `{name}` ended before it was ready: {words}"
                )))
            }
            Err(_) => {
                executor.end().await;
                Err(failed(format!(
                    "the executor `{name}` was not ready after {} s; is its file system slow? Try again",
                    READY_DEADLINE.as_secs()
                )))
            }
        }
    }

    /// Process id of the parent process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Output of the executor and its workers.
    pub fn printed(&self) -> &Arc<Printed> {
        &self.printed
    }

    /// Gives a worker output pipes of its own, so that output is attributed to the call in its meter: a call's reply
    /// waits until all its output is read. Call it for each worker that starts, before the worker has a channel.
    pub fn tell_apart(&mut self, worker: WorkerIndex, meter: &Meter, output: Output) -> std::io::Result<()> {
        // Readers of dead workers have ended, or will soon; an honest executor has few more.
        while self.readers.try_join_next().is_some() {}
        if self.readers.len() > MAX_READERS {
            return Err(std::io::Error::other("too many of its workers print at once"));
        }
        let last = Arc::new(OnceLock::new());
        if let Some(before) = self.last_calls.insert(worker, Arc::clone(&last)) {
            // The meter shows the predecessor's last call until the next channel. It is set only here.
            let _ = before.set(meter.read().started);
        }
        let mut ends = Vec::new();
        for stream in [Stream::Out, Stream::Err] {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            // The flag affects only our end; the other end stays blocking.
            rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK)?;
            let caller = Caller {
                worker,
                meter: meter.clone(),
                last: Arc::clone(&last),
            };
            let reading = drain(
                readable::watch(read)?,
                self.printed.clone(),
                stream,
                Some(caller),
                output,
            );
            self.readers.spawn(reading);
            ends.push(write);
        }
        let files: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
        self.control.send(&ToExecutor::RedirectOutput { worker }, &files)
    }

    /// A handle for sending messages.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// The next event; `None` when the executor is gone, or sends a malformed message. A refused system call waits for
    /// this, so call it in a loop.
    pub async fn hear(&mut self) -> Option<Heard> {
        loop {
            let Some(watch) = &mut self.watch else {
                return said(&self.control, &mut self.packet, self.pid, self.enclosure.is_some())
                    .await
                    .map(|(message, file)| Heard::Said(message, file));
            };
            tokio::select! {
                said = said(&self.control, &mut self.packet, self.pid, self.enclosure.is_some()) => return said.map(|(message, file)| Heard::Said(message, file)),
                ready = watch.readable_mut() => {
                    let refusal = match ready {
                        // One event may announce several refused calls: receive all before waiting for more.
                        Ok(mut ready) => match ready.get_inner().asking() {
                            Asking::Now => ready.get_inner_mut().answer(),
                            Asking::NotNow => {
                                ready.clear_ready();
                                continue;
                            }
                            // Drop the watch: its descriptor would stay readable.
                            Asking::Never => None,
                        },
                        Err(_) => None,
                    };
                    match refusal {
                        Some(refusal) => return Some(Heard::Refused(refusal)),
                        None => self.watch = None,
                    }
                }
            }
        }
    }

    /// The next message; refused system calls are ignored.
    async fn said(&mut self) -> Option<FromExecutor> {
        loop {
            if let Heard::Said(message, _) = self.hear().await? {
                return Some(message);
            }
        }
    }

    /// Whether the process has not ended.
    pub fn is_alive(&self) -> bool {
        let mut waiting = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(0))
    }

    /// The end of its output. Waits a moment for bytes in the pipes.
    pub async fn last_words(&mut self) -> String {
        self.read_to_the_end(END_DEADLINE).await;
        match self.printed.last(LAST_WORDS_BYTES) {
            text if text.is_empty() => "it said nothing".into(),
            text => text,
        }
    }

    async fn read_to_the_end(&mut self, limit: Duration) {
        let all = async { while self.readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }

    /// Kills it at once. Call [`Executor::end`] afterwards.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Ends the executor: closes its control socket, kills it if it does not end, and reaps it.
    pub async fn end(&mut self) {
        let _ = rustix::net::shutdown(self.control.0.get_ref(), rustix::net::Shutdown::Both);
        if tokio::time::timeout(END_DEADLINE, self.pidfd.readable()).await.is_err() {
            self.kill();
            let _ = tokio::time::timeout(END_DEADLINE, self.pidfd.readable()).await;
        }
        self.reap();
        self.watch = None;
        if let Some(enclosure) = self.enclosure.take() {
            // Ends all processes left inside, which takes the kernel some time.
            let _ = tokio::task::spawn_blocking(move || drop(enclosure)).await;
        }
        // Normally no writer is left. Do not wait for one that escaped.
        self.read_to_the_end(OUTPUT_DEADLINE).await;
    }

    fn reap(&mut self) {
        if !self.reaped {
            self.reaped = true;
            // End everything that it started in its own group.
            if let Some(group) = Pid::from_raw(self.pid) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            forget_child(self.pid, self.pidfd.as_fd());
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

/// The executor's next message; `None` when it is gone, or sends a malformed message.
async fn said(
    control: &Control,
    packet: &mut [u8],
    pid: i32,
    isolated: bool,
) -> Option<(FromExecutor, Option<OwnedFd>)> {
    let (length, files) = control
        .0
        .async_io(Interest::READABLE, |socket| descriptors::receive(socket, packet))
        .await
        .ok()?;
    if length == 0 {
        return None;
    }
    let nonsense = |error: &dyn std::fmt::Display| tracing::warn!(pid, %error, "an executor sent nonsense");
    let mut message = serde_json::from_slice(&packet[..length])
        .inspect_err(|error| nonsense(error))
        .ok()?;
    if isolated && let FromExecutor::WorkerStarted { pid, .. } = &mut message {
        // An isolated executor has a process list of its own; use the id that the kernel reports.
        let Some(real) = files.first().and_then(process_of) else {
            nonsense(&"a worker without a process of its own");
            return None;
        };
        *pid = real;
    }
    Some((message, files.into_iter().next()))
}

/// Process id of a pidfd, in this process's namespace.
fn process_of(pidfd: &OwnedFd) -> Option<u32> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

/// Starts a process that does not count as an orphan until [`forget_child`].
pub async fn start_child(spawner: Arc<Spawner>, program: Program) -> Result<Child, Failure> {
    let started = tokio::task::spawn_blocking(move || {
        // Hold the lock, so that the new child is not taken for an orphan.
        let mut known = known();
        let child = spawner.spawn(program)?;
        known.insert(child.pid);
        Ok::<_, SandboxError>(child)
    });
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::ExecutorFailed, error.to_string());
    started
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| match error {
            // Too many processes, or too little memory, is temporary.
            SandboxError::Namespaces(ref why) if is_passing(why) => failed(&error),
            SandboxError::Namespaces(_) | SandboxError::Filter(_) => {
                Failure::new(Code::IsolationUnavailable, error.to_string())
            }
            // Some systems permit namespaces that permit nothing inside.
            SandboxError::Isolation { error: ref why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied => {
                let text =
                    format!("{error}; does this machine restrict user namespaces, or system calls by a container?");
                Failure::new(Code::IsolationUnavailable, text)
            }
            error => failed(&error),
        })
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::OutOfMemory
    )
}

/// Reaps a process that has ended, or is about to.
pub fn forget_child(pid: i32, pidfd: BorrowedFd<'_>) {
    let mut known = known();
    let _ = rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED);
    known.remove(&pid);
}

/// Attributes a worker's output to calls.
pub struct Caller {
    worker: WorkerIndex,
    meter: Meter,
    /// The worker's last call, once it is gone: its successor uses the meter then.
    last: Arc<OnceLock<u32>>,
}

impl Caller {
    fn printer(&self) -> Printer {
        // Read the meter first: a value from before the worker's end is known belongs to this worker.
        let sequence = self.meter.read().started;
        Printer {
            worker: self.worker,
            sequence: self.last.get().copied().unwrap_or(sequence),
        }
    }
}

/// Reads the output of an executor and its workers, keeps the end of it and passes it on. Output of a single worker is
/// attributed to calls.
pub async fn drain(
    pipe: AsyncFd<OwnedFd>,
    printed: Arc<Printed>,
    stream: Stream,
    caller: Option<Caller>,
    output: Output,
) {
    let mut own: Box<dyn AsyncWrite + Send + Unpin> = match stream {
        Stream::Out => Box::new(tokio::io::stdout()),
        Stream::Err => Box::new(tokio::io::stderr()),
    };
    let mut chunk = [0u8; 4096];
    let mut budget = Budget::default();
    loop {
        let mut by = None;
        let read = pipe
            .async_io(Interest::READABLE, |pipe| {
                // Read the call before the bytes: it has not ended before they are read.
                by = caller.as_ref().map(Caller::printer);
                rustix::io::read(pipe, &mut chunk).map_err(std::io::Error::from)
            })
            .await;
        let Ok(length @ 1..) = read else { return };
        let chunk = &chunk[..length];
        match output {
            Output::Log => {
                let (allowed, dropped) = budget.spend(Instant::now(), chunk.len());
                if dropped > 0 {
                    tracing::warn!(target: "dayfly::output", dropped, "bytes of output were too many for the log");
                }
                if allowed > 0 {
                    let text = String::from_utf8_lossy(&chunk[..allowed]);
                    tracing::info!(target: "dayfly::output", "{}", text.trim_end());
                }
            }
            Output::Own => {
                // An error means that our output is closed.
                let _ = own.write_all(chunk).await;
                let _ = own.flush().await;
            }
        }
        printed.add(stream, by, chunk);
    }
}

/// Most bytes of a stream that are logged in a second, so that endless output does not fill the node's disk.
const LOGGED_BYTES_PER_S: usize = 64 << 10;

/// Remaining bytes of a stream for the log.
#[derive(Debug, Default)]
struct Budget {
    since: Option<Instant>,
    spent: usize,
    dropped: usize,
}

impl Budget {
    /// How many of these bytes to log, and how many were left out in the second before.
    fn spend(&mut self, now: Instant, wanted: usize) -> (usize, usize) {
        let mut told = 0;
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
        {
            told = std::mem::take(&mut self.dropped);
            self.since = Some(now);
            self.spent = 0;
        }
        let allowed = wanted.min(LOGGED_BYTES_PER_S - self.spent);
        self.spent += allowed;
        self.dropped += wanted - allowed;
        (allowed, told)
    }
}

/// Process ids of living executors.
static KNOWN: Mutex<std::collections::BTreeSet<i32>> = Mutex::new(std::collections::BTreeSet::new());

fn known() -> std::sync::MutexGuard<'static, std::collections::BTreeSet<i32>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of external programs that run below this process, whose children are unknown.
static GUESTS: AtomicUsize = AtomicUsize::new(0);

/// While one exists, unknown children are not ended.
#[derive(Debug)]
pub struct Guests(());

impl Guests {
    /// Call it before the program is started.
    pub fn arrive() -> Self {
        GUESTS.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        GUESTS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Most passes over the list of children. Each ends a process, or is one of the last two.
const MAX_PASSES: usize = 1000;

/// Kills and reaps every child of this process that is not a living executor: what an executor left that died before it
/// could end it.
///
/// Processes of such an executor's workers become our children only after the worker's end. So this repeats until it
/// has found none twice: the kernel's list may also miss a child while another one ends.
///
/// Does nothing while there are [`Guests`]; their owner calls it when they have ended.
pub fn end_unknown_children() {
    let mut quiet = 0;
    for _ in 0..MAX_PASSES {
        if GUESTS.load(Ordering::Acquire) > 0 {
            return;
        }
        quiet = if end_those_listed() { 0 } else { quiet + 1 };
        if quiet == 2 {
            return;
        }
        std::thread::yield_now();
    }
}

/// One pass over the kernel's list. Returns whether any process was ended.
fn end_those_listed() -> bool {
    let mut ended = false;
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return ended;
    };
    let children: Vec<i32> = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    for child in children {
        // Check one by one: an executor may have been started since the list was read.
        let known = known();
        if !known.contains(&child)
            && let Some(pid) = Pid::from_raw(child)
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            ended = true;
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use dayfly_executor::meter::meters_length;
    use dayfly_fabric::memory::{Mapping, sealed_memory};

    use super::*;

    #[test]
    fn late_output_of_dead_worker_keeps_its_call() {
        let length = meters_length(1);
        let file = sealed_memory("meters", length as u64).unwrap();
        let meter = Meter::new(Arc::new(Mapping::of(&file, length).unwrap()), 0);
        let caller = |last: &Arc<OnceLock<u32>>| Caller {
            worker: WorkerIndex(0),
            meter: meter.clone(),
            last: Arc::clone(last),
        };
        let (first, second) = (Arc::new(OnceLock::new()), Arc::default());
        let (dead, alive) = (caller(&first), caller(&second));
        meter.begin(meter.account("f"), 7, 0, 0);
        assert_eq!(dead.printer().sequence, 7);
        first.set(meter.read().started).unwrap();
        meter.attach();
        assert_eq!((dead.printer().sequence, alive.printer().sequence), (7, 0));
        meter.begin(meter.account("f"), 1, 0, 0);
        assert_eq!((dead.printer().sequence, alive.printer().sequence), (7, 1));
    }

    #[test]
    fn logged_output_is_limited_per_second() {
        let mut budget = Budget::default();
        let start = Instant::now();
        assert_eq!(budget.spend(start, 4096), (4096, 0));
        assert_eq!(budget.spend(start, LOGGED_BYTES_PER_S), (LOGGED_BYTES_PER_S - 4096, 0));
        assert_eq!(budget.spend(start, 10), (0, 0));
        let later = start + Duration::from_secs(1);
        assert_eq!(budget.spend(later, 10), (10, 4096 + 10));
        assert_eq!(budget.spend(later, 10), (10, 0));
    }
}
