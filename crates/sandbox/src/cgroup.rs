//! Limits on a whole sandbox, by control groups of version 1 or 2, whichever has the controllers.
//!
//! A node makes one group for itself beneath the group that it was started in, and beneath that one for each sandbox.
//! Controllers that it may not use are reported as missing. Then only the limits of single processes bound a sandbox.

mod counters;
mod error;
mod memory;
mod mounts;
mod tree;
mod waiting;
mod worker;

use std::fs::File;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::counters::Reading;
pub use self::error::GroupError;
pub use self::memory::MemoryKills;
use self::mounts::{DAEMON_LEAF, mounted_groups};
use self::tree::{make_unified, remove_stale, remove_tree, write};
pub use self::worker::{Weight, WorkerGroup};

/// Period over which processor time is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// Group of a sandbox's processes without a group of their own, in hierarchies of version 2: there, a group with groups
/// below it that have controllers may have no processes.
const SANDBOX_LEAF: &str = "main";
/// Age after which a group without processes counts as left by a dead node: a living one fills its groups at once.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// Limits of a whole sandbox. 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Cores' worth of processor time, in thousandths.
    pub milli_cores: u64,
    /// Memory in bytes, including temporary files.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub tasks: u32,
}

/// A controller that bounds a sandbox, or measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Processor time.
    Cpu,
    /// Processor time that was used: a controller of its own in version 1, and part of `cpu` in version 2.
    Cpuacct,
    /// Memory.
    Memory,
    /// Processes.
    Pids,
}

const CONTROLLERS: [Controller; 4] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Memory,
    Controller::Pids,
];
/// Those with limits of a sandbox.
const LIMITING: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

impl Controller {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// The node's own group in each hierarchy that it may use. Dropping it removes them.
#[derive(Debug)]
pub struct Hierarchies {
    bases: Vec<Base>,
}

/// A group in one hierarchy.
#[derive(Debug)]
struct Base {
    path: PathBuf,
    controllers: Vec<Controller>,
    unified: bool,
    /// Where processes go that leave a group below.
    home: PathBuf,
}

impl Base {
    fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }
}

impl Hierarchies {
    /// Makes the node's groups, and ends the processes that a former node of that name left in them.
    pub fn make(name: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut bases: Vec<Base> = Vec::new();
        for place in mounted_groups(&mounts, &own) {
            let mut controllers = place.controllers;
            controllers.retain(|controller| bases.iter().all(|base| !base.controllers.contains(controller)));
            if controllers.is_empty() {
                continue;
            }
            let path = place.path.join(format!("dayfly-{name}"));
            remove_tree(&path);
            if !place.unified {
                remove_stale(&place.path, STALE_AFTER);
            }
            let made = if place.unified {
                make_unified(&place.path, &path, &mut controllers)
            } else {
                std::fs::create_dir(&path)
            };
            match made {
                Ok(()) if !controllers.is_empty() => bases.push(Base {
                    path,
                    controllers,
                    unified: place.unified,
                    home: match place.unified {
                        true => place.path.join(DAEMON_LEAF),
                        false => place.path,
                    },
                }),
                _ => remove_tree(&path),
            }
        }
        Self { bases }
    }

    /// Controllers that this node may not use.
    pub fn missing(&self) -> Vec<Controller> {
        let mut missing = LIMITING.to_vec();
        missing.retain(|controller| !self.has(*controller));
        missing
    }

    fn has(&self, controller: Controller) -> bool {
        self.bases.iter().any(|base| base.has(controller))
    }

    /// Whether the use of single workers can be measured and limited. Otherwise, returns a sentence that says why not.
    pub fn check_workers(&self) -> std::result::Result<(), String> {
        let counts = |base: &Base| base.has(Controller::Cpuacct) || base.unified && base.has(Controller::Cpu);
        let mut missing: Vec<&str> = [Controller::Cpu, Controller::Memory]
            .into_iter()
            .filter(|controller| !self.has(*controller))
            .map(Controller::name)
            .collect();
        if !self.bases.iter().any(counts) && self.has(Controller::Cpu) {
            missing.push(Controller::Cpuacct.name());
        }
        match missing[..] {
            [] => Ok(()),
            _ => Err(format!(
                "This node may not make control groups with {}, so it cannot measure single workers: run it as root, or let \
                 the service manager delegate these controllers to it (Delegate=yes in a systemd unit).",
                missing.join(", ")
            )),
        }
    }

