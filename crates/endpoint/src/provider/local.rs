//! The provider for this machine: a job is a process for each of its nodes.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use dayfly_protocol::endpoints::BlockState;
use dayfly_sandbox::umask;
use rustix::process::{Pid, Signal};

use super::{Job, JobState, Provider, ProviderError};

/// Runs jobs on this machine.
#[derive(Debug)]
pub struct Local {
    /// Directory of the jobs' output, `<name>.out`.
    directory: PathBuf,
    /// Children of this process, which it has to reap.
    children: HashMap<u32, Child>,
}

/// A process of a job: its id, and its start time, since an id may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct JobProcess {
    pid: u32,
    begun: u64,
}

impl std::fmt::Display for JobProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.pid, self.begun)
    }
}

impl FromStr for JobProcess {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, begun) = text.split_once('@').ok_or(())?;
        Ok(Self {
            pid: pid.parse().map_err(drop)?,
            begun: begun.parse().map_err(drop)?,
        })
    }
}

impl JobProcess {
    /// The process that has this id now; `None` if it has ended.
    fn now(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Skip the name, which may contain spaces and brackets. Then follow the state, and the start time as the
        // twentieth field.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let begun = fields.nth(18)?.parse().ok()?;
        Some(Self { pid, begun })
    }

    fn is_running(self) -> bool {
        Self::now(self.pid) == Some(self)
    }

    fn terminate(self) {
        if self.is_running()
            && let Some(group) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
    }
}

/// The processes in a job's id.
fn processes(job: &str) -> impl Iterator<Item = JobProcess> {
    job.split(',').filter_map(|process| process.parse().ok())
}

impl Local {
    /// A provider that writes the jobs' output into `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            children: HashMap::new(),
        }
    }

    fn start(&mut self, job: &Job, rank: u32) -> std::io::Result<JobProcess> {
        let path = self.directory.join(format!("{}.out", job.name));
        let output = File::options().create(true).append(true).open(path)?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &job.command])
            .env("DAYFLY_RANK", rank.to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A process group of its own, so that a signal reaches the whole job and nothing else.
            .process_group(0);
        let child = umask::restore_for(&mut command).spawn()?;
        let pid = child.id();
        // The id of an unreaped child cannot be reused.
        let process = JobProcess::now(pid).unwrap_or(JobProcess { pid, begun: 0 });
        self.children.insert(pid, child);
        Ok(process)
    }
}

impl Provider for Local {
    fn submit(&mut self, job: &Job) -> Result<String, ProviderError> {
        let mut started: Vec<JobProcess> = Vec::new();
        for rank in 0..job.nodes {
            match self.start(job, rank) {
                Ok(process) => started.push(process),
                Err(error) => {
                    started.iter().for_each(|process| process.terminate());
                    return Err(ProviderError::Refused(format!("no process can be started: {error}")));
                }
            }
        }
        let names: Vec<String> = started.iter().map(JobProcess::to_string).collect();
        Ok(names.join(","))
    }

    fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, ProviderError> {
        let mut ends = HashMap::new();
        self.children.retain(|pid, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ends.insert(*pid, status.to_string());
                false
            }
            Err(_) => false,
        });
        let state = |job: &String| {
            if processes(job).any(JobProcess::is_running) {
                return JobState::Live(BlockState::Running, String::new());
            }
            let words: Vec<_> = processes(job)
                .filter_map(|process| ends.get(&process.pid).cloned())
                .collect();
            JobState::Ended(words.join(", "))
        };
        Ok(jobs.iter().map(|job| (job.clone(), state(job))).collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), ProviderError> {
        jobs.iter()
            .flat_map(|job| processes(job))
            .for_each(JobProcess::terminate);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn job(command: &str) -> Job {
        Job {
            name: "job".into(),
            command: command.into(),
            nodes: 2,
            walltime_s: 0,
        }
    }

    fn wait_until(provider: &mut Local, job: &str, wanted: impl Fn(&JobState) -> bool) -> JobState {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let state = provider.status(&[job.to_owned()]).expect("a state").remove(job);
            let state = state.expect("that of the job");
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < until, "{state:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn job_runs_once_per_node_until_cancelled() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut first = Local::new(directory.path().into());
        let name = first
            .submit(&job("echo rank $DAYFLY_RANK; exec sleep 60"))
            .expect("a job");
        let said = || std::fs::read_to_string(directory.path().join("job.out")).unwrap_or_default();
        let both = |_: &JobState| said().contains("rank 0") && said().contains("rank 1");
        assert!(matches!(wait_until(&mut first, &name, both), JobState::Live(..)));
        // A later provider knows the job too.
        let mut second = Local::new(directory.path().into());
        second.cancel(std::slice::from_ref(&name)).expect("told");
        let ended = |state: &JobState| matches!(state, JobState::Ended(_));
        let JobState::Ended(words) = wait_until(&mut first, &name, ended) else {
            panic!("it runs");
        };
        assert!(words.contains("signal: 15"), "{words}");
        assert!(matches!(wait_until(&mut second, &name, ended), JobState::Ended(_)));
    }

    #[test]
    fn reused_process_id_is_not_a_job() {
        let mut provider = Local::new(std::env::temp_dir());
        let other = format!("{}@1", std::process::id());
        let state = provider
            .status(std::slice::from_ref(&other))
            .expect("a state")
            .remove(&other);
        assert!(matches!(state, Some(JobState::Ended(_))));
        provider.cancel(&[other, "nonsense".into()]).expect("nothing to tell");
    }
}
