//! A manager and node that this process starts when it finds none.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dayfly_protocol::api::Connection;
use dayfly_protocol::error::Code;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use crate::Error;
use crate::random::fill_random;

/// Environment variable with the path of the `dayfly` binary.
pub const BINARY_VARIABLE: &str = "DAYFLY_BIN";
/// Limit for the start of `dayfly up`, which makes keys and a database: about 100 ms on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time to end its workers before the child is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// `dayfly up --embedded` as a child process, in a private directory. Dropping this value ends the child and removes
/// the directory. The child also ends when this process dies.
#[derive(Debug)]
pub struct EmbeddedManager {
    child: Child,
    state_dir: PathBuf,
}

impl EmbeddedManager {
    pub fn start(binary: Option<&Path>) -> Result<(Self, Connection), Error> {
        let binary = find_binary(binary)?;
        let state_dir = private_dir()?;
        let failed = |text: String| Error::new(Code::ExecutorFailed, text);
        let (ready, ready_writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| failed(format!("no pipe to {} can be made: {error}", binary.display())))?;
        let mut command = Command::new(&binary);
        command
            .args(["up", "--embedded", "--json", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--ready-fd")
            .arg(ready_writer.as_raw_fd().to_string())
            .arg("--state-dir")
            .arg(&state_dir)
            // The child inherits standard output and error, so the workers' output appears there.
            .stdin(Stdio::null());
        let inherited = ready_writer.as_raw_fd();
        // SAFETY: between fork and exec the child makes one system call, on a descriptor that `ready_writer` keeps
        // open.
        unsafe {
            command.pre_exec(move || {
                let inherited = std::os::fd::BorrowedFd::borrow_raw(inherited);
                rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::empty()).map_err(Into::into)
            });
        }
        let child = command
            .spawn()
            .map_err(|error| failed(format!("{} cannot be started: {error}", binary.display())))?;
        drop(ready_writer);
        let mut embedded = Self { child, state_dir };
        embedded.wait_until_ready(ready)?;
        let file = embedded.state_dir.join("connection.json");
        let connection = crate::discovery::find_manager(Some(&file))?
            .ok_or_else(|| failed(format!("{} wrote no connection file", binary.display())))?;
        Ok((embedded, connection))
    }

    /// Waits for the line that reports readiness. End of file means failure; the child printed the reason to standard
    /// error.
    fn wait_until_ready(&mut self, ready: OwnedFd) -> Result<(), Error> {
        let failed = |text: &str| Error::new(Code::ExecutorFailed, format!("the embedded manager {text}"));
        let until = Instant::now() + START_LIMIT;
        let mut reader = BufReader::new(std::fs::File::from(ready));
        let mut line = String::new();
        let mut waiting = [PollFd::new(reader.get_ref(), PollFlags::IN)];
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut waiting, Some(&limit)) {
            Ok(0) => return Err(failed(&format!("was not ready within {} s", START_LIMIT.as_secs()))),
            Ok(_) => {}
            Err(error) => return Err(failed(&format!("cannot be waited for: {error}"))),
        }
        reader
            .read_line(&mut line)
            .map_err(|error| failed(&format!("cannot be read: {error}")))?;
        if line.is_empty() {
            let status = self
                .child
                .wait()
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            return Err(failed(&format!("ended at once ({status}); see its standard error")));
        }
        Ok(())
    }
}

impl Drop for EmbeddedManager {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32)
            && let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
        {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::TERM);
            let limit = Timespec {
                tv_sec: STOP_LIMIT.as_secs() as i64,
                tv_nsec: 0,
            };
            let _ = rustix::event::poll(&mut [PollFd::new(&pidfd.as_fd(), PollFlags::IN)], Some(&limit));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

fn find_binary(named: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os(BINARY_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(path.into());
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("dayfly")));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    beside.into_iter().chain(std::env::split_paths(&on_path).map(|dir| dir.join("dayfly"))).find(|path| path.is_file()).ok_or_else(
        || {
            Error::new(
                Code::NotFound,
                format!(
                    "no manager is configured, and the `dayfly` binary to start one is not on PATH; install it, or name \
                     it by {BINARY_VARIABLE}, or name a manager by {}",
                    crate::discovery::MANAGER_VARIABLE
                ),
            )
        },
    )
}

fn private_dir() -> Result<PathBuf, Error> {
    let mut name = [0; 8];
    let failed =
        |error: std::io::Error| Error::new(Code::StoreFailed, format!("no private directory can be made: {error}"));
    fill_random(&mut name)?;
    let dir = std::env::temp_dir().join(format!("dayfly-{}", hex::encode(name)));
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&dir)
        .map_err(failed)?;
    Ok(dir)
}
