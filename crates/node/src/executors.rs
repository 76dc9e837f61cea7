//! Executors: started, spoken to, ended.

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

/// An executor that is not ready by then has failed: a Python on a cold network file system imports for seconds.
pub const READY_DEADLINE: Duration = Duration::from_secs(10);
/// An executor that was told to end gets this long before it is killed.
const END_DEADLINE: Duration = Duration::from_millis(500);
/// Output that is still in a pipe when its executor has ended is waited for this long.
const OUTPUT_DEADLINE: Duration = Duration::from_millis(100);
/// Ways on which an executor's workers print: some more than the most workers of a lease have.
const MOST_READERS: usize = 4096;
/// How much of an executor's output explains its death.
const LAST_WORDS_BYTES: usize = 4 << 10;

/// What an executor is, and so for which leases it will do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    /// What it runs.
    pub language: Language,
    /// What it may see; none for an executor that is not isolated.
    pub opening: Option<Opening>,
}

impl Kind {
    /// How isolated its workers are.
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
    /// What it sees in place of the host's programs and libraries, if it is a container.
    pub image: Option<Arc<Image>>,
}

/// What an executor runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Language {
    /// Shared libraries.
    Native,
    /// Python callables.
    Python {
        /// The interpreter.
        executable: PathBuf,
        /// Directories on its module path.
        path: Vec<String>,
        /// What it belongs to, if that was built for leases.
        environment: Option<Arc<Built>>,
    },
}

/// The node's end of an executor's control socket, for whoever has a message to send.
#[derive(Debug, Clone)]
pub struct Control(Arc<AsyncFd<OwnedFd>>);

impl Control {
    /// Sends a message with its descriptors. Never blocks: an executor that does not read is as good as dead.
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
    /// The last call of each worker's that is gone, once it is; see [`Caller`].
    last_calls: HashMap<WorkerIndex, Arc<OnceLock<u32>>>,
    reaped: bool,
    watch: Option<AsyncFd<Watch>>,
    /// What stands around it, if it is isolated.
    pub enclosure: Option<Enclosure>,
    /// What it said that it runs.
    pub runtime: String,
}

/// What a node hears of an executor.
#[derive(Debug)]
pub enum Heard {
    /// The executor's own words, and what came with them.
    Said(FromExecutor, Option<OwnedFd>),
    /// The kernel's: it or a worker of its was refused a system call.
    Refused(Refusal),
}

impl Executor {
    /// Starts one and waits until it is ready.
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

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// What it and its workers print.
    pub fn printed(&self) -> &Arc<Printed> {
        &self.printed
    }

