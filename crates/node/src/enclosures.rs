//! What stands around isolated executors: a directory and a control group for each.

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
use crate::executors::Opening;

/// Processes and threads of an isolated executor where no control group counts them: its lease is not known yet when this is
/// set, so it is for the largest that makes sense.
const MOST_TASKS: u32 = 4096;

/// Makes enclosures.
#[derive(Debug)]
pub struct Enclosures {
    dir: PathBuf,
    name: String,
    scratch_bytes: u64,
    next: AtomicU32,
    hierarchies: OnceLock<Hierarchies>,
    settings: OnceLock<PathBuf>,
}

impl Enclosures {
    /// `name` is the node's own among all of this host. What an earlier life of the node left in `dir` goes.
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

    /// Made when the first enclosure is, for many a node never needs one.
    fn hierarchies(&self) -> &Hierarchies {
        self.hierarchies.get_or_init(|| {
            let hierarchies = Hierarchies::make(&self.name);
            for controller in hierarchies.missing() {
                tracing::warn!(
                    controller = controller.name(),
                    "this node may not use a control group controller; limits of single processes take its place"
                );
            }
            hierarchies
        })
    }

    /// What sandboxes have at `/etc`, made when the first one is.
    fn settings(&self) -> std::io::Result<&Path> {
        if self.settings.get().is_none() {
            // Of two that are first at once, each makes its own and one is kept.
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

    /// An enclosure, and how its executor is to be isolated.
    pub fn make(&self, opening: &Opening) -> std::io::Result<(Enclosure, Isolation)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let group = Arc::new(self.hierarchies().group(&format!("sandbox-{number}"))?);
        let code = self.dir.join(format!("code-{number}"));
        make_open(&code)?;
        // Ahead, as all that is made here: a lease that finds it parked does not wait for it.
        let calls = match opening.network {
            true => None,
            false => Some(connector::listen(&code)?),
        };
        let missing = self.hierarchies().missing();
        let isolation = Isolation {
            stage: self.dir.join("stage"),
            code: code.clone(),
            base: match &opening.image {
                Some(image) => Base::Image(image.root.clone()),
                None => Base::Host {
                    settings: self.settings()?.to_path_buf(),
                },
            },
            shown: opening.shown.clone(),
            network: opening.network,
            scratch_bytes: self.scratch_bytes,
            most_tasks: if missing.contains(&Controller::Pids) {
                MOST_TASKS
            } else {
                0
            },
            number,
            group: Some(group.clone()),
        };
        let bounds_memory = !missing.contains(&Controller::Memory);
        let enclosure = Enclosure {
            group,
            code,
            calls,
            bounds_memory,
        };
        Ok((enclosure, isolation))
    }
}

/// What stands around one executor. Dropping it ends whatever is left inside.
#[derive(Debug)]
pub struct Enclosure {
    group: Arc<Group>,
    code: PathBuf,
    /// Where it calls for what joins groups for it, if it has no network.
    calls: Option<OwnedFd>,
    /// Whether the memory of all its processes together can be limited.
    pub bounds_memory: bool,
}

impl Enclosure {
    /// Limits it to what its lease has.
    pub fn limit(&self, limits: &Limits) -> std::io::Result<()> {
        self.group.limit(limits)
    }

    /// How many of its processes were ended because its memory was used up.
    pub fn memory_kills(&self) -> u64 {
        self.group.memory_kills()
    }

    /// The control groups of all of it. Whoever holds them longer than it is there keeps them from being removed.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The socket on which it calls for its connector, if it needs one.
    pub fn calls(&self) -> Option<&OwnedFd> {
        self.calls.as_ref()
    }

    /// The host's directory that it has at [`isolation::CODE_DIR`].
    pub fn code_dir(&self) -> &Path {
        &self.code
    }
}

/// Makes a directory that isolated processes, who are somebody else, can enter whatever the node's file creation mask is. The
/// state directory above it keeps the host's other users out.
fn make_open(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// Lets an enclosure's workers load a piece of code that the node has.
pub fn show_code(kept: &Path, enclosure: &Path, hash: &CodeHash) -> std::io::Result<()> {
    let name = hash.to_string();
    match std::fs::hard_link(kept.join(&name), enclosure.join(&name)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.code);
    }
}
