//! Sandboxes of isolated executors: a directory and a control group for each.

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use dayfly_protocol::ids::CodeHash;
use dayfly_sandbox::cgroup::{Controller, Group, Hierarchies, Limits};
use dayfly_sandbox::isolation::Base;
use dayfly_sandbox::{Isolation, isolation};

use crate::connector;
use crate::executors::HostAccess;

/// Most processes and threads of an isolated executor without a control group to count them. The lease is unknown when
/// this is set, so it suits the largest one.
const MAX_TASKS: u32 = 4096;

/// Makes sandboxes.
#[derive(Debug)]
pub struct SandboxFactory {
    dir: PathBuf,
    name: String,
    scratch_bytes: u64,
    next: AtomicU32,
    hierarchies: OnceLock<Arc<Hierarchies>>,
    settings: OnceLock<PathBuf>,
}

impl SandboxFactory {
    /// `name` is unique among the nodes of this host. Removes what an earlier process of the node left in `dir`.
    pub fn new(dir: PathBuf, name: String, scratch_bytes: u64) -> std::io::Result<Self> {
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make_open(&dir)?;
        make_open(&dir.join("stage"))?;
        Ok(Self {
            dir,
            name,
            scratch_bytes,
            next: AtomicU32::new(0),
            hierarchies: OnceLock::new(),
            settings: OnceLock::new(),
        })
    }

    /// Makes the hierarchies at the first use, since many nodes need none.
    pub fn hierarchies(&self) -> &Arc<Hierarchies> {
        self.hierarchies.get_or_init(|| {
            let hierarchies = Hierarchies::make(&self.name);
            for controller in hierarchies.missing() {
                tracing::warn!(
                    controller = controller.name(),
                    "this node may not use a control group controller; limits of single processes take its place"
                );
            }
            Arc::new(hierarchies)
        })
    }

    /// The `/etc` of sandboxes, made at the first use.
    fn settings(&self) -> std::io::Result<&Path> {
        if self.settings.get().is_none() {
            // If two threads get here at once, each makes one and one is kept.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let made = self.dir.join(format!("settings-{number}"));
            isolation::make_settings(&made)?;
            let _ = self.settings.set(made);
        }
        self.settings
            .get()
            .map(PathBuf::as_path)
            .ok_or_else(|| std::io::Error::other("there are no settings for sandboxes"))
    }

    /// Makes a sandbox, and the isolation for its executor.
    pub fn make(&self, host_access: &HostAccess) -> std::io::Result<(ExecutorSandbox, Isolation)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let group = Arc::new(self.hierarchies().group(&format!("sandbox-{number}"))?);
        let code = self.dir.join(format!("code-{number}"));
        make_open(&code)?;
        // Made in advance, like everything here: a lease with a parked executor does not wait for it.
        let connector_socket = match host_access.network {
            true => None,
            false => Some(connector::listen(&code)?),
        };
        let missing = self.hierarchies().missing();
        let isolation = Isolation {
            stage: self.dir.join("stage"),
            code: code.clone(),
            base: match &host_access.image {
                Some(image) => Base::Image(image.root.clone()),
                None => Base::Host {
                    settings: self.settings()?.to_path_buf(),
                },
            },
            shown: host_access.shown.clone(),
            network: host_access.network,
            scratch_bytes: self.scratch_bytes,
            most_tasks: if missing.contains(&Controller::Pids) {
                MAX_TASKS
            } else {
                0
            },
            number,
            group: Some(group.clone()),
        };
        let bounds_memory = !missing.contains(&Controller::Memory);
        let sandbox = ExecutorSandbox {
            group,
            code,
            connector_socket,
            bounds_memory,
        };
        Ok((sandbox, isolation))
    }
}

/// The sandbox of one executor. Dropping it ends the processes left in it.
#[derive(Debug)]
pub struct ExecutorSandbox {
    group: Arc<Group>,
    code: PathBuf,
    /// The connector's socket, if the sandbox has no network.
    connector_socket: Option<OwnedFd>,
    /// Whether the memory of all its processes together can be limited.
    pub bounds_memory: bool,
}

impl ExecutorSandbox {
    /// Sets the limits of its lease.
    pub fn limit(&self, limits: &Limits) -> std::io::Result<()> {
        self.group.limit(limits)
    }

    /// Number of its processes that were killed for lack of memory.
    pub fn memory_kills(&self) -> u64 {
        self.group.memory_kills()
    }

    /// Its control groups. They cannot be removed while this is held elsewhere.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The connector's socket, if the sandbox needs one.
    pub fn connector_socket(&self) -> Option<&OwnedFd> {
        self.connector_socket.as_ref()
    }

    /// The host's directory that it sees at [`isolation::CODE_DIR`].
    pub fn code_dir(&self) -> &Path {
        &self.code
    }
}

/// Makes a directory that isolated processes, which run as another user, can enter whatever the node's umask is. The
/// state directory above keeps the host's other users out.
fn make_open(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// Shows a piece of the node's stored code to a sandbox's workers.
pub fn show_code(kept: &Path, sandbox: &Path, hash: &CodeHash) -> std::io::Result<()> {
    let name = hash.to_string();
    match std::fs::hard_link(kept.join(&name), sandbox.join(&name)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Drop for ExecutorSandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.code);
    }
}
