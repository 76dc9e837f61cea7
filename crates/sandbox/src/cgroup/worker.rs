//! Groups of single workers: what one uses, and what it may use.

use std::sync::{Arc, PoisonError};

use super::counters::{CounterFile, CpuCounters, MemoryCounters, part_of};
use super::tree::{MOVE_PASSES, REMOVE_TRIES, hand_down, remove_emptied, write};
use super::waiting::Waiting;
use super::{
    Base, CFS_PERIOD, CFS_QUOTA, CPU_MAX, Controller, GroupError, Kills, Limits, OOM_CONTROL, PERIOD_US, Reading,
    kills_of, settings,
};

/// Shortest quota that the kernel accepts, in microseconds of each period.
const MIN_QUOTA_US: u64 = 1_000;
/// Tries to remove a group without waiting.
const LEAVE_TRIES: u32 = 3;
/// Most descendants of a worker that are moved with it.
const MAX_DESCENDANTS: usize = 4096;
/// Weight of a group of version 1 that has the default weight of version 2.
const DEFAULT_SHARES: u64 = 1024;

/// The weight of a group against its siblings while they compete for cores. A process without a group has 100, as a
/// group has by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    value: u64,
    /// Whether it gets only what its siblings leave.
    is_idle: bool,
}

impl Weight {
    /// That of one core, and of a process without a group.
    pub const ONE_CORE: u64 = 100;

    /// A weight, limited to what the kernel accepts in both versions: 1 to 10,000.
    pub fn new(weight: u64) -> Self {
        Self {
            value: weight.clamp(1, 10_000),
            is_idle: false,
        }
    }

    /// The weight of a group that gets what others leave. The kernel then runs a sibling that wakes at once, and does
    /// not wait for the end of a time slice. Kernels before 5.15 have no such groups. There it has a hundredth of the
    /// weight of a group that owns these thousandths of a core.
    pub fn below_others(milli_cores: u64) -> Self {
        Self {
            is_idle: true,
            ..Self::new(Self::of_cores(milli_cores).value / 100)
        }
    }

    /// The weight of several groups together. They get what others leave if all of them do.
    pub fn sum(weights: impl IntoIterator<Item = Self>) -> Self {
        let (mut value, mut is_idle) = (0_u64, true);
        for weight in weights {
            value = value.saturating_add(weight.value);
            is_idle &= weight.is_idle;
        }
        Self {
            is_idle: is_idle && value > 0,
            ..Self::new(value)
        }
    }

    /// The weight of a group that owns these thousandths of a core.
    pub fn of_cores(milli_cores: u64) -> Self {
        Self::new(milli_cores.saturating_mul(Self::ONE_CORE) / 1000)
    }
}

/// The groups of one worker. Dropping it moves the processes in them to where they were, and removes the groups.
#[derive(Debug)]
pub struct WorkerGroup {
    pub(super) parts: Vec<Base>,
    cpu: CpuCounters,
    memory: MemoryCounters,
    waiting: Waiting,
    /// Those of its sandbox.
    kills: Option<Arc<Kills>>,
}

impl WorkerGroup {
    /// Makes groups beneath those of a sandbox or node.
    pub(super) fn make(name: &str, above: &[&Base], kills: Option<Arc<Kills>>) -> Result<Self, GroupError> {
        let mut made = Made(Vec::new());
        for base in above {
            let path = base.path.join(name);
            if base.unified {
                for controller in &base.controllers {
                    hand_down(&base.path, *controller);
                }
            }
            std::fs::create_dir_all(&path).map_err(|error| GroupError::of(&path, error))?;
            made.0.push(Base {
                path,
                controllers: base.controllers.clone(),
                unified: base.unified,
                home: base.home.clone(),
            });
        }
        let (cpu, memory) = (CpuCounters::open(&made.0)?, MemoryCounters::open(&made.0)?);
        let waiting = Waiting::open(&made.0)?;
        Ok(Self {
            parts: std::mem::take(&mut made.0),
            cpu,
            memory,
            waiting,
            kills,
        })
    }

    /// Moves a worker with its threads and descendants into its groups. What they have allocated before stays charged
    /// to where they were, and is added to readings as long as the worker can have it.
    pub fn admit(&mut self, pid: u32) -> Result<(), GroupError> {
        self.memory.bring(pid);
        for part in &self.parts {
            let door = part.path.join("cgroup.procs");
            write(&door, &pid.to_string()).map_err(|error| GroupError::of(&door, error))?;
        }
        let mut moved = vec![pid];
        for _ in 0..MOVE_PASSES {
            let mut below = descendants(pid);
            below.retain(|found| !moved.contains(found));
            if below.is_empty() {
                break;
            }
            for process in below {
                for part in &self.parts {
                    // A process that has just ended needs no move.
                    let _ = write(&part.path.join("cgroup.procs"), &process.to_string());
                }
                moved.push(process);
            }
        }
        Ok(())
    }

    /// Reads its counters and memory.
    pub fn read(&mut self) -> Result<Reading, GroupError> {
        let mut reading = Reading::default();
        self.cpu.read(&mut reading)?;
        self.memory.read(&mut reading)?;
        reading.waiting_ns = self.waiting.read()?;
        Ok(reading)
    }

