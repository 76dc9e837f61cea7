//! Limits on a whole sandbox, by control groups of version 1 or 2, whichever has the controllers.
//!
//! A node makes one group for itself beneath the group that it was started in, and beneath that one for each sandbox.
//! Controllers that it may not use are reported as missing. Then only the limits of single processes bound a sandbox.

use std::fs::File;
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Period over which processor time is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// Tries to remove a group whose last process is dying.
const REMOVE_TRIES: u32 = 200;
/// Group of the node's own daemons, in hierarchies of version 2.
const DAEMON_LEAF: &str = "dayfly-daemons";
/// Most passes to move processes that fork meanwhile.
const MOVE_PASSES: u32 = 20;
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

/// A controller that bounds a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Processor time.
    Cpu,
    /// Memory.
    Memory,
    /// Processes.
    Pids,
}

const CONTROLLERS: [Controller; 3] = [Controller::Cpu, Controller::Memory, Controller::Pids];

impl Controller {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
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

#[derive(Debug)]
struct Base {
    path: PathBuf,
    controllers: Vec<Controller>,
    unified: bool,
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
                }),
                _ => remove_tree(&path),
            }
        }
        Self { bases }
    }

    /// Controllers that this node may not use.
    pub fn missing(&self) -> Vec<Controller> {
        let has = |controller: &Controller| self.bases.iter().any(|base| base.controllers.contains(controller));
        CONTROLLERS.into_iter().filter(|controller| !has(controller)).collect()
    }

    /// Makes a group for one sandbox.
    pub fn group(&self, name: &str) -> Result<Group> {
        let mut group = Group { parts: Vec::new() };
        for base in &self.bases {
            let path = base.path.join(name);
            // Another node may have removed our empty group as a leftover.
            std::fs::create_dir_all(&path)?;
            group.parts.push(Base {
                path,
                controllers: base.controllers.clone(),
                unified: base.unified,
            });
        }
        Ok(group)
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
    parts: Vec<Base>,
}

impl Group {
    /// Files to which a process writes "0" to join.
    pub(crate) fn procs_files(&self) -> Result<Vec<File>> {
        let open = |part: &Base| File::options().write(true).open(part.path.join("cgroup.procs"));
        self.parts.iter().map(open).collect()
    }

