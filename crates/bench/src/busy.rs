//! Decides whether the machine was quiet enough for a measurement.
//!
//! [`Watch`] reads processor times before and after a measurement. [`Noise`] is the time that other processes
//! used meanwhile. [`Noise::judge`] refuses the measurement if that is too much; it is pure.

use crate::proc::{self, Cpu, Process, Usage};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Maximum processor time of other processes, in cores. Above it, figures are refused.
///
/// A pinned side that spins loses its core to other processes for time slices of some milliseconds. Such
/// a call is one sample in many thousands and moves no percentile. Cold caches afterwards do, and a
/// host that runs its cores slower. A fifth of a core is well above what daemons of an idle machine use, and well below
/// one neighbour that computes.
pub const FOREIGN_CORES_MAX: f64 = 0.20;

/// Maximum share of the time that the hypervisor gave to other guests. A neighbour that takes
/// one twentieth of the time also uses the caches, and the 99th percentile then measures the neighbour.
pub const STOLEN_SHARE_MAX: f64 = 0.05;

/// Maximum share of the time that the measuring thread was ready while others had its core: the
/// same twentieth, because a neighbour on the measured core affects tails as one below the hypervisor does.
///
/// The number of context switches is no measure: the kernel's timer tick causes hundreds per second, of
/// microseconds each.
pub const DISPLACED_SHARE_MAX: f64 = 0.05;

/// Number of other processes to name.
const NAMED: usize = 3;

/// Another process that used the processor during a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Consumer {
    /// Process id.
    pub pid: u32,
    /// Name of its command.
    pub name: String,
    /// Processor time in cores: 1.0 is one core all the time.
    pub cores: f64,
}

/// Other work on the machine during a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Length of the measurement in seconds.
    pub wall_s: f64,
    /// Cores of the machine.
    pub cores: u32,
    /// Processor time of other processes, in cores.
    pub foreign_cores: f64,
    /// Share of all cores' time that the hypervisor gave to other guests.
    pub stolen_share: f64,
    /// Share of the time that the measuring thread was ready without a core.
    pub waited_share: f64,
    /// The busiest other processes, busiest first.
    pub consumers: Vec<Consumer>,
    /// Why the figures are not reliable, if they are printed although the machine was too busy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warning: Option<String>,
}

/// Error: the machine was too busy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the machine was too busy for reliable figures: {seen}. {advice}, or print the figures anyway with --force")]
pub struct Busy {
    /// What happened.
    pub seen: String,
    /// What to do.
    pub advice: String,
    /// The measured load.
    pub noise: Noise,
}

impl Noise {
    /// Upper bound of the share of time that others kept the measuring thread waiting. The rest of its waiting was
    /// for the measurement's own processes.
    fn displaced_share(&self) -> f64 {
        self.waited_share.min(self.foreign_cores)
    }

    /// Refuses a measurement that was disturbed too much. With `force` it passes, with a warning.
    pub fn judge(mut self, force: bool) -> Result<Self, Box<Busy>> {
        let mut seen = Vec::new();
        let mut advice = Vec::new();
        if self.foreign_cores > FOREIGN_CORES_MAX {
            let names: Vec<_> = self
                .consumers
                .iter()
                .map(|c| format!("{} (pid {}) {:.2}", c.name, c.pid, c.cores))
                .collect();
            let names = if names.is_empty() {
                String::new()
            } else {
                format!(": {}", names.join(", "))
            };
            seen.push(format!(
                "other processes used {:.2} cores (at most {FOREIGN_CORES_MAX:.2} are tolerated){names}",
                self.foreign_cores
            ));
            advice.push(match self.consumers.first() {
                Some(c) => format!("stop {} or wait until it is done", c.name),
                // The process table shows none: they have ended, or run outside this container.
                None => "wait until they are done (they have ended, or run outside this container)".into(),
            });
        }
        if self.stolen_share > STOLEN_SHARE_MAX {
            seen.push(format!(
                "the hypervisor gave {:.0} % of the time to other guests (at most {:.0} %)",
                self.stolen_share * 100.0,
                STOLEN_SHARE_MAX * 100.0
            ));
            advice.push("try again when the host is less busy, or use another one".into());
        }
        let displaced = self.displaced_share();
        if displaced > DISPLACED_SHARE_MAX {
            seen.push(format!(
                "others had the measuring thread's core for {:.0} % of the time (at most {:.0} %)",
                displaced * 100.0,
                DISPLACED_SHARE_MAX * 100.0
            ));
            advice.push("leave two cores to the measurement".into());
        }
        if seen.is_empty() {
            return Ok(self);
        }
        let mut advice = advice.join("; ");
        advice[..1].make_ascii_uppercase();
        let busy = Busy {
            seen: seen.join("; "),
            advice,
            noise: self.clone(),
        };
        if !force {
            return Err(Box::new(busy));
        }
        self.warning = Some(format!("unreliable figures: {}", busy.seen));
        Ok(self)
    }
}

