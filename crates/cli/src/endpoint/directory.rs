//! An endpoint's directory, and operations on its daemon from other processes.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dayfly_command::Global;
use dayfly_protocol::endpoints::BlockStatus;
use dayfly_protocol::error::{Code, Failure};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::config;
use crate::output::Align::{Left, Right};
use crate::{connect, output};

/// File with the manager's address and the token.
pub const CREDENTIAL: &str = "credential.json";
/// File with the daemon's status.
pub const STATUS: &str = "status.json";
/// Log file of the daemon and its nodes.
pub const LOG: &str = "log";
/// Directory of the logs of blocks.
pub const BLOCKS: &str = "blocks";
/// Maximum length of an endpoint's name with a tenant's, in bytes.
const MAX_NAME: usize = 128;
/// Interval of checks of a daemon that starts or ends.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The directory of an endpoint of this machine.
#[derive(Debug, Clone)]
pub struct Directory {
    name: String,
    path: PathBuf,
}

/// Status of a daemon, as it writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Address of the manager that sends the tasks.
    pub manager: String,
    /// `up`, or the reason why there is no connection.
    pub connection: String,
    /// Blocks of nodes.
    pub blocks: Vec<BlockStatus>,
    /// Why fewer nodes are running than are needed, if that is so.
    pub trouble: Option<String>,
}

impl Directory {
    /// Returns the directory of the endpoint with this name.
    pub fn of(name: &str) -> Result<Self, Failure> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(fits) || name.len() > MAX_NAME {
            let text = format!(
                "`{name:.80}` is no name for an endpoint: take up to {MAX_NAME} letters, digits, `-`, `_` and `.`, a letter first"
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        Ok(Self {
            name: name.into(),
            path: connect::state_dir(None)?.join("endpoints").join(name),
        })
    }

    /// Returns the directory of an endpoint that was set up; errors otherwise.
    pub fn existing(name: &str) -> Result<Self, Failure> {
        let directory = Self::of(name)?;
        if directory.path.join(config::FILE).exists() {
            return Ok(directory);
        }
        let text = format!("there is no endpoint `{name}` on this machine; make one by `dayfly endpoint setup {name}`");
        Err(Failure::new(Code::NotFound, text))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory, private to this user.
    pub fn make(&self) -> Result<(), Failure> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.path.join(BLOCKS));
        made.map_err(|error| self.unusable(&error))
    }

    /// Removes the directory and its content.
    pub fn remove(&self) -> Result<(), Failure> {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.unusable(&error)),
            _ => Ok(()),
        }
    }

    fn unusable(&self, error: &std::io::Error) -> Failure {
        let text = format!("{} cannot be used: {error}", self.path.display());
        Failure::new(Code::StoreFailed, text)
    }

    fn status(&self) -> Option<Status> {
        let json = std::fs::read(self.path.join(STATUS)).ok()?;
        serde_json::from_slice(&json).ok()
    }
}

/// Returns the process that runs the endpoint, if there is one.
pub fn holder(directory: &Directory) -> Result<Option<u32>, Failure> {
    let path = directory.path.join("lock");
    let mut lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(directory.unusable(&error)),
    };
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let mut text = String::new();
    let read = lock.read_to_string(&mut text);
    read.map_err(|error| directory.unusable(&error))?;
    Ok(text.trim().parse().ok())
}

