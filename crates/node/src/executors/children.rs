//! The child processes of the node: it ends those that no executor owns.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::{Child, Program, SandboxError, Spawner};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// Process ids of living executors.
static KNOWN_CHILDREN: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn known_children() -> MutexGuard<'static, BTreeSet<i32>> {
    KNOWN_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process that does not count as an orphan until [`reap_child`].
pub async fn start_child(spawner: Arc<Spawner>, program: Program) -> Result<Child, Failure> {
    let started = tokio::task::spawn_blocking(move || {
        // Hold the lock, so that the new child is not taken for an orphan.
        let mut known = known_children();
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
            SandboxError::Namespaces(ref why) if is_temporary(why) => failed(&error),
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

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::OutOfMemory
    )
}

/// Reaps a process that has ended, or is about to.
pub fn reap_child(pid: i32, pidfd: BorrowedFd<'_>) {
    let mut known = known_children();
    let _ = rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED);
    known.remove(&pid);
}

/// Number of external programs that run below this process, whose children are unknown.
static EXTERNAL_PROGRAMS: AtomicUsize = AtomicUsize::new(0);

/// While one exists, unknown children are not ended.
#[derive(Debug)]
pub struct ExternalProgram(());

impl ExternalProgram {
    /// Call it before the program is started.
    pub fn begin() -> Self {
        EXTERNAL_PROGRAMS.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for ExternalProgram {
    fn drop(&mut self) {
        EXTERNAL_PROGRAMS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Most passes over the list of children. Each ends a process, or is one of the last two.
const MAX_PASSES: usize = 1000;

/// Kills and reaps every child of this process that is not a living executor, such as the workers of an executor that
/// was killed.
///
/// Processes of such an executor's workers become our children only after the worker's end. So this repeats until it
/// has found none twice: the kernel's list may also miss a child while another one ends.
///
/// Does nothing while an [`ExternalProgram`] exists. Its owner calls this when the program has ended.
pub fn end_unknown_children() {
    let mut quiet = 0;
    for _ in 0..MAX_PASSES {
        if EXTERNAL_PROGRAMS.load(Ordering::Acquire) > 0 {
            return;
        }
        quiet = if end_listed_children() { 0 } else { quiet + 1 };
        if quiet == 2 {
            return;
        }
        std::thread::yield_now();
    }
}

/// One pass over the kernel's list. Returns whether any process was ended.
fn end_listed_children() -> bool {
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
        let known = known_children();
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