    /// Makes a group for one sandbox.
    pub fn group(&self, name: &str) -> Result<Group> {
        let mut group = Group {
            name: name.into(),
            parts: Vec::new(),
            kills: Arc::default(),
            memory_bytes: AtomicU64::new(0),
        };
        // A hierarchy that only measures gets groups of workers, which no cold start waits for.
        let limits = |base: &&Base| LIMITING.iter().any(|controller| base.has(*controller));
        for base in self.bases.iter().filter(limits) {
            let path = base.path.join(name);
            let home = match base.unified {
                true => path.join(SANDBOX_LEAF),
                false => path.clone(),
            };
            // Another node may have removed our empty group as a leftover.
            std::fs::create_dir_all(&home)?;
            group.parts.push(Base {
                path,
                controllers: base.controllers.clone(),
                unified: base.unified,
                home,
            });
        }
        Ok(group)
    }

    /// Makes a group for one worker, beneath its sandbox's group, or beneath the node's without a sandbox. `name` is
    /// unique in the node.
    pub fn worker_group(&self, name: &str, sandbox: Option<&Group>) -> std::result::Result<WorkerGroup, GroupError> {
        let measures = [Controller::Cpu, Controller::Cpuacct, Controller::Memory];
        let above: Vec<&Base> = self
            .bases
            .iter()
            .filter(|base| measures.iter().any(|controller| base.has(*controller)))
            .map(|base| {
                let mut parts = sandbox.into_iter().flat_map(|sandbox| &sandbox.parts);
                parts.find(|part| part.path.starts_with(&base.path)).unwrap_or(base)
            })
            .collect();
        let name = sandbox.map_or_else(|| name.to_owned(), |sandbox| format!("{}.{name}", sandbox.name));
        WorkerGroup::make(&name, &above, sandbox.map(|sandbox| Arc::clone(&sandbox.kills)))
    }

    /// Sets the weight of everything below this node against its siblings.
    pub fn weigh(&self, weight: Weight) -> std::result::Result<(), GroupError> {
        worker::weigh_all(&self.bases, weight)
    }
}

impl Drop for Hierarchies {
    fn drop(&mut self) {
        for base in &self.bases {
            remove_tree(&base.path);
        }
    }
}

/// The groups of one sandbox. Dropping it ends the processes in them and removes them.
#[derive(Debug)]
pub struct Group {
    name: String,
    parts: Vec<Base>,
    kills: Arc<Kills>,
    /// Its limit of memory, without what its workers borrowed.
    memory_bytes: AtomicU64,
}

/// Processes that the kernel killed for lack of memory in groups below a sandbox's that are gone.
#[derive(Debug, Default)]
struct Kills {
    retired: Mutex<u64>,
}

impl Group {
    /// Files to which a process writes "0" to join.
    pub(crate) fn procs_files(&self) -> Result<Vec<File>> {
        let open = |part: &Base| File::options().write(true).open(part.home.join("cgroup.procs"));
        self.parts.iter().map(open).collect()
    }

