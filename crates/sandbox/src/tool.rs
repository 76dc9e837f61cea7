//! Runs external programs, such as those of container runtimes, to their end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::descriptors;

/// Bytes of a program's standard error that are passed on.
const ERROR_TAIL_BYTES: u64 = 2 << 10;
/// Most bytes of output that [`Tool::output`] accepts.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Interval of checks for a stop.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// There is no such program.
    #[error("program `{0}` not found; install it")]
    Missing(String),
    /// It failed with this message.
    #[error("`{tool}` failed: {why}")]
    Failed {
        /// The program.
        tool: String,
        /// Its message.
        why: String,
    },
    /// A system call failed.
    #[error("no program can be run: {0}")]
    System(#[from] std::io::Error),
}

/// A program, and its limits.
#[derive(Debug, Clone, Copy)]
pub struct Tool<'a> {
    /// A name in `PATH`, or a path.
    pub name: &'a OsStr,
    /// Time after which it is ended.
    pub limit: Duration,
    /// Ends it when this becomes true.
    pub stop: &'a AtomicBool,
}

/// Whether `PATH` has a program of this name.
pub fn exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

impl Tool<'_> {
    /// Runs it and returns its output.
    pub fn output(&self, arguments: &[&str]) -> Result<String, ToolError> {
        self.run(arguments, whole_output)
    }

    /// Runs it with these variables, writes its standard error into a file that others may read meanwhile, and returns
    /// its output.
    pub fn output_into(
        &self,
        arguments: &[&str],
        variables: &[(&str, String)],
        complaints: File,
    ) -> Result<String, ToolError> {
        self.run_into(arguments, variables, complaints, whole_output)
    }

    /// Runs it and passes its output to `read`, whose error ends the program and is returned. The program ends with
    /// this process at the latest.
    pub fn run<T, E: From<ToolError>>(
        &self,
        arguments: &[&str],
        read: impl FnOnce(&mut ChildStdout) -> Result<T, E>,
    ) -> Result<T, E> {
        // Not a pipe, which left-behind processes would hold open.
        let complaints = rustix::fs::memfd_create("complaints", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
        let complaints = File::from(complaints.map_err(ToolError::from)?);
        self.run_into(arguments, &[], complaints, read)
    }

    fn run_into<T, E: From<ToolError>>(
        &self,
        arguments: &[&str],
        variables: &[(&str, String)],
        mut complaints: File,
        read: impl FnOnce(&mut ChildStdout) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut command = Command::new(self.name);
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            // This process's log level does not apply to the program.
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(complaints.try_clone().map_err(ToolError::from)?)
            .process_group(0);
        let limit = descriptors::original_limit_raw();
        // SAFETY: two system calls, which need nothing of this process.
        unsafe {
            command.pre_exec(move || {
                let limited = limit.is_none_or(|limit| libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0);
                match limited && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                    true => Ok(()),
                    false => Err(std::io::Error::last_os_error()),
                }
            });
        }
        crate::umask::restore_for(&mut command);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ToolError::Missing(self.name.to_string_lossy().into_owned()),
            _ => self.failed(arguments, error.to_string()),
        })?;
        let output = child.stdout.take();
        let mut output = output.ok_or_else(|| self.failed(arguments, "it has no output".into()))?;
        std::thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            let group = Pid::from_child(&child);
            let guard = scope.spawn(move || self.guard(group, &is_done));
            let result = read(&mut output);
            // Stop reading from a program that is still writing.
            drop(output);
            if result.is_err() {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let ended = wait_for(&child);
            // Reap it only after the guard has ended, so that its process id is not reused meanwhile.
            drop(done);
            let cut_short = guard.join().unwrap_or(None);
            let status = ended.and_then(|()| child.wait()).map_err(ToolError::from)?;
            if let Some(why) = cut_short {
                return Err(self.failed(arguments, why).into());
            }
            match result {
                Ok(_) if !status.success() => {
                    let why = error_tail(&mut complaints, status);
                    Err(self.failed(arguments, why).into())
                }
                result => result,
            }
        })
    }

    /// Ends a program that takes too long or is not wanted any more. Returns the reason.
    fn guard(&self, group: Pid, is_done: &mpsc::Receiver<()>) -> Option<String> {
        let begin = Instant::now();
        let why = loop {
            match is_done.recv_timeout(STOP_PERIOD) {
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Acquire) => break "it was stopped".into(),
                Err(RecvTimeoutError::Timeout) if begin.elapsed() > self.limit => {
                    break format!("it took more than {} s", self.limit.as_secs());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
            }
        };
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        Some(why)
    }

    fn failed(&self, arguments: &[&str], why: String) -> ToolError {
        let name = self.name.to_string_lossy().into_owned();
        let what = arguments.first().filter(|word| !word.starts_with('-'));
        ToolError::Failed {
            tool: what.map_or(name.clone(), |what| format!("{name} {what}")),
            why,
        }
    }
}