    /// Has what a worker prints come on a way of its own, so that it is known which call printed it: the one that its meter
    /// shows, since a call's reply waits until all is read. To be called for each worker that starts, before it has a channel.
    pub fn tell_apart(&mut self, worker: WorkerIndex, meter: &Meter, output: Output) -> std::io::Result<()> {
        // Those of workers that are gone have ended, or soon will; an honest executor has not many more.
        while self.readers.try_join_next().is_some() {}
        if self.readers.len() > MOST_READERS {
            return Err(std::io::Error::other("too many of its workers print at once"));
        }
        let last = Arc::new(OnceLock::new());
        if let Some(before) = self.last_calls.insert(worker, Arc::clone(&last)) {
            // The meter shows it until the next channel comes. Nobody else sets it.
            let _ = before.set(meter.read().started);
        }
        let mut ends = Vec::new();
        for stream in [Stream::Out, Stream::Err] {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            // Ours alone: the other end is written to as any file.
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
        self.control.send(&ToExecutor::Prints { worker }, &files)
    }

    /// What to send messages with.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What is heard of it next; none once it is gone, or talks nonsense. Whoever makes a refused call waits until it is heard
    /// of, so this is to be called again and again.
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
                        // Of several that ask at once only the first is announced: all are answered before more are
                        // waited for.
                        Ok(mut ready) => match ready.get_inner().asking() {
                            Asking::Now => ready.get_inner_mut().answer(),
                            Asking::NotNow => {
                                ready.clear_ready();
                                continue;
                            }
                            // To wait for more would be never to wait again: the descriptor stays readable.
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

    /// Its next words, where nobody cares what it was refused.
    async fn said(&mut self) -> Option<FromExecutor> {
        loop {
            if let Heard::Said(message, _) = self.hear().await? {
                return Some(message);
            }
        }
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let mut waiting = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(0))
    }

    /// What it wrote last. A moment is allowed for words that are still in the pipe.
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

    /// Kills it at once. Still to be ended.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Ends it: it is asked by closing its control socket, and killed when it does not listen. Its record is collected.
    pub async fn end(&mut self) {
        let _ = rustix::net::shutdown(self.control.0.get_ref(), rustix::net::Shutdown::Both);
        if tokio::time::timeout(END_DEADLINE, self.pidfd.readable()).await.is_err() {
            self.kill();
            let _ = tokio::time::timeout(END_DEADLINE, self.pidfd.readable()).await;
        }
        self.reap();
        self.watch = None;
        if let Some(enclosure) = self.enclosure.take() {
            // Whatever is left inside ends, which the kernel takes some time for.
            let _ = tokio::task::spawn_blocking(move || drop(enclosure)).await;
        }
        // Nobody is left to write, unless something escaped, which is not waited for.
        self.read_to_the_end(OUTPUT_DEADLINE).await;
    }

    fn reap(&mut self) {
        if !self.reaped {
            self.reaped = true;
            // Whatever it started in its own group goes with it.
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

/// An executor's next message; none once it is gone, or talks nonsense.
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
        // It counts processes by a list of its own, and is not believed what it says of ours.
        let Some(real) = files.first().and_then(process_of) else {
            nonsense(&"a worker without a process of its own");
            return None;
        };
        *pid = real;
    }
    Some((message, files.into_iter().next()))
}

/// Process id, as this process counts, behind a pidfd.
fn process_of(pidfd: &OwnedFd) -> Option<u32> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

/// Starts a process that nobody takes for an orphan until [`forget_child`].
pub async fn start_child(spawner: Arc<Spawner>, program: Program) -> Result<Child, Failure> {
    let started = tokio::task::spawn_blocking(move || {
        // Under the lock, so that nobody takes the new child for an orphan.
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
            // Too many processes, or too little memory, is over in a moment.
            SandboxError::Namespaces(ref why) if is_passing(why) => failed(&error),
            SandboxError::Namespaces(_) | SandboxError::Filter(_) => {
                Failure::new(Code::IsolationUnavailable, error.to_string())
            }
            // Some systems give namespaces that allow nothing.
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

/// Collects the record of a process that has ended, or is about to.
pub fn forget_child(pid: i32, pidfd: BorrowedFd<'_>) {
    let mut known = known();
    let _ = rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED);
    known.remove(&pid);
}

/// Tells which call of a worker's prints.
pub struct Caller {
    worker: WorkerIndex,
    meter: Meter,
    /// The last call of all, once the worker is gone: the meter is its successor's then.
    last: Arc<OnceLock<u32>>,
}

impl Caller {
    fn printer(&self) -> Printer {
        // In this order: what the meter shows before the worker is known to be gone is this worker's.
        let sequence = self.meter.read().started;
        Printer {
            worker: self.worker,
            sequence: self.last.get().copied().unwrap_or(sequence),
        }
    }
}

/// Reads what an executor and its workers print, keeps the last of it and hands it on. Where it is a worker's alone, it is known
/// by which call.
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
                // Before it is read: the call that printed it goes on until then.
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
                // Whoever closed our output does not want to read it.
                let _ = own.write_all(chunk).await;
                let _ = own.flush().await;
            }
        }
        printed.add(stream, by, chunk);
    }
}

/// How much of a stream the log takes within a second: whoever prints for ever shall not fill the node's disk.
const LOGGED_BYTES_PER_S: usize = 64 << 10;

/// What a stream may still write into the log.
#[derive(Debug, Default)]
struct Budget {
    since: Option<Instant>,
    spent: usize,
    dropped: usize,
}

impl Budget {
    /// How many of these bytes go into the log, and how many did not in the second before.
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

/// Process ids of executors that live.
static KNOWN: Mutex<std::collections::BTreeSet<i32>> = Mutex::new(std::collections::BTreeSet::new());

fn known() -> std::sync::MutexGuard<'static, std::collections::BTreeSet<i32>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many programs of others run below this process, whose children are not known.
static GUESTS: AtomicUsize = AtomicUsize::new(0);

/// While there is one, nobody is ended for being unknown.
#[derive(Debug)]
pub struct Guests(());

impl Guests {
    /// Before the program is started.
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

/// Passes over the list of children; each ends somebody, or is one of the last two.
const MOST_PASSES: usize = 1000;

/// Kills and collects every child of this process that is not a living executor: what an executor left behind that died
/// before it could see to it.
///
/// What a worker of such an executor left behind becomes a child of ours only when the worker itself is gone, so this goes on
/// until it has found nobody twice: the kernel's list may also miss a child while another one ends.
///
/// Does nothing while there are [`Guests`]; whoever brought them calls it when they have gone.
pub fn end_unknown_children() {
    let mut quiet = 0;
    for _ in 0..MOST_PASSES {
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

/// One pass over the kernel's list. Whether anybody was ended.
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
        // Looked at one by one: an executor may have been started since the list was made.
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
    fn the_last_words_of_a_worker_are_its_last_calls_though_the_next_one_has_begun() {
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
    fn whoever_prints_too_much_is_cut_off_for_the_rest_of_the_second_and_the_log_says_so() {
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
