//! How long threads of a group could run and had no core.

use std::collections::BTreeMap;

use super::counters::{CounterFile, part_of, thread_list};
use super::{Base, Controller, GroupError};

/// Most threads of a group whose waiting is read: numerical libraries start some for each core. The first ones count.
const MAX_THREADS: usize = 64;

/// Where waiting is read.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The kernel's pressure record of the group, in version 2.
    Pressure(CounterFile),
    /// The run delay of each thread.
    Threads(ThreadDelays),
}

impl Waiting {
    /// Opens the pressure record, or else the list of threads.
    pub fn open(parts: &[Base]) -> Result<Self, GroupError> {
        let part = part_of(parts, Controller::Cpu)?;
        if part.unified
            && let Ok(file) = CounterFile::open(part.path.join("cpu.pressure"))
            // The file exists, and cannot be read, where the record is switched off.
            && file.read().ok().and_then(|text| pressure_ns(&text)).is_some()
        {
            return Ok(Self::Pressure(file));
        }
        Ok(Self::Threads(ThreadDelays {
            list: CounterFile::open(thread_list(part))?,
            threads: BTreeMap::new(),
            total_ns: 0,
        }))
    }

    /// Nanoseconds since the group was made; `None` if the kernel records none.
    pub fn read(&mut self) -> Result<Option<u64>, GroupError> {
        match self {
            Self::Pressure(file) => {
                let text = file.read()?;
                pressure_ns(&text).map(Some).ok_or_else(|| file.malformed(&text))
            }
            Self::Threads(threads) => threads.read(),
        }
    }
}

/// The total of the line `some`, in nanoseconds.
fn pressure_ns(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.parse::<u64>().ok()?.checked_mul(1000)
}

/// Run delays of a group's threads.
#[derive(Debug)]
pub(super) struct ThreadDelays {
    list: CounterFile,
    threads: BTreeMap<u32, Delay>,
    total_ns: u64,
}

#[derive(Debug)]
struct Delay {
    file: CounterFile,
    last_ns: u64,
}

impl ThreadDelays {
    /// Adds what each thread has waited since the last reading. A new thread counts from its first reading on.
    fn read(&mut self) -> Result<Option<u64>, GroupError> {
        let text = self.list.read()?;
        let listed: Vec<u32> = text
            .lines()
            .filter_map(|id| id.parse().ok())
            .take(MAX_THREADS)
            .collect();
        self.threads.retain(|id, _| listed.contains(id));
        let mut recorded = listed.is_empty();
        for id in listed {
            let delay = match self.threads.entry(id) {
                std::collections::btree_map::Entry::Occupied(entry) => Some(entry.into_mut()),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let opened = CounterFile::open(format!("/proc/{id}/schedstat").into()).ok();
                    opened.and_then(|file| {
                        let last_ns = delay_ns(&file)?;
                        Some(entry.insert(Delay { file, last_ns }))
                    })
                }
            };
            // A thread that has just ended is not listed the next time.
            let Some(delay) = delay else { continue };
            if let Some(now_ns) = delay_ns(&delay.file) {
                recorded = true;
                self.total_ns = self.total_ns.saturating_add(now_ns.saturating_sub(delay.last_ns));
                delay.last_ns = now_ns;
            }
        }
        Ok(recorded.then_some(self.total_ns))
    }
}

/// The run delay in a `schedstat` file: its second number.
fn delay_ns(file: &CounterFile) -> Option<u64> {
    file.read().ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_total_is_read_in_nanoseconds() {
        let text =
            "some avg10=0.12 avg60=0.00 avg300=0.00 total=1700\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(pressure_ns(text), Some(1_700_000));
        for wrong in [
            "",
            "some",
            "full total=3",
            "some total=x",
            "some total=18446744073709551615",
        ] {
            assert_eq!(pressure_ns(wrong), None, "{wrong}");
        }
    }
}
