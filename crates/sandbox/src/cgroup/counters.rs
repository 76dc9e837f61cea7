//! What a worker's group has used, read without starting anything: each file is opened once.

use std::fs::File;
use std::path::PathBuf;

use super::{Base, Controller, GroupError};

/// Bytes of the longest file that is read: `memory.stat` has about 2 KiB.
const MAX_FILE_BYTES: usize = 8 << 10;
/// Change of memory after which the share of cached files is read again. That file takes twenty times as long to read
/// as all others (25 us against 1.3 us).
const CACHE_STEP_BYTES: u64 = 1 << 20;

/// Counters of a worker's group since it was made, and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// Processor time of all its processes, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory in use in bytes, without files that the kernel has cached and can drop.
    pub memory_bytes: u64,
    /// The highest such memory since the reading before, as far as the kernel records it. Never less than
    /// `memory_bytes`.
    pub memory_peak_bytes: u64,
    /// Periods in which its limit of processor time stopped it.
    pub throttled_periods: u64,
    /// Time for which it was stopped, in nanoseconds.
    pub throttled_ns: u64,
    /// Time for which its threads could run and had no core, in nanoseconds: of any thread by the kernel's pressure
    /// record, or else the sum of its threads'. `None` if the kernel records neither.
    pub waiting_ns: Option<u64>,
}

/// A file of the kernel that stays open.
#[derive(Debug)]
pub(super) struct CounterFile {
    path: PathBuf,
    file: File,
}

