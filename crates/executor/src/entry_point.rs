//! Entry points of container images as functions: started anew for each call, without a shell.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dayfly_protocol::encoding::JSON_RESULT;
use dayfly_protocol::entry_point::{CommandTemplate, Start, VARIABLE};
use dayfly_protocol::sizes::json_call;
use dayfly_protocol::slot::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Call;

/// Most bytes of standard output in a result; larger outputs belong into a file.
const MAX_OUTPUT: usize = 64 << 20;
/// Bytes from the end of standard error that an error shows.
const LAST_WORDS: usize = 4 << 10;
/// Characters of a command that an error shows.
const SHOWN: usize = 200;
/// Bytes to read at once.
const CHUNK: usize = 64 << 10;
/// Interval of checks whether the program has ended, while another process holds its output open.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long processes that the program left may go on writing after its end.
const AFTER: Duration = Duration::from_secs(1);

/// An entry point, ready to be called.
pub struct EntryPoint {
    start: Start,
    words: CommandTemplate,
}

/// Output and exit status of a program.
struct Done {
    output: Vec<u8>,
    last_words: Vec<u8>,
    status: ExitStatus,
}

impl EntryPoint {
    /// Loads the entry point of this worker's image, with the words in a file.
    pub fn load(code: &Path) -> Result<Self, String> {
        let start = std::env::var(VARIABLE).map_err(|_| {
            "the worker's image has no entry point, or it runs in none; name a command instead, or an image that has one".to_owned()
        })?;
        let start: Start =
            serde_json::from_str(&start).map_err(|error| format!("the image's entry point is malformed: {error}"))?;
        let code = std::fs::read(code).map_err(|error| format!("the code cannot be read: {error}"))?;
        Ok(Self {
            start,
            words: CommandTemplate::parse(&code)?,
        })
    }

