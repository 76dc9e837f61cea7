//! The warm, single-threaded parent of a lease's workers.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dayfly_fabric::descriptors;
use dayfly_fabric::memory::Mapping;
use dayfly_protocol::executor::{CONTROL_FD, FromExecutor, MAX_PACKET_BYTES, ToExecutor};
use dayfly_protocol::ids::{Incarnation, WorkerIndex};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::Runtime;
use crate::meter::meters_length;
use crate::scratch::Scratch;
use crate::worker::{self, become_subreaper, borrow, pin};

/// Why an executor ended.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The control socket failed.
    #[error("the control socket to the node failed: {0}. An executor is started by its node, not by hand")]
    Control(#[from] std::io::Error),
    /// The node sent a malformed message.
    #[error("the node sent an invalid message: {0}")]
    Protocol(String),
    /// The worker that was forked ahead has died; the node starts another executor on demand.
    #[error("the worker that waited for a lease was ended from outside")]
    Idle,
}

struct Slot {
    pid: Pid,
    pidfd: OwnedFd,
    socket: OwnedFd,
    incarnation: u32,
    /// Whether it is not replaced when it ends.
    is_retired: bool,
}

/// The first message of every worker, also of a replacement.
struct Assignment {
    packet: Vec<u8>,
    /// The meters, and the cores that warm workers share.
    files: Vec<OwnedFd>,
    cores: Vec<u16>,
    cores_per_worker: u16,
    shared_cores: Vec<u16>,
    /// Whether the executor pins workers to their cores; otherwise the node does.
    pins: bool,
}

impl Assignment {
    fn cores_of(&self, index: u16) -> &[u16] {
        let first = usize::from(index) * usize::from(self.cores_per_worker);
        let own = self.cores.get(first..first + usize::from(self.cores_per_worker));
        own.unwrap_or(&self.shared_cores)
    }
}

struct Parent<'a, R: Runtime> {
    runtime: &'a mut R,
    assignment: Option<Assignment>,
    /// By number.
    workers: BTreeMap<u16, Slot>,
    /// Whether a dead worker may have left processes.
    strays: bool,
    /// Working directories of workers; `None` if they begin where the executor was started.
    scratch: Option<Scratch>,
}