fn whole_output(output: &mut ChildStdout) -> Result<String, ToolError> {
    let mut text = String::new();
    output.take(MAX_OUTPUT_BYTES).read_to_string(&mut text)?;
    Ok(text.trim().to_string())
}

/// Waits for the end of a program without reaping it.
fn wait_for(child: &Child) -> std::io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let wait = || rustix::process::waitid(WaitId::Pid(Pid::from_child(child)), options);
    Ok(rustix::io::retry_on_intr(wait).map(drop)?)
}

/// The end of a program's standard error.
fn error_tail(complaints: &mut File, status: ExitStatus) -> String {
    let mut kept = Vec::new();
    let length = complaints.metadata().map_or(0, |metadata| metadata.len());
    let _ = complaints
        .seek(SeekFrom::Start(length.saturating_sub(ERROR_TAIL_BYTES)))
        .and_then(|_| complaints.take(ERROR_TAIL_BYTES).read_to_end(&mut kept));
    match String::from_utf8_lossy(&kept).trim() {
        "" => status.to_string(),
        words => words.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn shell(stop: &AtomicBool, limit: Duration) -> Tool<'_> {
        let name = OsStr::new("sh");
        Tool { name, limit, stop }
    }

    #[test]
    fn failed_tool_is_quoted_and_missing_one_named() {
        let shell = shell(&NEVER, Duration::from_secs(60));
        assert_eq!(shell.output(&["-c", "echo fine"]).unwrap(), "fine");
        let error = shell.output(&["-c", "echo because >&2; exit 3"]).unwrap_err();
        assert!(error.to_string().contains("because"), "{error}");
        let error = shell.output(&["-c", "exit 3"]).unwrap_err();
        assert!(error.to_string().contains('3'), "{error}");
        let name = OsStr::new("no-such-program-anywhere");
        let error = Tool { name, ..shell }.output(&[]).unwrap_err();
        assert!(matches!(error, ToolError::Missing(missing) if name == &*missing));
    }

    #[test]
    fn tool_ends_at_its_limit_and_when_stopped() {
        let endless = ["-c", "while :; do echo more; sleep 0.01; done"];
        let unread = shell(&NEVER, Duration::from_secs(60)).run(&endless, |_| {
            let enough = std::io::Error::other("enough");
            Err::<(), _>(ToolError::System(enough))
        });
        assert!(matches!(unread, Err(ToolError::System(error)) if error.to_string() == "enough"));
        let late = shell(&NEVER, Duration::from_millis(100)).output(&endless).unwrap_err();
        assert!(late.to_string().contains("more than"), "{late}");
        let stop = AtomicBool::new(true);
        let stopped = shell(&stop, Duration::from_secs(60)).output(&endless).unwrap_err();
        assert!(stopped.to_string().contains("stopped"), "{stopped}");
    }
}