    /// Adds a process that works for the sandbox from outside.
    pub fn admit(&self, pid: i32) -> Result<()> {
        for part in &self.parts {
            write(&part.home.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Sets the limits.
    pub fn limit(&self, limits: &Limits) -> Result<()> {
        self.memory_bytes.store(limits.memory_bytes, Ordering::Relaxed);
        for part in &self.parts {
            for controller in &part.controllers {
                for (file, text) in settings(*controller, part.unified, limits) {
                    match write(&part.path.join(file), &text) {
                        // Kernels without swap accounting have no limit on it.
                        Err(error) if file.contains("sw") && error.kind() == std::io::ErrorKind::NotFound => {}
                        Err(error) if file.contains("sw") && error.kind() == std::io::ErrorKind::PermissionDenied => {}
                        result => result.map_err(|error| {
                            Error::new(error.kind(), format!("{}: {error}", part.path.join(file).display()))
                        })?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Changes its limit of processor time to thousandths of a core, at least 10; 0 removes it. In version 1, it must be
    /// at least that of each group below it.
    pub fn limit_cpu(&self, milli_cores: u64) -> std::result::Result<(), GroupError> {
        worker::limit_cpu_of(&self.parts, milli_cores)
    }

    /// Sets its weight against other sandboxes.
    pub fn weigh(&self, weight: Weight) -> std::result::Result<(), GroupError> {
        worker::weigh_all(&self.parts, weight)
    }

    /// Number of its processes that the kernel killed for lack of memory.
    pub fn memory_kills(&self) -> u64 {
        let Some(part) = self.parts.iter().find(|part| part.has(Controller::Memory)) else {
            return 0;
        };
        if part.unified {
            return kills_of(&part.path.join("memory.events"));
        }
        // In version 1, a kill is counted only in the group of the process. No group may end meanwhile.
        let retired = self.kills.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let below = tree::groups_in(&part.path).map(|worker| kills_of(&worker.path().join(OOM_CONTROL)));
        below.fold(
            kills_of(&part.path.join(OOM_CONTROL)).saturating_add(*retired),
            u64::saturating_add,
        )
    }
}

/// File with the number of memory kills in version 1.
const OOM_CONTROL: &str = "memory.oom_control";

/// The counter of memory kills in a file; 0 without one.
fn kills_of(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    counters::field(&text, "oom_kill").unwrap_or(0)
}

impl Drop for Group {
    fn drop(&mut self) {
        for part in &self.parts {
            remove_tree(&part.path);
        }
    }
}

const CPU_MAX: &str = "cpu.max";
const CFS_PERIOD: &str = "cpu.cfs_period_us";
const CFS_QUOTA: &str = "cpu.cfs_quota_us";

/// File names and values of a controller's limits.
fn settings(controller: Controller, unified: bool, limits: &Limits) -> Vec<(&'static str, String)> {
    let most = |value: u64, none: &str| {
        if value == 0 {
            none.to_string()
        } else {
            value.to_string()
        }
    };
    let quota_us = limits.milli_cores.saturating_mul(PERIOD_US) / 1000;
    match (controller, unified) {
        (Controller::Cpu, true) => vec![(CPU_MAX, format!("{} {PERIOD_US}", most(quota_us, "max")))],
        (Controller::Cpu, false) => vec![(CFS_PERIOD, PERIOD_US.to_string()), (CFS_QUOTA, most(quota_us, "-1"))],
        (Controller::Memory, true) => vec![
            ("memory.max", most(limits.memory_bytes, "max")),
            ("memory.swap.max", "0".into()),
        ],
        (Controller::Memory, false) => vec![
            ("memory.limit_in_bytes", most(limits.memory_bytes, "-1")),
            ("memory.memsw.limit_in_bytes", most(limits.memory_bytes, "-1")),
        ],
        (Controller::Cpuacct, _) => Vec::new(),
        (Controller::Pids, _) => vec![("pids.max", most(u64::from(limits.tasks), "max"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_controllers_are_named_in_a_sentence() {
        let base = |controllers: &[Controller], unified| Base {
            path: PathBuf::new(),
            controllers: controllers.to_vec(),
            unified,
            home: PathBuf::new(),
        };
        let why = |bases: Vec<Base>| std::mem::ManuallyDrop::new(Hierarchies { bases }).check_workers();
        let nothing = why(Vec::new()).unwrap_err();
        assert!(
            nothing.contains("with cpu, memory,") && nothing.ends_with('.'),
            "{nothing}"
        );
        let split = [Controller::Cpu, Controller::Memory];
        let uncounted = why(vec![base(&split, false)]).unwrap_err();
        assert!(uncounted.contains("with cpuacct,"), "{uncounted}");
        assert_eq!(why(vec![base(&split, true)]), Ok(()));
        assert_eq!(
            why(vec![base(&split, false), base(&[Controller::Cpuacct], false)]),
            Ok(())
        );
    }

    #[test]
    fn next_node_removes_groups_of_a_killed_one() {
        let left = Hierarchies::make("test-left");
        let Some(base) = left
            .bases
            .iter()
            .find(|base| !base.unified)
            .map(|base| base.path.clone())
        else {
            return;
        };
        std::mem::forget(left.group("sandbox-1").unwrap());
        std::mem::forget(left);
        let place = base.parent().unwrap();
        remove_stale(place, Duration::from_secs(3600));
        assert!(base.join("sandbox-1").is_dir(), "young ones may be somebody's");
        remove_stale(place, Duration::ZERO);
        assert!(!base.exists());
        remove_tree(&base);
        drop(Hierarchies::make("test-left"));
    }

    #[test]
    fn limits_are_written_in_each_version_format() {
        let limits = Limits {
            milli_cores: 1500,
            memory_bytes: 1 << 30,
            tasks: 64,
        };
        assert_eq!(
            settings(Controller::Cpu, true, &limits),
            [("cpu.max", "150000 100000".to_string())]
        );
        assert_eq!(
            settings(Controller::Cpu, false, &limits)[1],
            ("cpu.cfs_quota_us", "150000".to_string())
        );
        assert_eq!(
            settings(Controller::Pids, false, &Limits::default()),
            [("pids.max", "max".to_string())]
        );
        assert_eq!(
            settings(Controller::Memory, false, &Limits::default())[0],
            ("memory.limit_in_bytes", "-1".to_string())
        );
    }
}