    /// The processor time that it has used, in nanoseconds.
    pub fn read_cpu(&self) -> Result<u64, GroupError> {
        let mut reading = Reading::default();
        self.cpu.read(&mut reading)?;
        Ok(reading.cpu_ns)
    }

    /// Limits its processor time to thousandths of a core, at least 10; 0 removes the limit.
    pub fn limit_cpu(&self, milli_cores: u64) -> Result<(), GroupError> {
        limit_cpu_of(&self.parts, milli_cores)
    }

    /// The limit of its processor time in thousandths of a core; 0 without one.
    pub fn cpu_limit(&self) -> Result<u64, GroupError> {
        let part = part_of(&self.parts, Controller::Cpu)?;
        let file = |name: &str| CounterFile::open(part.path.join(name));
        let (file, quota, period) = if part.unified {
            let file = file(CPU_MAX)?;
            let text = file.read()?;
            let (quota, period) = text.trim().split_once(' ').ok_or_else(|| file.malformed(&text))?;
            let (quota, period) = (quota.to_owned(), period.to_owned());
            (file, quota, period)
        } else {
            let period = file(CFS_PERIOD)?.read()?;
            let file = file(CFS_QUOTA)?;
            let quota = file.read()?;
            (file, quota, period)
        };
        let (quota, period) = (quota.trim(), period.trim());
        if matches!(quota, "max" | "-1") {
            return Ok(0);
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| file.malformed(text));
        Ok(number(quota)?.saturating_mul(1000) / number(period)?.max(1))
    }

    /// Begins to do what dropping it does, without waiting. Returns whether it is done: the kernel refuses to remove a
    /// group whose last process is dying. Afterwards, the group is only good for this.
    pub fn leave(&mut self) -> bool {
        self.remove(LEAVE_TRIES);
        self.parts.is_empty()
    }

    /// Moves its processes to where they were, and removes those of its groups that can be.
    fn remove(&mut self, tries: u32) {
        let kills = self.kills.clone();
        self.parts.retain(|part| {
            let counts_kills = part.has(Controller::Memory) && !part.unified;
            let Some(kills) = kills.as_ref().filter(|_| counts_kills) else {
                return !remove_emptied(&part.path, &part.home, tries);
            };
            let mut retired = kills.retired.lock().unwrap_or_else(PoisonError::into_inner);
            let killed = kills_of(&part.path.join(OOM_CONTROL));
            let gone = remove_emptied(&part.path, &part.home, tries);
            if gone {
                *retired = retired.saturating_add(killed);
            }
            !gone
        });
    }

    /// Sets its weight against its siblings.
    pub fn weigh(&self, weight: Weight) -> Result<(), GroupError> {
        weigh_all(&self.parts, weight)
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.remove(REMOVE_TRIES);
    }
}

/// Groups that are removed unless all of them can be made.
struct Made(Vec<Base>);

impl Drop for Made {
    fn drop(&mut self) {
        for part in &self.0 {
            remove_emptied(&part.path, &part.home, REMOVE_TRIES);
        }
    }
}

/// Limits the processor time of groups to thousandths of a core; 0 removes the limit.
pub(super) fn limit_cpu_of(parts: &[Base], milli_cores: u64) -> Result<(), GroupError> {
    let least = MIN_QUOTA_US * 1000 / PERIOD_US;
    let milli_cores = match milli_cores {
        0 => 0,
        some => some.max(least),
    };
    let part = part_of(parts, Controller::Cpu)?;
    let limits = Limits {
        milli_cores,
        ..Limits::default()
    };
    for (file, text) in settings(Controller::Cpu, part.unified, &limits) {
        let path = part.path.join(file);
        write(&path, &text).map_err(|error| GroupError::of(&path, error))?;
    }
    Ok(())
}

/// Sets the weight of groups in the hierarchy of processor time.
pub(super) fn weigh_all(parts: &[Base], weight: Weight) -> Result<(), GroupError> {
    let part = part_of(parts, Controller::Cpu)?;
    let set = |file: &str, value: u64| {
        let path = part.path.join(file);
        write(&path, &value.to_string()).map_err(|error| (path, error))
    };
    match set("cpu.idle", weight.is_idle.into()) {
        // The kernel accepts no weight for such a group.
        Ok(()) if weight.is_idle => return Ok(()),
        Ok(()) => {}
        // Older kernels do not have it, and a group that is gone has no file.
        Err((_, error)) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err((path, error)) => return Err(GroupError::of(&path, error)),
    }
    let (file, value) = match part.unified {
        true => ("cpu.weight", weight.value),
        false => ("cpu.shares", (weight.value * DEFAULT_SHARES / Weight::ONE_CORE).max(2)),
    };
    set(file, value).map_err(|(path, error)| GroupError::of(&path, error))
}

/// The descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for thread in threads {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in text.split_whitespace().filter_map(|child| child.parse().ok()) {
                if found.len() < MAX_DESCENDANTS && !found.contains(&child) {
                    found.push(child);
                    parents.push(child);
                }
            }
        }
    }
    found
}