    /// Adds a process that works for the sandbox from outside.
    pub fn admit(&self, pid: i32) -> Result<()> {
        for part in &self.parts {
            write(&part.path.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Sets the limits.
    pub fn limit(&self, limits: &Limits) -> Result<()> {
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

    /// Number of its processes that the kernel killed for lack of memory.
    pub fn memory_kills(&self) -> u64 {
        let Some(part) = self
            .parts
            .iter()
            .find(|part| part.controllers.contains(&Controller::Memory))
        else {
            return 0;
        };
        let file = if part.unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = std::fs::read_to_string(part.path.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for part in &self.parts {
            remove_tree(&part.path);
        }
    }
}

/// File names and values of a controller's limits.
fn settings(controller: Controller, unified: bool, limits: &Limits) -> Vec<(&'static str, String)> {
    let most = |value: u64, none: &str| {
        if value == 0 {
            none.to_string()
        } else {
            value.to_string()
        }
    };
    let quota_us = limits.milli_cores * PERIOD_US / 1000;
    match (controller, unified) {
        (Controller::Cpu, true) => vec![("cpu.max", format!("{} {PERIOD_US}", most(quota_us, "max")))],
        (Controller::Cpu, false) => vec![
            ("cpu.cfs_period_us", PERIOD_US.to_string()),
            ("cpu.cfs_quota_us", most(quota_us, "-1")),
        ],
        (Controller::Memory, true) => vec![
            ("memory.max", most(limits.memory_bytes, "max")),
            ("memory.swap.max", "0".into()),
        ],
        (Controller::Memory, false) => vec![
            ("memory.limit_in_bytes", most(limits.memory_bytes, "-1")),
            ("memory.memsw.limit_in_bytes", most(limits.memory_bytes, "-1")),
        ],
        (Controller::Pids, _) => vec![("pids.max", most(u64::from(limits.tasks), "max"))],
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

/// Version 2 permits no group with processes of its own to enable controllers. So the node moves into a group beside
/// its sandboxes, with everything that it has started before. That works if no other process is in the group that it
/// was started in, as under a service manager that delegates.
fn make_unified(own: &Path, path: &Path, controllers: &mut Vec<Controller>) -> Result<()> {
    std::fs::create_dir(path)?;
    let seat = own.join(DAEMON_LEAF);
    match std::fs::create_dir(&seat) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    move_to_leaf(own, &seat)?;
    let hand_out = |group: &Path, controller: &Controller| {
        write(
            &group.join("cgroup.subtree_control"),
            &format!("+{}", controller.name()),
        )
        .is_ok()
    };
    controllers.retain(|controller| hand_out(own, controller) && hand_out(path, controller));
    Ok(())
}

/// Moves this process and its descendants from one group to another.
fn move_to_leaf(own: &Path, seat: &Path) -> Result<()> {
    let door = seat.join("cgroup.procs");
    write(&door, "0")?;
    for _ in 0..MOVE_PASSES {
        let listed = std::fs::read_to_string(own.join("cgroup.procs"))?;
        let ours = listed.lines().filter(|pid| is_below_us(pid));
        // A process that was forked meanwhile is found by the next pass; one that has ended needs no move.
        let moved = ours.filter(|pid| write(&door, pid).is_ok()).count();
        if moved == 0 {
            break;
        }
    }
    Ok(())
}

/// Whether this process is an ancestor of another.
fn is_below_us(pid: &str) -> bool {
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name, in parentheses, may contain anything.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_string();
        (parent != "0").then_some(parent)
    };
    let own = std::process::id().to_string();
    std::iter::successors(parent(pid), |pid| parent(pid)).any(|pid| pid == own)
}

/// Removes empty groups of other nodes that are older than `older`. A killed node could not remove them, and may never
/// return under its name. The kernel refuses to remove a group with processes.
fn remove_stale(place: &Path, older: Duration) {
    let old = |entry: &std::fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= older))
    };
    let entries = |path: &Path| {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| old(entry))
    };
    for node in entries(place).filter(|entry| entry.file_name().to_string_lossy().starts_with("dayfly-")) {
        for sandbox in entries(&node.path()) {
            let _ = std::fs::remove_dir(sandbox.path());
        }
        let _ = std::fs::remove_dir(node.path());
    }
}

/// Ends all processes in a group, and removes it with the groups below.
fn remove_tree(path: &Path) {
    if !path.is_dir() {
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    for _ in 0..REMOVE_TRIES {
        if std::fs::remove_dir(path).is_ok() || !path.is_dir() {
            return;
        }
        let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in text
            .lines()
            .filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A mount below which groups could be made.
#[derive(Debug, PartialEq, Eq)]
struct MountedGroup {
    path: PathBuf,
    controllers: Vec<Controller>,
    unified: bool,
}

/// The mounts with this process's groups, from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn mounted_groups(mounts: &str, own: &str) -> Vec<MountedGroup> {
    let own_path = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            wanted(controllers).then_some(path)
        })
    };
    let mut places = Vec::new();
    for line in mounts.lines() {
        // ... root mount-point options ... - type source super-options
        let Some((head, tail)) = line.split_once(" - ") else {
            continue;
        };
        let head: Vec<&str> = head.split(' ').collect();
        let tail: Vec<&str> = tail.split(' ').collect();
        let ([_, _, _, root, at, ..], [kind, _, options]) = (head.as_slice(), tail.as_slice()) else {
            continue;
        };
        let (path, named, unified) = match *kind {
            "cgroup2" => (own_path(&str::is_empty), None, true),
            "cgroup" => {
                let named: Vec<&str> = options.split(',').collect();
                let ours = |listed: &str| listed.split(',').any(|one| !one.is_empty() && named.contains(&one));
                (own_path(&ours), Some(named.clone()), false)
            }
            _ => continue,
        };
        let Some(path) = path else { continue };
        // If an earlier node of this process, or its starter, has moved it: sandboxes are beside that group.
        let path = path
            .strip_suffix(DAEMON_LEAF)
            .map_or(path, |above| above.trim_end_matches('/'));
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        let path = Path::new(at).join(below.trim_start_matches('/'));
        let named = named.map_or_else(
            || {
                let text = std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(str::to_string).collect()
            },
            |named| named.into_iter().map(str::to_string).collect::<Vec<_>>(),
        );
        let controllers = CONTROLLERS
            .into_iter()
            .filter(|controller| named.iter().any(|name| name == controller.name()))
            .collect::<Vec<_>>();
        if !controllers.is_empty() {
            places.push(MountedGroup {
                path,
                controllers,
                unified,
            });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_groups_are_found_below_own_group() {
        let mounts = "\
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 /box /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
33 24 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd";
        let own = "9:pids:/box/inner\n4:memory:/a/b\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n";
        let place = |path: &str, controller| MountedGroup {
            path: path.into(),
            controllers: vec![controller],
            unified: false,
        };
        assert_eq!(
            mounted_groups(mounts, own),
            [
                place("/sys/fs/cgroup/memory/a/b", Controller::Memory),
                place("/sys/fs/cgroup/cpu,cpuacct/", Controller::Cpu),
                place("/sys/fs/cgroup/pids/inner", Controller::Pids),
            ]
        );
    }

    #[test]
    fn no_group_is_found_without_mounts() {
        assert_eq!(mounted_groups("", "0::/\n"), []);
        assert_eq!(
            mounted_groups("nonsense - cgroup\n1 2 3 - cgroup cgroup rw,cpu", "x"),
            []
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