/// Starts a daemon that outlives this session, and waits until it is ready.
pub fn start(name: &str, global: &Global, limit: Duration) -> Result<(), Failure> {
    let directory = Directory::existing(name)?;
    if let Some(pid) = holder(&directory)? {
        let text = format!("the endpoint `{name}` runs already, as process {pid}");
        return Err(Failure::new(Code::AddressInUse, text));
    }
    let path = directory.path.join(LOG);
    let mut options = File::options();
    let log = options.create(true).append(true).mode(0o600).open(&path);
    let log = log.map_err(|error| directory.unusable(&error))?;
    let from = log.metadata().map_or(0, |metadata| metadata.len());
    // Do not read the status of an earlier run.
    let _ = std::fs::remove_file(directory.path.join(STATUS));
    let mut child = spawn(name, global, &log)
        .map_err(|error| Failure::new(Code::ExecutorFailed, format!("the endpoint cannot be started: {error}")))?;
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = directory
            .status()
            .filter(|status| status.pid == child.id() && !status.connection.is_empty())
        {
            break status;
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() > until {
            let said = bytes_from(&path, from).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let text = match ended {
                Some(status) => format!("the endpoint did not start ({status}):\n{}", said.trim_end()),
                None => format!(
                    "the endpoint is not up within {} s; see {}",
                    limit.as_secs(),
                    path.display()
                ),
            };
            return Err(Failure::new(Code::ExecutorFailed, text));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    output::line(&match global.json {
        true => {
            output::json(&json!({ "endpoint": name, "pid": status.pid, "log": path, "connection": status.connection }))?
        }
        false => {
            let connected = match status.connection.as_str() {
                "up" => format!("takes tasks from {}", status.manager),
                why => format!("goes on trying to reach {}: {why}", status.manager),
            };
            format!(
                "The endpoint {name} runs, as process {}, and {connected}.\n\n  \
                 dayfly endpoint status {name}\n  dayfly endpoint logs {name} --follow\n  dayfly endpoint stop {name}",
                status.pid
            )
        }
    });
    Ok(())
}

fn spawn(name: &str, global: &Global, log: &File) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["endpoint", "run", name]);
    if let Some(level) = &global.log {
        command.args(["--log", level]);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .current_dir("/");
    // SAFETY: between fork and exec only one system call runs, which does not allocate.
    unsafe {
        command.pre_exec(|| {
            // A new session, so that the daemon outlives the terminal.
            rustix::process::setsid().map(drop).map_err(Into::into)
        });
    }
    command.spawn()
}

/// Tells a daemon to stop, and waits until it has ended.
pub fn stop(name: &str, keep_blocks: bool, global: &Global, limit: Duration) -> Result<(), Failure> {
    let directory = Directory::existing(name)?;
    let pid = holder(&directory)?;
    let process = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let Some(process) = process else {
        output::line(&match global.json {
            true => output::json(&json!({ "endpoint": name, "stopped": false }))?,
            false => format!("The endpoint {name} does not run."),
        });
        return Ok(());
    };
    let signal = if keep_blocks { Signal::HUP } else { Signal::TERM };
    // The process may already have ended.
    let _ = rustix::process::kill_process(process, signal);
    let until = Instant::now() + limit;
    while holder(&directory)?.is_some() {
        if Instant::now() > until {
            let text = format!(
                "process {} has not ended within {} s; see `dayfly endpoint logs {name}`",
                process.as_raw_nonzero(),
                limit.as_secs()
            );
            return Err(Failure::new(Code::TimedOut, text));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    output::line(&match global.json {
        true => output::json(&json!({ "endpoint": name, "stopped": true }))?,
        false if keep_blocks => format!("The endpoint {name} has stopped. Its pilot jobs wait for the next start."),
        false => format!("The endpoint {name} has stopped."),
    });
    Ok(())
}

/// Prints the status of a daemon.
pub fn status(name: &str, global: &Global) -> Result<(), Failure> {
    let directory = Directory::existing(name)?;
    let running = holder(&directory)?;
    let status = directory.status().filter(|status| running == Some(status.pid));
    if global.json {
        output::line(&output::json(&json!({
            "endpoint": name,
            "running": running.is_some(),
            "pid": running,
            "directory": directory.path,
            "status": status,
        }))?);
        return Ok(());
    }
    let Some(status) = status else {
        output::line(&match running {
            Some(pid) => format!("The endpoint {name} is starting, as process {pid}."),
            None => format!("The endpoint {name} does not run; start it by `dayfly endpoint start {name}`."),
        });
        return Ok(());
    };
    let mut text = format!(
        "The endpoint {name} runs.\n\n  process    {}\n  manager    {}\n  connected  {}\n  directory  {}\n",
        status.pid,
        status.manager,
        if status.connection == "up" {
            "yes"
        } else {
            &status.connection
        },
        directory.path.display()
    );
    if let Some(trouble) = &status.trouble {
        text += &format!("  trouble    {}\n", output::plain(trouble));
    }
    text += "\n";
    text += &match status.blocks.is_empty() {
        true => "No nodes: there is nothing to do.".into(),
        false => blocks(&status.blocks).text(output::colours(&std::io::stdout())),
    };
    output::line(&text);
    Ok(())
}

fn blocks(blocks: &[BlockStatus]) -> output::Table {
    let mut table = output::Table::new(&[
        ("BLOCK", Left),
        ("JOB", Left),
        ("STATE", Left),
        ("NODES", Right),
        ("AGE", Right),
        ("ENDS IN", Right),
        ("", Left),
    ]);
    let now_ms = output::now_ms();
    for block in blocks {
        table.row([
            block.name.clone(),
            output::plain(&block.job),
            block.state.name().into(),
            format!("{}/{}", block.joined, block.nodes),
            output::span(now_ms.saturating_sub(block.submitted_at_ms)),
            match block.ends_at_ms {
                0 => "-".into(),
                at_ms => output::span(at_ms.saturating_sub(now_ms)),
            },
            output::plain(&block.words),
        ]);
    }
    table
}

/// Prints the log of a daemon, or of a block's nodes.
pub fn logs(name: &str, block: Option<&str>, lines: usize, follow: bool) -> Result<(), Failure> {
    let directory = Directory::existing(name)?;
    let path = match block {
        None => directory.path.join(LOG),
        Some(block) => return block_logs(&directory, block, lines, follow),
    };
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|error| directory.unusable(&error))?,
    };
    output::bytes(last_lines(&text, lines));
    if !follow {
        return Ok(());
    }
    let mut at = text.len() as u64;
    loop {
        std::thread::sleep(POLL_INTERVAL);
        at += show_from(&path, at, None);
    }
}

/// Prints a file from offset `at`, below the heading if there is one. Returns the new offset.
fn show_from(path: &Path, at: u64, heading: Option<&Path>) -> u64 {
    // A file that is missing has no new content.
    let more = bytes_from(path, at).unwrap_or_default();
    if more.is_empty() {
        return 0;
    }
    if let Some(heading) = heading {
        output::line(&format!("==> {} <==", heading.display()));
    }
    output::bytes(&more);
    more.len() as u64
}

/// Returns the log files of a block's nodes, sorted by name.
fn block_files(directory: &Directory, block: &str) -> Result<Vec<PathBuf>, Failure> {
    let found = std::fs::read_dir(directory.path.join(BLOCKS)).map_err(|error| directory.unusable(&error))?;
    let mut files: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    // Match `cluster-1` but not `cluster-10`.
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name
            .strip_prefix(block)
            .or_else(|| name.split_once(block).map(|(_, rest)| rest));
        path.is_file() && rest.is_some_and(|rest| rest.starts_with('.') && !rest.ends_with(".json"))
    });
    files.sort();
    Ok(files)
}