    pub fn invoke(&self, call: &mut Call<'_>) -> Status {
        let line = match self.line(call.input()) {
            Ok(line) => line,
            Err(text) => {
                call.fail(&text);
                return Status::FunctionError;
            }
        };
        let most = MAX_OUTPUT.min(usize::try_from(call.max_output()).unwrap_or(usize::MAX));
        match self.run(&line, most) {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output);
                let mut answer = serde_json::Value::from(text).to_string().into_bytes();
                answer.push(JSON_RESULT);
                match call.put(&answer) {
                    Ok(()) => Status::Ok,
                    Err(error) => {
                        call.fail(&error.to_string());
                        Status::OutOfMemory
                    }
                }
            }
            Err(text) => {
                call.fail(&text);
                Status::FunctionError
            }
        }
    }

    fn line(&self, input: &[u8]) -> Result<Vec<String>, String> {
        let Some(asked) = json_call(input) else {
            return Err("an entry point is called in JSON: give `arguments` and `keywords`".into());
        };
        let asked = serde_json::from_slice(asked).map_err(|error| format!("the call is malformed: {error}"))?;
        let words = self.words.fill(&asked)?;
        Ok(self.start.line((!self.words.is_empty()).then_some(words)))
    }

    fn run(&self, line: &[String], most: usize) -> Result<Vec<u8>, String> {
        let shown: String = line.join(" ").chars().take(SHOWN).collect();
        let (program, words) = line
            .split_first()
            .ok_or("the image's entry point is empty, and the call names no program")?;
        let mut command = Command::new(program);
        command.args(words).env_remove(VARIABLE);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !self.start.directory.is_empty() {
            command.current_dir(&self.start.directory);
        }
        let mut child = command.spawn().map_err(|error| match &self.start.directory[..] {
            "" => format!("`{shown}` cannot be started: {error}"),
            directory => format!("`{shown}` cannot be started in {directory}: {error}"),
        })?;
        let done = match watch(&mut child, most) {
            Ok(done) => done,
            Err(text) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{shown}` {text}"));
            }
        };
        if done.status.success() {
            return Ok(done.output);
        }
        let how = match (done.status.code(), done.status.signal()) {
            (Some(code), _) => format!("ended with status {code}"),
            (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
        };
        let words = String::from_utf8_lossy(&done.last_words);
        match words.trim() {
            "" => Err(format!("`{shown}` {how}")),
            words => Err(format!("`{shown}` {how}: {words}")),
        }
    }
}

/// Reads a program's output until it has ended, and forwards its standard error at once.
fn watch(child: &mut Child, most: usize) -> Result<Done, String> {
    let mut out: Option<ChildStdout> = child.stdout.take();
    let mut err: Option<ChildStderr> = child.stderr.take();
    let (mut output, mut last_words) = (Vec::new(), Vec::new());
    let mut chunk = vec![0; CHUNK];
    let mut ended: Option<(ExitStatus, Instant)> = None;
    while out.is_some() || err.is_some() {
        let (from_out, from_err) = ready(out.as_ref(), err.as_ref())?;
        if from_out {
            match read(&mut out, &mut chunk)? {
                length if output.len() + length > most => {
                    return Err(format!(
                        "writes more than {most} bytes on standard output; have it write a file"
                    ));
                }
                length => output.extend_from_slice(&chunk[..length]),
            }
        }
        if from_err {
            let length = read(&mut err, &mut chunk)?;
            // There may be no reader.
            let _ = std::io::stderr().write_all(&chunk[..length]);
            last_words.extend_from_slice(&chunk[..length]);
            last_words.drain(..last_words.len().saturating_sub(LAST_WORDS));
        }
        match ended {
            // Processes that it left may hold both open without end.
            Some((_, since)) if since.elapsed() > AFTER => break,
            Some(_) => {}
            None => ended = child.try_wait().map_err(lost)?.map(|status| (status, Instant::now())),
        }
    }
    let status = match ended {
        Some((status, _)) => status,
        None => child.wait().map_err(lost)?,
    };
    Ok(Done {
        output,
        last_words,
        status,
    })
}

fn lost(error: std::io::Error) -> String {
    format!("cannot be waited for: {error}")
}

/// Which of the two is readable or at its end.
fn ready(out: Option<&ChildStdout>, err: Option<&ChildStderr>) -> Result<(bool, bool), String> {
    let wanted = PollFlags::IN;
    let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(2);
    polled.extend(out.map(|out| PollFd::new(out, wanted)));
    polled.extend(err.map(|err| PollFd::new(err, wanted)));
    let limit = Timespec::try_from(POLL_INTERVAL).map_err(|error| error.to_string())?;
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(format!("gave no readable output: {error}")),
    }
    let mut seen = polled.iter().map(|one| !one.revents().is_empty());
    let from_out = out.is_some() && seen.next().unwrap_or(false);
    let from_err = err.is_some() && seen.next().unwrap_or(false);
    Ok((from_out, from_err))
}

/// Reads once. At the end of file it sets `from` to `None`.
fn read(from: &mut Option<impl Read>, chunk: &mut [u8]) -> Result<usize, String> {
    let Some(open) = from else { return Ok(0) };
    loop {
        match open.read(chunk) {
            Ok(0) => {
                *from = None;
                return Ok(0);
            }
            Ok(length) => return Ok(length),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("gave no readable output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, most: usize) -> Result<Vec<u8>, String> {
        let start = Start {
            entry_point: ["/bin/sh", "-c", script, "entry"].map(String::from).to_vec(),
            command: vec!["by itself".into()],
            directory: "/".into(),
        };
        let words = CommandTemplate::parse(br#"["{what}"]"#).expect("words");
        let entry_point = EntryPoint { start, words };
        entry_point.run(&entry_point.start.line(Some(vec!["asked for".into()])), most)
    }

    #[test]
    fn entry_point_returns_output_and_uses_image_directory() {
        assert_eq!(run("echo \"$1\"; pwd", 100), Ok(b"asked for\n/\n".to_vec()));
    }

    #[test]
    fn failed_entry_point_reports_status_and_error_output() {
        let failed = run("yes first | head -c 10000 >&2; echo no such thing >&2; exit 3", 100).unwrap_err();
        assert!(
            failed.contains("ended with status 3") && failed.ends_with("no such thing"),
            "{failed}"
        );
        assert!(failed.len() < LAST_WORDS + 2 * SHOWN, "{}", failed.len());
        assert!(run("kill -9 $$", 100).unwrap_err().contains("signal 9"));
        assert!(
            run("exec yes", 1 << 20)
                .unwrap_err()
                .contains("writes more than 1048576 bytes")
        );
    }

    #[test]
    fn background_process_of_entry_point_is_not_awaited() {
        let begun = Instant::now();
        assert_eq!(run("sleep 60 & echo done", 100), Ok(b"done\n".to_vec()));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
