//! Limits of memory of groups: raised, lowered as far as the kernel can reclaim, and read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::counters::{CounterFile, part_of};
use super::tree::write;
use super::{Base, Controller, Group, GroupError, OOM_CONTROL, WorkerGroup, kills_of};

/// Most memory in bytes that is reclaimed by one write: with swap, the kernel takes some ten milliseconds for it.
const RECLAIM_STEP_BYTES: u64 = 32 << 20;
/// Time after which no further step begins.
const RECLAIM_TIME: Duration = Duration::from_millis(10);
/// Room in bytes above what a group holds when it is kept from growing: it may grow between reading and writing.
const HELD_SLACK_BYTES: u64 = 1 << 20;
/// Tries to keep a group that grows from growing.
const HOLD_TRIES: u32 = 3;
/// A limit of version 1 from which on there is none.
const NO_LIMIT: u64 = 1 << 62;

/// The number of processes that the kernel killed in a worker's group for lack of memory.
#[derive(Debug, Clone)]
pub struct MemoryKills(PathBuf);

impl MemoryKills {
    /// The number so far; 0 if the group is gone.
    pub fn count(&self) -> u64 {
        kills_of(&self.0)
    }
}

/// The files of a group in the hierarchy of memory.
struct MemoryFiles<'a> {
    path: &'a Path,
    unified: bool,
}

impl<'a> MemoryFiles<'a> {
    fn of(parts: &'a [Base]) -> Result<Self, GroupError> {
        let part = part_of(parts, Controller::Memory)?;
        Ok(Self {
            path: &part.path,
            unified: part.unified,
        })
    }