/// A snapshot of the accounts.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Processor time of the machine.
    pub cpu: Cpu,
    /// All visible processes.
    pub processes: BTreeMap<u32, Process>,
    /// Processor time of this process.
    pub own: Usage,
}

/// Computes the load between two snapshots. `mine` and their descendants belong to the measurement.
pub fn between(before: &Snapshot, after: &Snapshot, mine: &[u32], wall: Duration, hertz: f64) -> Noise {
    let ours = family(mine, &[&before.processes, &after.processes]);
    let wall_s = wall.as_secs_f64().max(1e-6);
    let used = |(pid, now): (&u32, &Process)| -> u64 {
        // If another process got the same id meanwhile, all of its time is new.
        let then = before
            .processes
            .get(pid)
            .filter(|p| p.started == now.started)
            .map_or(0, |p| p.ticks);
        now.ticks.saturating_sub(then)
    };
    let mut own_ticks = 0;
    let mut consumers = Vec::new();
    for (pid, process) in &after.processes {
        let ticks = used((pid, process));
        if ours.contains(pid) {
            own_ticks += ticks;
        } else if ticks > 0 {
            let cores = round(ticks as f64 / hertz / wall_s);
            consumers.push(Consumer {
                pid: *pid,
                name: process.name.clone(),
                cores,
            });
        }
    }
    // Children that were reaped are no longer in the table, but in their parents' accounts.
    let reaped = after.own.reaped_s - before.own.reaped_s;
    let own_s = own_ticks as f64 / hertz + reaped.max(0.0);
    let busy_s = after.cpu.busy.saturating_sub(before.cpu.busy) as f64 / hertz;
    let total_s = after.cpu.total.saturating_sub(before.cpu.total) as f64 / hertz;
    let stolen_s = after.cpu.stolen.saturating_sub(before.cpu.stolen) as f64 / hertz;
    consumers.sort_by(|a, b| b.cores.total_cmp(&a.cores));
    consumers.truncate(NAMED);
    Noise {
        wall_s: round(wall_s),
        cores: after.cpu.cores,
        foreign_cores: round(((busy_s - own_s) / wall_s).max(0.0)),
        stolen_share: round(if total_s > 0.0 { stolen_s / total_s } else { 0.0 }),
        waited_share: round((after.own.waited_s - before.own.waited_s).max(0.0) / wall_s),
        consumers,
        warning: None,
    }
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// The given processes and all their descendants in any of the tables.
fn family(roots: &[u32], tables: &[&BTreeMap<u32, Process>]) -> HashSet<u32> {
    let mut found: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let more: Vec<u32> = tables
            .iter()
            .flat_map(|t| t.iter())
            .filter(|(pid, p)| found.contains(&p.parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Watches the machine during a measurement.
#[derive(Debug)]
pub struct Watch {
    started: Instant,
    before: Snapshot,
    mine: Vec<u32>,
}

impl Watch {
    /// Starts to watch. This process, `mine` and their descendants count as the measurement.
    pub fn start(mine: &[u32]) -> Self {
        let mut mine = mine.to_vec();
        mine.push(std::process::id());
        Watch {
            before: proc::snapshot(),
            started: Instant::now(),
            mine,
        }
    }

    /// Returns the load since the start.
    pub fn finish(&self) -> Noise {
        let wall = self.started.elapsed();
        between(&self.before, &proc::snapshot(), &self.mine, wall, proc::hertz())
    }

    /// Watches before a measurement, to refuse before the work instead of after it.
    pub fn look(time: Duration, mine: &[u32]) -> Noise {
        let watch = Self::start(mine);
        std::thread::sleep(time);
        watch.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, name: &str, ticks: u64) -> Process {
        Process {
            parent,
            name: name.into(),
            ticks,
            started: 1,
        }
    }

    /// Two seconds on two cores at 100 Hz. Process 10 (ours) used `ours` ticks and process 20 `theirs`, and the
    /// measuring thread waited for so many milliseconds.
    fn noise(ours: u64, theirs: u64, stolen: u64, waited_ms: u64) -> Noise {
        let before = Snapshot {
            cpu: Cpu {
                busy: 1000,
                total: 5000,
                stolen: 0,
                cores: 2,
            },
            processes: BTreeMap::from([(10, process(1, "dayfly", 50)), (20, process(1, "cc1plus", 70))]),
            own: Usage::default(),
        };
        let mut after = before.clone();
        after.cpu = Cpu {
            busy: 1000 + ours + theirs,
            total: 5400,
            stolen,
            cores: 2,
        };
        after.processes.insert(11, process(10, "worker", ours / 2));
        after.processes.insert(10, process(1, "dayfly", 50 + ours - ours / 2));
        after.processes.insert(20, process(1, "cc1plus", 70 + theirs));
        after.own.waited_s = waited_ms as f64 / 1e3;
        between(&before, &after, &[10], Duration::from_secs(2), 100.0)
    }

    #[test]
    fn own_load_is_not_foreign_work() {
        let quiet = noise(400, 4, 0, 10).judge(false).unwrap();
        assert_eq!(
            (quiet.foreign_cores, quiet.waited_share, quiet.warning),
            (0.02, 0.005, None)
        );
    }

    #[test]
    fn compiling_neighbour_is_named_in_the_refusal() {
        let busy = noise(200, 180, 0, 10).judge(false).unwrap_err();
        assert_eq!(busy.noise.foreign_cores, 0.9);
        let text = busy.to_string();
        assert!(text.contains("cc1plus (pid 20) 0.90"), "{text}");
        assert!(
            text.contains("Stop cc1plus or wait") && text.contains("--force"),
            "{text}"
        );
    }

    #[test]
    fn force_passes_with_a_warning() {
        let forced = noise(200, 180, 0, 10).judge(true).unwrap();
        assert!(forced.warning.unwrap().contains("other processes used 0.90 cores"));
    }

    #[test]
    fn time_stolen_by_the_hypervisor_is_refused() {
        let busy = noise(200, 0, 40, 0).judge(false).unwrap_err();
        assert!(busy.seen.contains("gave 10 % of the time"), "{busy}");
    }

    #[test]
    fn timer_ticks_are_not_foreign_work() {
        // Read on an idle machine of two cores: the tick alone switched the spinning thread 206 times a second.
        let idle = noise(397, 5, 0, 9).judge(false).unwrap();
        assert_eq!((idle.waited_share, idle.warning), (0.005, None));
    }

    #[test]
    fn small_rival_on_the_measured_core_is_refused() {
        let busy = noise(200, 30, 0, 280).judge(false).unwrap_err();
        assert!(busy.seen.contains("core for 14 % of the time"), "{busy}");
        assert!(busy.advice.contains("Leave two cores"), "{busy}");
    }

    #[test]
    fn waiting_for_own_processes_is_not_foreign() {
        noise(400, 4, 0, 900).judge(false).unwrap();
    }

    #[test]
    fn foreign_work_by_unseen_processes_still_counts() {
        let before = Snapshot::default();
        let after = Snapshot {
            cpu: Cpu {
                busy: 100,
                total: 200,
                stolen: 0,
                cores: 2,
            },
            ..Snapshot::default()
        };
        let busy = between(&before, &after, &[1], Duration::from_secs(1), 100.0)
            .judge(false)
            .unwrap_err();
        assert!(busy.advice.contains("outside this container"), "{busy}");
    }

    #[test]
    fn ended_children_are_not_foreign() {
        let before = Snapshot::default();
        let after = Snapshot {
            cpu: Cpu {
                busy: 100,
                total: 200,
                stolen: 0,
                cores: 2,
            },
            own: Usage {
                reaped_s: 0.95,
                ..Usage::default()
            },
            ..Snapshot::default()
        };
        let noise = between(&before, &after, &[1], Duration::from_secs(1), 100.0);
        assert_eq!(noise.foreign_cores, 0.05);
    }

    #[test]
    fn reused_process_id_hides_no_work() {
        let mut before = Snapshot::default();
        before.processes.insert(30, process(1, "old", 5000));
        let mut after = before.clone();
        after.processes.insert(
            30,
            Process {
                started: 2,
                ..process(1, "new", 60)
            },
        );
        let noise = between(&before, &after, &[1000], Duration::from_secs(1), 100.0);
        assert_eq!(
            noise.consumers,
            [Consumer {
                pid: 30,
                name: "new".into(),
                cores: 0.6
            }]
        );
    }

    #[test]
    fn this_process_is_not_foreign() {
        let watch = Watch::start(&[]);
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let noise = watch.finish();
        assert!(noise.wall_s >= 0.05 && noise.cores > 0, "{noise:?}");
        assert!(noise.consumers.iter().all(|c| c.pid != std::process::id()), "{noise:?}");
    }
}