/// Interval of checks for processes of a dead worker, while there are any.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Runs an executor over the control socket at descriptor 3 until the node closes it.
pub fn run<R: Runtime>(runtime: &mut R) -> Result<(), ExecutorError> {
    let control = borrow(CONTROL_FD);
    // Workers have the same user, and must not read or write our memory.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // Descendants of a worker become our children after its end, and are then killed.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    rustix::io::fcntl_setfd(control, rustix::io::FdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let ready = FromExecutor::Ready {
        runtime: runtime.describe(),
    };
    tell(&ready, &[])?;
    let mut parent = Parent {
        runtime,
        assignment: None,
        workers: BTreeMap::new(),
        strays: false,
        scratch: Scratch::new(),
    };
    // The first worker is forked before the lease, so that a cold start does not wait for the fork.
    let result = parent.fork(0, 1).and_then(|first| {
        parent.workers.insert(0, first);
        parent.serve()
    });
    parent.end();
    match result {
        // The node closed the socket while we wrote: the usual end of a lease, noticed a moment later.
        Err(ExecutorError::Control(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn tell(message: &FromExecutor, files: &[BorrowedFd<'_>]) -> Result<(), ExecutorError> {
    let bytes = serde_json::to_vec(message).map_err(|error| ExecutorError::Protocol(error.to_string()))?;
    descriptors::send(borrow(CONTROL_FD), &bytes, files)?;
    Ok(())
}

enum Ready {
    Control,
    Died(u16),
    Spoke(u16),
}

impl<R: Runtime> Parent<'_, R> {
    fn serve(&mut self) -> Result<(), ExecutorError> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        loop {
            let all = self.wait()?;
            if self.strays {
                self.kill_orphans();
            }
            for ready in all {
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
                        // Forward the worker's message unchanged. A worker that closed its socket is dying.
                        if let Some(worker) = self.workers.get(&index)
                            && let Ok((length, _)) = descriptors::receive(&worker.socket, &mut packet)
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
        for worker in self.workers.values() {
            waiting.push(PollFd::new(&worker.pidfd, PollFlags::IN));
            waiting.push(PollFd::new(&worker.socket, PollFlags::IN));
        }
        let limit = self.strays.then_some(&CHECK_INTERVAL);
        match rustix::event::poll(&mut waiting, limit) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let mut ready = Vec::new();
        for (index, pair) in self.workers.keys().copied().zip(waiting[1..].chunks(2)) {
            // A worker's last message comes before its death.
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
                retired,
                meters: meter_count,
                cores_per_worker,
                cores,
                shared_cores,
                pins,
                ..
            } => {
                if self.assignment.is_some() {
                    return Err(ExecutorError::Protocol("assigned twice".into()));
                }
                let Some(meters) = files.first() else {
                    return Err(ExecutorError::Protocol("assigned without meters".into()));
                };
                // Report a failed mapping once here, and not from each worker.
                Mapping::of(meters, meters_length(meter_count))?;
                self.assignment = Some(Assignment {
                    packet: packet.to_vec(),
                    files,
                    cores,
                    cores_per_worker,
                    shared_cores,
                    pins,
                });
                for index in 0..workers {
                    match (self.workers.contains_key(&index), retired.contains(&index)) {
                        (false, true) => continue,
                        (true, true) => self.retire(index),
                        (true, false) => self.assign(index)?,
                        (false, false) => self.start(index)?,
                    }
                }
                if let Some(assignment) = self.assignment.as_ref().filter(|assignment| assignment.pins) {
                    pin(None, &assignment.shared_cores);
                }
            }
            ToExecutor::Attach { worker, .. } | ToExecutor::RedirectOutput { worker } => {
                let Some(slot) = self.workers.get(&worker.0) else {
                    return Err(ExecutorError::Protocol(format!(
                        "a message for worker {}, which does not exist",
                        worker.0
                    )));
                };
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                // A worker that has just died cannot take it; the node notices the death and ends the channel.
                let _ = descriptors::send(&slot.socket, packet, &files);
            }
            ToExecutor::Kill { worker } => {
                if let Some(slot) = self.workers.get(&worker.0) {
                    let _ = rustix::process::pidfd_send_signal(&slot.pidfd, Signal::KILL);
                }
            }
            ToExecutor::Start { workers } => {
                for worker in workers {
                    match self.workers.get_mut(&worker.0) {
                        // Its replacement takes the number.
                        Some(dying) => dying.is_retired = false,
                        None => self.start(worker.0)?,
                    }
                }
            }
            ToExecutor::Retire { workers } => workers.iter().for_each(|worker| self.retire(worker.0)),
        }
        Ok(())
    }

    /// Starts a worker with a number that no worker has.
    fn start(&mut self, index: u16) -> Result<(), ExecutorError> {
        let slot = self.fork(index, 1)?;
        self.workers.insert(index, slot);
        self.assign(index)
    }

    /// Kills a worker that is not replaced.
    fn retire(&mut self, index: u16) {
        if let Some(slot) = self.workers.get_mut(&index) {
            slot.is_retired = true;
            let _ = rustix::process::pidfd_send_signal(&slot.pidfd, Signal::KILL);
        }
    }

    /// Sends a worker its assignment, and reports the worker to the node.
    fn assign(&self, index: u16) -> Result<(), ExecutorError> {
        let Some(slot) = self.workers.get(&index) else {
            return Ok(());
        };
        if let Some(assignment) = &self.assignment {
            // Pin here, so that later instructions of the node about its cores take effect last.
            if assignment.pins {
                pin(Some(slot.pid), assignment.cores_of(index));
            }
            // A worker that has just died cannot take it; its death is noticed next.
            let files: Vec<_> = assignment.files.iter().map(AsFd::as_fd).collect();
            let _ = descriptors::send(&slot.socket, &assignment.packet, &files);
        }
        let started = FromExecutor::WorkerStarted {
            worker: WorkerIndex(index),
            incarnation: Incarnation(slot.incarnation),
            pid: slot.pid.as_raw_nonzero().get() as u32,
        };
        tell(&started, &[slot.pidfd.as_fd()])
    }

    fn on_death(&mut self, index: u16) -> Result<(), ExecutorError> {
        let Some(slot) = self.workers.get(&index) else {
            return Ok(());
        };
        let (pid, incarnation, is_retired) = (slot.pid, slot.incarnation, slot.is_retired);
        let status = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).map_err(std::io::Error::from)?;
        let Some((_, status)) = status else { return Ok(()) };
        // Everything that the worker started ends with it.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        self.kill_orphans();
        if let Some(scratch) = &self.scratch {
            scratch.remove(index, incarnation);
        }
        if self.assignment.is_none() {
            return Err(ExecutorError::Idle);
        }
        let ended = FromExecutor::WorkerEnded {
            worker: WorkerIndex(index),
            incarnation: Incarnation(incarnation),
            status: status.exit_status().unwrap_or(0),
            signal: status.terminating_signal().unwrap_or(0),
        };
        tell(&ended, &[])?;
        if is_retired {
            self.workers.remove(&index);
            return Ok(());
        }
        let slot = self.fork(index, incarnation + 1)?;
        self.workers.insert(index, slot);
        self.assign(index)
    }

    /// Ends processes that became our children. They belong to a dead worker, whatever sessions and groups they made:
    /// descendants of a live worker stay below it (see [`become_subreaper`]). Their own children become ours after
    /// their end.
    fn kill_orphans(&mut self) {
        self.strays = false;
        for child in children() {
            // Workers are reaped by their pidfd, with their status.
            if self.workers.values().all(|worker| worker.pid != child) {
                self.strays = true;
                let _ = rustix::process::kill_process(child, Signal::KILL);
                let _ = rustix::process::waitpid(Some(child), WaitOptions::NOHANG);
            }
        }
    }

    fn fork(&mut self, index: u16, incarnation: u32) -> Result<Slot, ExecutorError> {
        let (socket, far) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .map_err(std::io::Error::from)?;
        let parent = rustix::process::getpid();
        let scratch = self
            .scratch
            .as_ref()
            .and_then(|scratch| scratch.make(index, incarnation));
        self.runtime.before_fork();
        // SAFETY: this process is single-threaded (the runtime's hooks handle the language's state), so the child may
        // do everything that its parent may.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            self.runtime.after_fork_in_worker();
            let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable);
            become_subreaper(parent);
            // The parent removes it.
            std::mem::forget(self.scratch.take());
            if let Some(scratch) = scratch {
                // If this fails, the worker stays in the former directory.
                let _ = rustix::process::chdir(&scratch);
            }
            // The descriptors of the other workers and of the node must not be used here.
            self.workers.clear();
            drop(socket);
            // SAFETY: the worker never uses its parent's control socket.
            unsafe { libc::close(CONTROL_FD) };
            worker::serve(self.runtime, WorkerIndex(index), &far);
            // SAFETY: ends this worker without running the parent's exit handlers a second time.
            unsafe { libc::_exit(0) };
        }
        let failure = std::io::Error::last_os_error();
        self.runtime.after_fork_in_parent();
        let Some(pid) = Pid::from_raw(pid.max(0)) else {
            let failed = FromExecutor::Failed {
                message: format!("worker {index} cannot be forked: {failure}"),
            };
            let _ = tell(&failed, &[]);
            return Err(ExecutorError::Control(failure));
        };
        let pidfd =
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(std::io::Error::from)?;
        Ok(Slot {
            pid,
            pidfd,
            socket,
            incarnation,
            is_retired: false,
        })
    }

    /// Ends every worker and everything that they started.
    fn end(&mut self) {
        // Signal all before waiting for any: they die in parallel.
        for worker in self.workers.values() {
            let _ = rustix::process::kill_process_group(worker.pid, Signal::KILL);
            let _ = rustix::process::kill_process(worker.pid, Signal::KILL);
        }
        for worker in std::mem::take(&mut self.workers).into_values() {
            let _ = rustix::process::waitpid(Some(worker.pid), WaitOptions::empty());
        }
        // Processes that left their group by a new session are our children by now.
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

/// This process's children, including zombies. Requires that the process has one thread.
fn children() -> Vec<Pid> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_workers_get_own_cores_warm_ones_shared() {
        let assignment = |cores: &[u16], cores_per_worker| Assignment {
            packet: Vec::new(),
            files: Vec::new(),
            cores: cores.to_vec(),
            cores_per_worker,
            shared_cores: vec![0, 1],
            pins: true,
        };
        let hot = assignment(&[2, 3, 5, 7], 2);
        assert_eq!((hot.cores_of(0), hot.cores_of(1)), (&[2, 3][..], &[5, 7][..]));
        assert_eq!(assignment(&[], 1).cores_of(3), [0, 1]);
    }
}