fn block_logs(directory: &Directory, block: &str, lines: usize, follow: bool) -> Result<(), Failure> {
    let files = block_files(directory, block)?;
    if files.is_empty() {
        let text = format!(
            "nothing is left of a block `{block}` of the endpoint `{}`",
            directory.name
        );
        return Err(Failure::new(Code::NotFound, text));
    }
    let mut shown: HashMap<PathBuf, u64> = HashMap::new();
    let mut last = None;
    for path in files {
        let text = std::fs::read(&path).map_err(|error| directory.unusable(&error))?;
        output::line(&format!("==> {} <==", path.display()));
        output::bytes(last_lines(&text, lines));
        shown.insert(path.clone(), text.len() as u64);
        last = Some(path);
    }
    if !follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(POLL_INTERVAL);
        // Nodes that start later have new files.
        for path in block_files(directory, block)? {
            let at = shown.entry(path.clone()).or_default();
            let is_other = last.as_ref() != Some(&path);
            let more = show_from(&path, *at, is_other.then_some(&*path));
            *at += more;
            if more > 0 {
                last = Some(path);
            }
        }
    }
}

fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let from = ends.map(|(at, _)| at + 1).nth(lines.saturating_sub(1)).unwrap_or(0);
    if lines == 0 { &[] } else { &text[from..] }
}

fn bytes_from(path: &Path, from: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_begins_at_a_whole_line() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb", 5), b"a\nb");
        assert_eq!(last_lines(b"a\nb\n", 0), b"");
    }

    #[test]
    fn name_with_path_separators_is_refused() {
        for wrong in ["", "..", "a/b", "-x", "a b"] {
            assert!(Directory::of(wrong).is_err(), "{wrong}");
        }
    }
}
