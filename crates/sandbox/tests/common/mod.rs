//! Helpers of sandbox tests.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use dayfly_sandbox::isolation::{Base, make_settings};
use dayfly_sandbox::{Child, Isolation, Program, SandboxError, Spawner};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{WaitId, WaitIdOptions};

/// A directory with everything that a sandbox needs from its node.
#[derive(Debug)]
pub struct Workspace {
    pub dir: tempfile::TempDir,
    pub spawner: Spawner,
}

impl Workspace {
    /// A new place.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["stage", "code"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        make_settings(&dir.path().join("settings")).unwrap();
        fs::write(dir.path().join("code/abc"), "code").unwrap();
        Self {
            dir,
            spawner: Spawner::new().unwrap(),
        }
    }

    /// The default isolation of a process.
    pub fn isolation(&self) -> Isolation {
        Isolation {
            stage: self.dir.path().join("stage"),
            code: self.dir.path().join("code"),
            base: Base::Host {
                settings: self.dir.path().join("settings"),
            },
            shown: Vec::new(),
            network: false,
            scratch_bytes: 16 << 20,
            most_tasks: 0,
            number: 7,
            group: None,
        }
    }

    /// Starts a program.
    pub fn start(&self, isolation: Isolation, program: &str, arguments: &[&str]) -> Result<Child, SandboxError> {
        self.spawner.spawn(Program {
            program: program.into(),
            otherwise: None,
            arguments: arguments.iter().map(Into::into).collect(),
            environment: Vec::new(),
            isolation: Some(isolation),
        })
    }

    /// Runs a shell script in a sandbox to its end.
    pub fn run(&self, script: &str) -> Ended {
        self.run_in(self.isolation(), script)
    }

    /// As [`Workspace::run`], with this isolation.
    pub fn run_in(&self, isolation: Isolation, script: &str) -> Ended {
        Ended::of(self.start(isolation, "/bin/sh", &["-c", script]).unwrap())
    }

    /// Runs a Python program in a sandbox to its end.
    pub fn python(&self, text: &str) -> Ended {
        Ended::of(self.start(self.isolation(), "/usr/bin/python3", &["-c", text]).unwrap())
    }
}

/// A process that ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub output: String,
    pub errors: String,
    pub refused: Vec<String>,
}

impl Ended {
    /// Waits for its end.
    pub fn of(mut child: Child) -> Self {
        let mut refused = Vec::new();
        // A refused call waits until it is received, so receive them until the end.
        loop {
            let mut waiting = vec![PollFd::new(&child.pidfd, PollFlags::IN)];
            if let Some(watch) = &child.watch {
                waiting.push(PollFd::new(watch, PollFlags::IN));
            }
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert!(
                rustix::event::poll(&mut waiting, Some(&limit)).unwrap() > 0,
                "it does not end"
            );
            let asked = waiting.get(1).is_some_and(|fd| fd.revents().contains(PollFlags::IN));
            let ended = !waiting[0].revents().is_empty();
            drop(waiting);
            if asked {
                match child.watch.as_mut().and_then(dayfly_sandbox::Watch::refuse_next) {
                    Some(refusal) if refusal.is_hostile => refused.push(refusal.call),
                    Some(_) => {}
                    None => child.watch = None,
                }
            } else if ended {
                break;
            }
        }
        let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = status.unwrap().unwrap();
        Self {
            status: status.exit_status(),
            signal: status.terminating_signal(),
            output: text(child.output),
            errors: text(child.errors),
            refused,
        }
    }

    /// Its output. Asserts success.
    pub fn lines(&self) -> Vec<&str> {
        assert_eq!(self.status, Some(0), "{} {}", self.output, self.errors);
        self.output.lines().collect()
    }
}

fn text(pipe: OwnedFd) -> String {
    let mut text = String::new();
    let mut file = fs::File::from(pipe);
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = file.read(&mut chunk) {
        text.push_str(&String::from_utf8_lossy(&chunk[..length]));
    }
    text
}
