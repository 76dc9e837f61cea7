//! The warm, single-threaded parent of a lease's workers.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use mayfly_fabric::descriptors;
use mayfly_fabric::memory::Mapping;
use mayfly_protocol::executor::{CONTROL_FD, FromExecutor, MAX_PACKET_BYTES, METER_BYTES, ToExecutor};
use mayfly_protocol::ids::{Incarnation, WorkerIndex};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::Runtime;
use crate::meter::Meter;
use crate::worker::{Worker, borrow, pin, settle};

/// Why an executor ended.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The control socket failed.
    #[error("the control socket to the node failed: {0}. An executor is started by its node, not by hand")]
    Control(#[from] std::io::Error),
    /// The node said something that makes no sense.
    #[error("the node sent a message that makes no sense: {0}")]
    Protocol(String),
}

struct Slot {
    pid: Pid,
    pidfd: OwnedFd,
    socket: OwnedFd,
    incarnation: u32,
}

struct Assignment {
    cores: Vec<u16>,
    shared_cores: Vec<u16>,
    hot_for_ms: u32,
    code_dir: PathBuf,
    max_output_bytes: u64,
    meters: Arc<Mapping>,
}

struct Parent<'a, R: Runtime> {
    runtime: &'a mut R,
    assignment: Option<Assignment>,
    workers: Vec<Slot>,
}

/// Runs an executor over the control socket at descriptor 3 until the node closes it.
pub fn run<R: Runtime>(runtime: &mut R) -> Result<(), ExecutorError> {
    let control = borrow(CONTROL_FD);
    // Children of the worker's own that outlive it come to us, and go with it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    rustix::io::fcntl_setfd(control, rustix::io::FdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    tell(&FromExecutor::Ready {
        runtime: runtime.describe(),
    })?;
    let mut parent = Parent {
        runtime,
        assignment: None,
        workers: Vec::new(),
    };
    let result = parent.serve();
    parent.end();
    result
}

fn tell(message: &FromExecutor) -> Result<(), ExecutorError> {
    let bytes = serde_json::to_vec(message).map_err(|error| ExecutorError::Protocol(error.to_string()))?;
    descriptors::send(borrow(CONTROL_FD), &bytes, &[])?;
    Ok(())
}

enum Ready {
    Control,
    Died(usize),
    Spoke(usize),
}

