//! A provider program that serves a batch system: one JSON object in a line for each request and each response.
//!
//! `dayfly._providers` of the Python package is such a program, for Parsl's providers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dayfly_protocol::endpoints::BlockState;
use dayfly_sandbox::umask;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Job, JobState, Provider, ProviderError};

/// Limit for a response. The batch system waits for its own controller; the program gives up earlier.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(120);

/// A provider program. It is started on demand, and again after it ended.
#[derive(Debug)]
pub struct Program {
    command: Vec<String>,
    greeting: Value,
    running: Option<RunningProgram>,
}

#[derive(Debug)]
struct RunningProgram {
    child: Child,
    requests: ChildStdin,
    responses: Receiver<String>,
    /// Why the batch system would refuse jobs, as found when the program started. Other requests work nevertheless.
    trouble: Option<String>,
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The program has no state: submitted jobs go on.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response; one of these fields is set.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    ready: Option<Value>,
    /// Why jobs would be refused now.
    trouble: Option<String>,
    job: Option<String>,
    jobs: Option<HashMap<String, JobStatus>>,
    cancelled: Option<Value>,
    /// The batch system's refusal.
    refused: Option<String>,
    /// Why the request failed.
    failed: Option<String>,
}

impl Response {
    fn checked(self) -> Result<Self, ProviderError> {
        match (self.refused, self.failed) {
            (Some(reason), _) => Err(ProviderError::Refused(reason)),
            (None, Some(reason)) => Err(ProviderError::Unreachable(reason)),
            (None, None) => Ok(Self {
                refused: None,
                failed: None,
                ..self
            }),
        }
    }
}

#[derive(Deserialize)]
struct JobStatus {
    state: Phase,
    #[serde(default)]
    words: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Pending,
    Running,
    Ended,
}

impl Program {
    /// A provider that runs this command. `greeting` is its first input, the configuration.
    pub fn new(command: Vec<String>, greeting: Value) -> Self {
        Self {
            command,
            greeting,
            running: None,
        }
    }

    /// Starts the program. Returns an error if it does not start, or does not accept its configuration.
    pub fn check(&mut self) -> Result<(), ProviderError> {
        match self.running()?.trouble.take() {
            Some(reason) => Err(ProviderError::Refused(reason)),
            None => Ok(()),
        }
    }

    fn running(&mut self) -> Result<&mut RunningProgram, ProviderError> {
        if self.running.is_none() {
            let mut running = self.start()?;
            let response = exchange(&mut running, &self.greeting)?;
            if let Some(reason) = response.failed {
                return Err(ProviderError::Refused(reason));
            }
            let response = response.checked()?;
            expected(response.ready)?;
            running.trouble = response.trouble;
            self.running = Some(running);
        }
        let none = || ProviderError::Unreachable("it did not start".into());
        self.running.as_mut().ok_or_else(none)
    }

    fn start(&self) -> Result<RunningProgram, ProviderError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(ProviderError::Unreachable("no provider program is configured".into()));
        };
        let failed = |what: &str| ProviderError::Unreachable(format!("{program}: {what}"));
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = umask::restore_for(&mut command)
            .spawn()
            .map_err(|error| failed(&format!("it cannot be started: {error}")))?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no standard input or output"));
        };
        let (sender, responses) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("dayfly-provider".into()).spawn(read);
        let running = RunningProgram {
            child,
            requests,
            responses,
            trouble: None,
        };
        thread.map_err(|error| failed(&format!("no thread to read its output: {error}")))?;
        Ok(running)
    }

    fn request(&mut self, request: &Value) -> Result<Response, ProviderError> {
        match exchange(self.running()?, request) {
            Ok(response) => response.checked(),
            Err(trouble) => {
                // A late response would be taken for the response to the next request.
                self.running = None;
                Err(trouble)
            }
        }
    }
}

fn exchange(running: &mut RunningProgram, request: &Value) -> Result<Response, ProviderError> {
    let gone = |error: &dyn std::fmt::Display| ProviderError::Unreachable(format!("its program has ended: {error}"));
    let line = format!("{request}\n");
    let written = running.requests.write_all(line.as_bytes());
    written
        .and_then(|()| running.requests.flush())
        .map_err(|error| gone(&error))?;
    let response = running
        .responses
        .recv_timeout(RESPONSE_DEADLINE)
        .map_err(|error| gone(&error))?;
    serde_json::from_str(&response)
        .map_err(|error| ProviderError::Unreachable(format!("its program sent an invalid response: {error}")))
}

fn expected<T>(response: Option<T>) -> Result<T, ProviderError> {
    response.ok_or_else(|| ProviderError::Unreachable("its program responded to another request".into()))
}

impl Provider for Program {
    fn submit(&mut self, job: &Job) -> Result<String, ProviderError> {
        let Job {
            name,
            command,
            nodes,
            walltime_s,
        } = job;
        let request =
            json!({ "submit": { "name": name, "command": command, "nodes": nodes, "walltime_s": walltime_s } });
        expected(self.request(&request)?.job)
    }

    fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, ProviderError> {
        let states = expected(self.request(&json!({ "status": jobs }))?.jobs)?;
        let state = |JobStatus { state, words }| match state {
            Phase::Pending => JobState::Live(BlockState::Pending, words),
            Phase::Running => JobState::Live(BlockState::Running, words),
            Phase::Ended => JobState::Ended(words),
        };
        Ok(states.into_iter().map(|(job, status)| (job, state(status))).collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), ProviderError> {
        expected(self.request(&json!({ "cancel": jobs }))?.cancelled).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider program with these responses, one for each request.
    fn program_with_responses(words: &[&str]) -> Program {
        let script: String = words.iter().map(|word| format!("read q; echo '{word}'\n")).collect();
        Program::new(vec!["/bin/sh".into(), "-c".into(), script], json!({}))
    }

    #[test]
    fn refusal_keeps_the_batch_systems_message() {
        let mut program = program_with_responses(&[
            r#"{"ready":"x","parsl":"1"}"#,
            r#"{"refused":"sbatch: no such partition"}"#,
        ]);
        let job = Job {
            name: "a".into(),
            command: "true".into(),
            nodes: 1,
            walltime_s: 60,
        };
        let refused = ProviderError::Refused("sbatch: no such partition".into());
        assert_eq!(program.submit(&job), Err(refused));
    }

    #[test]
    fn program_is_restarted_after_end_or_invalid_response() {
        let mut program = program_with_responses(&[r#"{"ready":"x"}"#, "no JSON"]);
        for _ in 0..2 {
            let Err(ProviderError::Unreachable(words)) = program.status(&[]) else {
                panic!("an answer");
            };
            assert!(words.contains("invalid response"), "{words}");
        }
        let mut program = program_with_responses(&[r#"{"failed":"no Parsl here"}"#]);
        assert_eq!(program.check(), Err(ProviderError::Refused("no Parsl here".into())));
    }

    #[test]
    fn states_are_reported_by_job() {
        let states = r#"{"jobs":{"1":{"state":"pending","words":"Resources"},"2":{"state":"ended"}}}"#;
        let mut program = program_with_responses(&[r#"{"ready":"x"}"#, states]);
        let states = program.status(&["1".into(), "2".into()]).expect("states");
        assert_eq!(states["1"], JobState::Live(BlockState::Pending, "Resources".into()));
        assert_eq!(states["2"], JobState::Ended(String::new()));
    }
}
