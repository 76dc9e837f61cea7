//! Whether workers can be isolated, tried with a real one, and whether control groups can limit them.

use std::os::fd::AsFd;
use std::path::Path;

use dayfly_sandbox::cgroup::{Controller, Hierarchies};
use dayfly_sandbox::isolation::{Base, make_settings};
use dayfly_sandbox::{Child, Isolation, Precaution, Program, SandboxError, Spawner, Watch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{WaitId, WaitIdOptions};

use super::{Finding, State};

/// A program of every machine that ends by itself.
const PROGRAM: &str = "/bin/true";
/// Temporary files of the tried process, in bytes.
const SCRATCH_BYTES: u64 = 1 << 20;
/// Limit for the end of the tried process.
const LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

pub fn check() -> Vec<Finding> {
    vec![isolation(), control_groups()]
}

fn isolation() -> Finding {
    const NAME: &str = "isolation";
    match tried() {
        Ok(skipped) if skipped.is_empty() => {
            Finding::works(NAME, "levels `isolated` and `container`, tried with a process")
        }
        Ok(skipped) => {
            let skipped: Vec<&str> = skipped.into_iter().map(Precaution::describe).collect();
            let found = format!("workers are isolated, without {}", skipped.join(", "));
            Finding::new(
                NAME,
                State::Limited,
                found,
                "a later kernel has it; leases work all the same",
            )
        }
        Err(error) => Finding::new(
            NAME,
            State::Limited,
            format!(
                "only level `process`, for code of the node's own tenant: {}",
                error.cause
            ),
            error.remedy,
        ),
    }
}

/// Why no process could be isolated.
struct Refusal {
    cause: String,
    remedy: &'static str,
}

impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Namespaces(error) => Self {
                cause: format!("this machine refuses user namespaces to this user ({error})"),
                remedy: "ask for user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                         kernel.apparmor_restrict_unprivileged_userns), or run the node as root",
            },
            other => Self {
                cause: other.to_string(),
                remedy: "run a later kernel, or a machine instead of a container",
            },
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self {
            cause: format!("no process could be tried: {error}"),
            remedy: "make the temporary directory writable, or name another one in TMPDIR",
        }
    }
}

/// Isolates a process as a node does. Returns what this machine lacks.
fn tried() -> Result<Vec<Precaution>, Refusal> {
    let dir = tempfile::tempdir()?;
    let place = |name: &str| dir.path().join(name);
    for name in ["stage", "code"] {
        std::fs::create_dir(place(name))?;
    }
    // The sandbox's user is another one if this process is root's.
    open_to_all(dir.path())?;
    make_settings(&place("settings"))?;
    let isolation = Isolation {
        stage: place("stage"),
        code: place("code"),
        base: Base::Host {
            settings: place("settings"),
        },
        shown: Vec::new(),
        network: false,
        scratch_bytes: SCRATCH_BYTES,
        most_tasks: 0,
        number: std::process::id(),
        group: None,
    };
    // Its end would end the process.
    let spawner = Spawner::new()?;
    let mut child = spawner.spawn(Program {
        program: PROGRAM.into(),
        otherwise: None,
        arguments: Vec::new(),
        environment: Vec::new(),
        isolation: Some(isolation),
    })?;
    wait_for(&mut child)?;
    Ok(child.skipped)
}

fn open_to_all(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))
}

/// Waits for the end of a process. Receives its refused system calls, because each of them waits for that.
fn wait_for(child: &mut Child) -> std::io::Result<()> {
    loop {
        let mut waiting = vec![PollFd::new(&child.pidfd, PollFlags::IN)];
        waiting.extend(child.watch.iter().map(|watch| PollFd::new(watch, PollFlags::IN)));
        if rustix::event::poll(&mut waiting, Some(&LIMIT))? == 0 {
            return Err(std::io::Error::other("it does not end"));
        }
        let is_over = !waiting[0].revents().is_empty();
        let is_refused = waiting.get(1).is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        drop(waiting);
        if is_over {
            break;
        }
        if !is_refused || child.watch.as_mut().and_then(Watch::refuse_next).is_none() {
            child.watch = None;
        }
    }
    let ended = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)?;
    match ended.and_then(|ended| ended.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(std::io::Error::other("it failed")),
    }
}

fn control_groups() -> Finding {
    const NAME: &str = "control groups";
    let groups = Hierarchies::make(&format!("doctor-{}", std::process::id()));
    let missing: Vec<&str> = groups.missing().into_iter().map(Controller::name).collect();
    if missing.is_empty() {
        return Finding::works(NAME, "CPU, memory and processes of workers can be limited");
    }
    Finding::new(
        NAME,
        State::Limited,
        format!(
            "this user may not use {}: limits of single processes take its place, and nothing is harvested",
            missing.join(", ")
        ),
        "run the node as root, or as a systemd service with Delegate=yes, or in `systemd-run --user --scope -p Delegate=yes`",
    )
}