impl CounterFile {
    /// Opens the file.
    pub fn open(path: PathBuf) -> Result<Self, GroupError> {
        match File::open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(GroupError::of(&path, error)),
        }
    }

    /// Its current content.
    pub fn read(&self) -> Result<String, GroupError> {
        let mut bytes = vec![0; MAX_FILE_BYTES];
        let mut length = 0;
        // One call is enough for all files but a long list of threads.
        loop {
            let got = rustix::io::pread(&self.file, &mut bytes[length..], length as u64);
            let got = got.map_err(|error| GroupError::of(&self.path, error))?;
            length += got;
            if got == 0 || length == bytes.len() {
                bytes.truncate(length);
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }

    /// Its content, if that is one number.
    pub fn number(&self) -> Result<u64, GroupError> {
        let text = self.read()?;
        text.trim().parse().map_err(|_| self.malformed(&text))
    }

    /// The number after a name at the beginning of a line.
    pub fn field(&self, text: &str, name: &str) -> Result<u64, GroupError> {
        field(text, name).ok_or_else(|| self.malformed(text))
    }

    /// The error for its content.
    pub fn malformed(&self, text: &str) -> GroupError {
        GroupError::Malformed {
            file: self.path.clone(),
            text: text.chars().take(80).collect(),
        }
    }
}

/// The number after a name at the beginning of a line.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

/// The counters of processor time.
#[derive(Debug)]
pub(super) enum CpuCounters {
    /// Version 1: `cpuacct.usage` and `cpu.stat`, in nanoseconds.
    Split { usage: CounterFile, stat: CounterFile },
    /// Version 2: `cpu.stat`, in microseconds.
    Unified { stat: CounterFile },
}

impl CpuCounters {
    /// Opens them.
    pub fn open(parts: &[Base]) -> Result<Self, GroupError> {
        let of = |controller| part_of(parts, controller);
        let cpu = of(Controller::Cpu)?;
        let stat = CounterFile::open(cpu.path.join("cpu.stat"))?;
        if cpu.unified {
            return Ok(Self::Unified { stat });
        }
        let usage = CounterFile::open(of(Controller::Cpuacct)?.path.join("cpuacct.usage"))?;
        Ok(Self::Split { usage, stat })
    }

    /// Adds them to a reading.
    pub fn read(&self, reading: &mut Reading) -> Result<(), GroupError> {
        match self {
            Self::Split { usage, stat } => {
                reading.cpu_ns = usage.number()?;
                let text = stat.read()?;
                reading.throttled_periods = stat.field(&text, "nr_throttled")?;
                reading.throttled_ns = stat.field(&text, "throttled_time")?;
            }
            Self::Unified { stat } => {
                let text = stat.read()?;
                reading.cpu_ns = stat.field(&text, "usage_usec")?.saturating_mul(1000);
                reading.throttled_periods = stat.field(&text, "nr_throttled")?;
                reading.throttled_ns = stat.field(&text, "throttled_usec")?.saturating_mul(1000);
            }
        }
        Ok(())
    }
}

/// The counters of memory.
#[derive(Debug)]
pub(super) struct MemoryCounters {
    usage: CounterFile,
    stat: CounterFile,
    /// In version 1, the highest usage since the last reset.
    peak: Option<CounterFile>,
    /// Names of the sizes of cached files in `stat`.
    cache_names: [&'static str; 2],
    /// Cached files, at a usage of `cache_at`.
    cache_bytes: u64,
    cache_at: Option<u64>,
    /// Memory that its processes had before they joined, which the kernel counts elsewhere.
    brought: Option<BroughtMemory>,
}

impl MemoryCounters {
    /// Opens them.
    pub fn open(parts: &[Base]) -> Result<Self, GroupError> {
        let part = part_of(parts, Controller::Memory)?;
        let open = |name: &str| CounterFile::open(part.path.join(name));
        Ok(Self {
            usage: open(match part.unified {
                true => "memory.current",
                false => "memory.usage_in_bytes",
            })?,
            stat: open("memory.stat")?,
            peak: match part.unified {
                // It can only be read, and not reset, before Linux 6.12.
                true => None,
                false => Some(open("memory.max_usage_in_bytes")?),
            },
            cache_names: match part.unified {
                true => ["inactive_file", "active_file"],
                false => ["total_inactive_file", "total_active_file"],
            },
            cache_bytes: 0,
            cache_at: None,
            brought: None,
        })
    }

    /// Counts what a process brings with it. Call it when the process joins.
    pub fn bring(&mut self, pid: u32) {
        self.brought = BroughtMemory::of(pid);
    }

    /// Adds them to a reading.
    pub fn read(&mut self, reading: &mut Reading) -> Result<(), GroupError> {
        let usage = self.usage.number()?;
        let moved = self.cache_at.is_none_or(|at| usage.abs_diff(at) >= CACHE_STEP_BYTES);
        if moved {
            let text = self.stat.read()?;
            let [inactive, active] = self.cache_names;
            self.cache_bytes = self
                .stat
                .field(&text, inactive)?
                .saturating_add(self.stat.field(&text, active)?);
            self.cache_at = Some(usage);
        }
        let brought = self.brought.as_mut().map_or(0, BroughtMemory::remaining);
        let without_cache = |bytes: u64| bytes.saturating_sub(self.cache_bytes).saturating_add(brought);
        reading.memory_bytes = without_cache(usage);
        let peak = match &self.peak {
            Some(peak) => {
                let highest = peak.number()?;
                // Begins anew. Without this right, the highest of all time is no peak of this reading.
                match super::write(&peak.path, "0") {
                    Ok(()) => highest,
                    Err(_) => usage,
                }
            }
            None => usage,
        };
        reading.memory_peak_bytes = without_cache(peak).max(reading.memory_bytes);
        Ok(())
    }
}

/// Memory of a process that joined a group: the kernel goes on counting it where it was allocated.
#[derive(Debug)]
struct BroughtMemory {
    statm: CounterFile,
    bytes: u64,
}

impl BroughtMemory {
    fn of(pid: u32) -> Option<Self> {
        let statm = CounterFile::open(format!("/proc/{pid}/statm").into()).ok()?;
        let bytes = Self::private_bytes(&statm)?;
        Some(Self { statm, bytes })
    }

    /// Memory of the process that belongs to no file.
    fn private_bytes(statm: &CounterFile) -> Option<u64> {
        let text = statm.read().ok()?;
        let mut pages = text.split_whitespace().skip(1).map(str::parse::<u64>);
        let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
        Some(
            resident
                .saturating_sub(shared)
                .saturating_mul(rustix::param::page_size() as u64),
        )
    }

    /// What can be left of it: no more than the process has now.
    fn remaining(&mut self) -> u64 {
        if self.bytes > 0 {
            self.bytes = self.bytes.min(Self::private_bytes(&self.statm).unwrap_or(0));
        }
        self.bytes
    }
}

/// The group with a controller.
pub(super) fn part_of(parts: &[Base], controller: Controller) -> Result<&Base, GroupError> {
    let mut parts = parts.iter();
    parts
        .find(|part| part.has(controller))
        .ok_or(GroupError::Missing(controller.name()))
}

/// Path of the file that lists the threads of a group.
pub(super) fn thread_list(part: &Base) -> PathBuf {
    let name = match part.unified {
        true => "cgroup.threads",
        false => "tasks",
    };
    part.path.join(name)
}