impl<R: Runtime> Parent<'_, R> {
    fn serve(&mut self) -> Result<(), ExecutorError> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        loop {
            for ready in self.wait()? {
                match ready {
                    Ready::Control => {
                        let (length, files) = descriptors::receive(borrow(CONTROL_FD), &mut packet)?;
                        if length == 0 {
                            return Ok(());
                        }
                        let message = serde_json::from_slice(&packet[..length])
                            .map_err(|error| ExecutorError::Protocol(error.to_string()))?;
                        self.on_message(message, &packet[..length], files)?;
                    }
                    Ready::Spoke(index) => {
                        // The worker's message goes to the node as it is; a worker that closed its socket is dying.
                        if let Ok((length, _)) = descriptors::receive(&self.workers[index].socket, &mut packet)
                            && length > 0
                        {
                            descriptors::send(borrow(CONTROL_FD), &packet[..length], &[])?;
                        }
                    }
                    Ready::Died(index) => self.on_death(index)?,
                }
            }
        }
    }

    fn wait(&self) -> Result<Vec<Ready>, ExecutorError> {
        let control = borrow(CONTROL_FD);
        let mut waiting = vec![PollFd::new(&control, PollFlags::IN)];
        for worker in &self.workers {
            waiting.push(PollFd::new(&worker.pidfd, PollFlags::IN));
            waiting.push(PollFd::new(&worker.socket, PollFlags::IN));
        }
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let mut ready = Vec::new();
        for (index, pair) in waiting[1..].chunks(2).enumerate() {
            // A worker's last words come before the news of its death.
            if pair[1].revents().contains(PollFlags::IN) {
                ready.push(Ready::Spoke(index));
            }
            if is_ready(&pair[0]) {
                ready.push(Ready::Died(index));
            }
        }
        if is_ready(&waiting[0]) {
            ready.push(Ready::Control);
        }
        Ok(ready)
    }

    fn on_message(&mut self, message: ToExecutor, packet: &[u8], files: Vec<OwnedFd>) -> Result<(), ExecutorError> {
        match message {
            ToExecutor::Assign {
                workers,
                cores,
                shared_cores,
                hot_for_ms,
                code_dir,
                max_output_bytes,
            } => {
                if self.assignment.is_some() {
                    return Err(ExecutorError::Protocol("assigned twice".into()));
                }
                let Some(meters) = files.into_iter().next() else {
                    return Err(ExecutorError::Protocol("assigned without meters".into()));
                };
                let meters = Arc::new(Mapping::of(
                    &meters,
                    (workers as usize * METER_BYTES).next_multiple_of(4096),
                )?);
                pin(&shared_cores);
                self.assignment = Some(Assignment {
                    cores,
                    shared_cores,
                    hot_for_ms,
                    code_dir: code_dir.into(),
                    max_output_bytes,
                    meters,
                });
                for index in 0..workers {
                    let slot = self.fork(index, 1)?;
                    self.workers.push(slot);
                    self.announce(index)?;
                }
            }
            ToExecutor::Attach { worker, .. } => {
                let Some(slot) = self.workers.get(worker.0 as usize) else {
                    return Err(ExecutorError::Protocol(format!(
                        "a channel for worker {}, which does not exist",
                        worker.0
                    )));
                };
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                // A worker that just died cannot take it; the node learns of the death and ends the channel.
                let _ = descriptors::send(&slot.socket, packet, &files);
            }
            ToExecutor::Kill { worker } => {
                if let Some(slot) = self.workers.get(worker.0 as usize) {
                    let _ = rustix::process::pidfd_send_signal(&slot.pidfd, Signal::KILL);
                }
            }
        }
        Ok(())
    }

    fn announce(&self, index: u16) -> Result<(), ExecutorError> {
        let slot = &self.workers[index as usize];
        tell(&FromExecutor::WorkerStarted {
            worker: WorkerIndex(index),
            incarnation: Incarnation(slot.incarnation),
            pid: slot.pid.as_raw_nonzero().get() as u32,
        })
    }

    fn on_death(&mut self, index: usize) -> Result<(), ExecutorError> {
        let slot = &self.workers[index];
        let (pid, incarnation) = (slot.pid, slot.incarnation);
        let status = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).map_err(std::io::Error::from)?;
        let Some((_, status)) = status else { return Ok(()) };
        // Whatever the worker started goes with it.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        self.reap_strays();
        tell(&FromExecutor::WorkerEnded {
            worker: WorkerIndex(index as u16),
            incarnation: Incarnation(incarnation),
            status: status.exit_status().unwrap_or(0),
            signal: status.terminating_signal().unwrap_or(0),
        })?;
        self.workers[index] = self.fork(index as u16, incarnation + 1)?;
        self.announce(index as u16)
    }

    /// Collects dead processes that became ours because their parent, a worker, died. Workers are left alone: each is
    /// collected by its own pidfd, with its status.
    fn reap_strays(&self) {
        for child in children() {
            if self.workers.iter().all(|worker| worker.pid != child) {
                let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
            }
        }
    }

    fn fork(&mut self, index: u16, incarnation: u32) -> Result<Slot, ExecutorError> {
        let Some(assignment) = &self.assignment else {
            return Err(ExecutorError::Protocol("a worker before an assignment".into()));
        };
        let (socket, far) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .map_err(std::io::Error::from)?;
        self.runtime.before_fork();
        // SAFETY: this process is single-threaded (the runtime's hooks see to a language's own state), so the child may
        // do whatever its parent might.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            self.runtime.after_fork_in_worker();
            let core = assignment.cores.get(index as usize).map(std::slice::from_ref);
            settle(core.unwrap_or(&assignment.shared_cores));
            // The descriptors of our siblings and of the node are not ours to use.
            self.workers.clear();
            drop(socket);
            // SAFETY: the worker never uses its parent's control socket.
            unsafe { libc::close(CONTROL_FD) };
            let mut worker = Worker {
                index: WorkerIndex(index),
                meter: Meter::new(assignment.meters.clone(), index),
                code_dir: assignment.code_dir.clone(),
                hot_for_ms: assignment.hot_for_ms,
                max_output_bytes: assignment.max_output_bytes,
                runtime: self.runtime,
            };
            worker.serve(&far);
            // SAFETY: ends this worker without running the parent's exit handlers a second time.
            unsafe { libc::_exit(0) };
        }
        let failure = std::io::Error::last_os_error();
        self.runtime.after_fork_in_parent();
        let Some(pid) = Pid::from_raw(pid.max(0)) else {
            let _ = tell(&FromExecutor::Failed {
                message: format!("worker {index} cannot be forked: {failure}"),
            });
            return Err(ExecutorError::Control(failure));
        };
        let pidfd =
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(std::io::Error::from)?;
        Ok(Slot {
            pid,
            pidfd,
            socket,
            incarnation,
        })
    }

    /// Ends every worker and everything they started.
    fn end(&mut self) {
        for worker in self.workers.drain(..) {
            let _ = rustix::process::kill_process_group(worker.pid, Signal::KILL);
            let _ = rustix::process::kill_process(worker.pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(worker.pid), WaitOptions::empty());
        }
        // What escaped its group by a session of its own is our child by now.
        loop {
            let strays = children();
            if strays.is_empty() {
                return;
            }
            for stray in strays {
                let _ = rustix::process::kill_process(stray, Signal::KILL);
                let _ = rustix::process::waitpid(Some(stray), WaitOptions::empty());
            }
        }
    }
}

/// This process's children, dead ones included.
fn children() -> Vec<Pid> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}