    /// Chooses between the names of version 1 and version 2.
    fn name(&self, split: &'static str, unified: &'static str) -> &'static str {
        match self.unified {
            true => unified,
            false => split,
        }
    }

    fn open(&self, name: &str) -> Result<CounterFile, GroupError> {
        CounterFile::open(self.path.join(name))
    }

    fn change(&self, name: &str, text: &str) -> Result<(), GroupError> {
        let path = self.path.join(name);
        write(&path, text).map_err(|error| GroupError::of(&path, error))
    }

    /// Changes a limit that kernels without accounting of swap do not have. What is swapped out takes no memory, so a
    /// limit that cannot fall below it is no error.
    fn change_swap(&self, name: &str, text: &str) -> Result<(), GroupError> {
        match write(&self.path.join(name), text) {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::ResourceBusy
                ) =>
            {
                Err(GroupError::of(&self.path.join(name), error))
            }
            _ => Ok(()),
        }
    }

    /// What is charged to the group, with cached files.
    fn usage(&self) -> Result<u64, GroupError> {
        self.open(self.name("memory.usage_in_bytes", "memory.current"))?
            .number()
    }

    /// The limit in bytes; 0 without one.
    fn limit(&self) -> Result<u64, GroupError> {
        let file = self.open(self.name("memory.limit_in_bytes", "memory.max"))?;
        let text = file.read()?;
        if text.trim() == "max" {
            return Ok(0);
        }
        let bytes = text.trim().parse::<u64>().map_err(|_| file.malformed(&text))?;
        Ok(if bytes >= NO_LIMIT { 0 } else { bytes })
    }

    /// Sets the limit; 0 removes it. Changes nothing, and returns an error, if the group has more and the kernel cannot
    /// reclaim it.
    fn set(&self, bytes: u64) -> Result<(), GroupError> {
        let text = match bytes {
            0 => self.name("-1", "max").to_owned(),
            bytes => bytes.to_string(),
        };
        match self.unified {
            true => self.set_unified(bytes, &text),
            false => self.set_split(bytes, &text),
        }
    }

    /// The kernel refuses a limit of memory above that of memory and swap together.
    fn set_split(&self, bytes: u64, text: &str) -> Result<(), GroupError> {
        let (memory, with_swap) = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
        let before = self.limit()?;
        if bytes == 0 || (before > 0 && bytes > before) {
            self.change_swap(with_swap, text)?;
            return self.change(memory, text);
        }
        self.change(memory, text)?;
        self.change_swap(with_swap, text)
    }

    /// The limit itself would end processes. The one called `high` only reclaims, before the call returns.
    fn set_unified(&self, bytes: u64, text: &str) -> Result<(), GroupError> {
        if bytes == 0 {
            return self.change("memory.max", text);
        }
        self.change("memory.high", text)?;
        let set = match self.usage() {
            Ok(usage) if usage > bytes => Err(GroupError::Refused {
                file: self.path.join("memory.max"),
                error: ErrorKind::ResourceBusy.into(),
            }),
            Ok(_) => self.change("memory.max", text),
            Err(error) => Err(error),
        };
        self.change("memory.high", "max")?;
        set
    }

    /// Sets the limit, which is not 0. If the group has more, it falls as far as the kernel reclaims in a short time, and
    /// the group cannot grow. Returns the limit that it has now.
    fn shrink(&self, bytes: u64) -> Result<u64, GroupError> {
        let begun = Instant::now();
        loop {
            let usage = self.usage()?;
            let step = bytes.max(usage.saturating_sub(RECLAIM_STEP_BYTES));
            match self.set(step) {
                Ok(()) if step == bytes || begun.elapsed() > RECLAIM_TIME => return Ok(step),
                Ok(()) => {}
                Err(error) if error.is_busy() => return self.hold(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps the group from growing. Returns its limit.
    fn hold(&self) -> Result<u64, GroupError> {
        for _ in 0..HOLD_TRIES {
            let (held, limit) = (self.usage()?.saturating_add(HELD_SLACK_BYTES), self.limit()?);
            if limit > 0 && limit <= held {
                return Ok(limit);
            }
            match self.set(held) {
                Ok(()) => return Ok(held),
                Err(error) if error.is_busy() => {}
                Err(error) => return Err(error),
            }
        }
        match self.limit()? {
            0 => self.usage(),
            limit => Ok(limit),
        }
    }
}

impl WorkerGroup {
    /// Limits its memory in bytes, including cached files; 0 removes the limit. Returns an error, and changes nothing,
    /// if it has more and the kernel cannot take it back without ending a process.
    pub fn limit_memory(&self, bytes: u64) -> Result<(), GroupError> {
        MemoryFiles::of(&self.parts)?.set(bytes)
    }

    /// Limits its memory to at least one byte. If it has more, the limit falls as far as the kernel can reclaim within
    /// some ten milliseconds, and it cannot grow. Ends no process. Returns the limit that it has then.
    pub fn shrink_memory(&self, bytes: u64) -> Result<u64, GroupError> {
        MemoryFiles::of(&self.parts)?.shrink(bytes.max(1))
    }

    /// The limit of its memory in bytes; 0 without one.
    pub fn memory_limit(&self) -> Result<u64, GroupError> {
        MemoryFiles::of(&self.parts)?.limit()
    }

    /// Memory in bytes that is charged to it now, including cached files, without what its processes brought.
    pub fn held_memory(&self) -> Result<u64, GroupError> {
        MemoryFiles::of(&self.parts)?.usage()
    }

    /// Counts its processes that the kernel kills for lack of memory.
    pub fn memory_kills(&self) -> Result<MemoryKills, GroupError> {
        let files = MemoryFiles::of(&self.parts)?;
        Ok(MemoryKills(files.path.join(files.name(OOM_CONTROL, "memory.events"))))
    }
}

impl Group {
    /// Sets how much memory its workers borrowed together, in bytes above its own limit. If it has more and the kernel
    /// cannot reclaim it, its limit falls as far as it can. Returns what its limit is above its own then.
    pub fn lend_memory(&self, borrowed: u64) -> Result<u64, GroupError> {
        let own = self.memory_bytes.load(Ordering::Relaxed);
        if own == 0 {
            return Ok(borrowed);
        }
        let files = MemoryFiles::of(&self.parts)?;
        let bytes = own.saturating_add(borrowed);
        if bytes > files.limit()? {
            files.set(bytes)?;
            return Ok(borrowed);
        }
        Ok(files.shrink(bytes)?.saturating_sub(own))
    }

    /// The limit of its memory in bytes; 0 without one.
    pub fn memory_limit(&self) -> Result<u64, GroupError> {
        MemoryFiles::of(&self.parts)?.limit()
    }
}
