//! Executor processes: start, communication, end.

mod children;
mod kind;
mod output;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dayfly_executor::meter::Meter;
use dayfly_fabric::descriptors;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::{FromExecutor, MAX_PACKET_BYTES, ToExecutor};
use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::Stream;
use dayfly_sandbox::filter::{PendingCall, Refusal};
use dayfly_sandbox::{Program, Spawner, Watch};
use rustix::process::{Pid, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use self::children::{ExternalProgram, end_unknown_children, reap_child, start_child};
pub use self::kind::{ExecutorKind, HostAccess, Language};
pub use self::output::{OutputSource, drain};
use crate::executor_sandbox::ExecutorSandbox;
use crate::output::OutputBuffer;
use crate::spill::SpillDir;
use crate::{Output, descriptor_watch};

/// Limit for an executor's start: a Python on a cold network file system imports for seconds.
pub const READY_DEADLINE: Duration = Duration::from_secs(10);
/// Time for an executor to end by itself before it is killed.
const END_DEADLINE: Duration = Duration::from_millis(500);
/// Longest wait for output in the pipes of an executor that has ended.
const OUTPUT_DEADLINE: Duration = Duration::from_millis(100);
/// Most output pipes of an executor's workers: more than the workers of a lease need.
const MAX_READERS: usize = 4096;
/// Bytes of an executor's output that explain its death.
const OUTPUT_TAIL_BYTES: usize = 4 << 10;

/// The node's end of an executor's control socket, for sending.
#[derive(Debug, Clone)]
pub struct ControlSocket(Arc<AsyncFd<OwnedFd>>);

impl ControlSocket {
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
    control: ControlSocket,
    packet: Vec<u8>,
    output_buffer: Arc<OutputBuffer>,
    readers: tokio::task::JoinSet<()>,
    /// For each worker, the last call of its predecessor, once that is gone; see [`OutputSource`].
    last_calls: HashMap<WorkerIndex, Arc<OnceLock<u32>>>,
    reaped: bool,
    watch: Option<AsyncFd<Watch>>,
    /// Its sandbox, if it is isolated.
    pub sandbox: Option<ExecutorSandbox>,
    /// Its directory on disk, if the node has one for spills.
    spill: Option<SpillDir>,
    /// The executor's description of its runtime.
    pub runtime: String,
}

/// An event of an executor.
#[derive(Debug)]
pub enum ExecutorEvent {
    /// A message of the executor, with its descriptor.
    Message(FromExecutor, Option<OwnedFd>),
    /// The kernel refused a system call of the executor or of a worker.
    RefusedCall(Refusal),
}

impl Executor {
    /// Starts an executor and waits until it is ready.
    pub async fn start(
        spawner: Arc<Spawner>,
        program: Program,
        sandbox: Option<ExecutorSandbox>,
        spill: Option<SpillDir>,
        output: Output,
    ) -> Result<Self, Failure> {
        let failed = |text: String| Failure::new(Code::ExecutorFailed, text);
        let name = program.program.display().to_string();
        let child = start_child(spawner, program).await?;
        let system = |error: std::io::Error| failed(format!("the node cannot watch `{name}`: {error}"));
        let output_buffer = Arc::new(OutputBuffer::default());
        let mut readers = tokio::task::JoinSet::new();
        let pipe = descriptor_watch::watch(child.output).map_err(system)?;
        readers.spawn(drain(pipe, output_buffer.clone(), Stream::Out, None, output));
        let pipe = descriptor_watch::watch(child.errors).map_err(system)?;
        readers.spawn(drain(pipe, output_buffer.clone(), Stream::Err, None, output));
        let mut executor = Self {
            pid: child.pid,
            pidfd: descriptor_watch::watch(child.pidfd).map_err(system)?,
            control: ControlSocket(Arc::new(descriptor_watch::watch(child.control).map_err(system)?)),
            packet: vec![0; MAX_PACKET_BYTES],
            readers,
            last_calls: HashMap::new(),
            output_buffer,
            reaped: false,
            watch: child.watch.map(descriptor_watch::watch).transpose().map_err(system)?,
            sandbox,
            spill,
            runtime: String::new(),
        };
        for precaution in child.skipped {
            tracing::warn!(
                pid = executor.pid,
                missing = precaution.describe(),
                "this machine lacks a precaution"
            );
        }
        match tokio::time::timeout(READY_DEADLINE, executor.next_message()).await {
            Ok(Some(FromExecutor::Ready { runtime })) => {
                executor.runtime = runtime;
                Ok(executor)
            }
            Ok(Some(FromExecutor::Failed { message })) => {
                executor.end().await;
                Err(failed(format!("the executor `{name}` failed: {message}")))
            }
            Ok(_) => {
                let tail = executor.output_tail().await;
                executor.end().await;
                Err(failed(format!(
                    "the executor `{name}` ended before it was ready: {tail}"
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
    pub fn output(&self) -> &Arc<OutputBuffer> {
        &self.output_buffer
    }

    /// Gives a worker output pipes of its own, so that output is attributed to the call in its meter: a call's reply
    /// waits until all its output is read. Call it for each worker that starts, before the worker has a channel.
    pub fn attribute_output(&mut self, worker: WorkerIndex, meter: &Meter, output: Output) -> std::io::Result<()> {
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
            let source = OutputSource::new(worker, meter.clone(), Arc::clone(&last));
            let reading = drain(
                descriptor_watch::watch(read)?,
                self.output_buffer.clone(),
                stream,
                Some(source),
                output,
            );
            self.readers.spawn(reading);
            ends.push(write);
        }
        let files: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
        self.control.send(&ToExecutor::RedirectOutput { worker }, &files)
    }

    /// A handle for sending messages.
    pub fn control(&self) -> ControlSocket {
        self.control.clone()
    }

    /// The next event; `None` when the executor is gone, or sends a malformed message. A refused system call waits for
    /// this, so call it in a loop.
    pub async fn next_event(&mut self) -> Option<ExecutorEvent> {
        loop {
            let Some(watch) = &mut self.watch else {
                return receive(&self.control, &mut self.packet, self.pid, self.sandbox.is_some())
                    .await
                    .map(|(message, file)| ExecutorEvent::Message(message, file));
            };
            tokio::select! {
                message = receive(&self.control, &mut self.packet, self.pid, self.sandbox.is_some()) => return message.map(|(message, file)| ExecutorEvent::Message(message, file)),
                ready = watch.readable_mut() => {
                    let refusal = match ready {
                        // One event may announce several refused calls: receive all before waiting for more.
                        Ok(mut ready) => match ready.get_inner().pending() {
                            PendingCall::Waits => ready.get_inner_mut().refuse_next(),
                            PendingCall::None => {
                                ready.clear_ready();
                                continue;
                            }
                            // Drop the watch: its descriptor would stay readable.
                            PendingCall::Closed => None,
                        },
                        Err(_) => None,
                    };
                    match refusal {
                        Some(refusal) => return Some(ExecutorEvent::RefusedCall(refusal)),
                        None => self.watch = None,
                    }
                }
            }
        }
    }

    /// The next message; refused system calls are ignored.
    async fn next_message(&mut self) -> Option<FromExecutor> {
        loop {
            if let ExecutorEvent::Message(message, _) = self.next_event().await? {
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
    pub async fn output_tail(&mut self) -> String {
        self.drain_readers(END_DEADLINE).await;
        match self.output_buffer.last(OUTPUT_TAIL_BYTES) {
            text if text.is_empty() => "it printed nothing".into(),
            text => text,
        }
    }

    async fn drain_readers(&mut self, limit: Duration) {
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
        let (sandbox, spill) = (self.sandbox.take(), self.spill.take());
        if sandbox.is_some() || spill.is_some() {
            // Ends all processes left inside, and removes what they spilled: the kernel takes some time for both.
            let _ = tokio::task::spawn_blocking(move || drop((sandbox, spill))).await;
        }
        // Normally no writer is left. Do not wait for one that escaped.
        self.drain_readers(OUTPUT_DEADLINE).await;
    }

    fn reap(&mut self) {
        if !self.reaped {
            self.reaped = true;
            // End everything that it started in its own group.
            if let Some(group) = Pid::from_raw(self.pid) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            reap_child(self.pid, self.pidfd.as_fd());
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
async fn receive(
    control: &ControlSocket,
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
    let invalid = |error: &dyn std::fmt::Display| tracing::warn!(pid, %error, "an executor sent an invalid message");
    let mut message = serde_json::from_slice(&packet[..length])
        .inspect_err(|error| invalid(error))
        .ok()?;
    if isolated && let FromExecutor::WorkerStarted { pid, .. } = &mut message {
        // An isolated executor has a process list of its own; use the id that the kernel reports.
        let Some(real) = files.first().and_then(process_of) else {
            invalid(&"a worker without a process of its own");
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
