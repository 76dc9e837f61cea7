//! Processes: the kernel's accounts of their time, and their end with their parent.

use crate::busy::Snapshot;
use std::collections::BTreeMap;

/// Processor time of the machine, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Busy time.
    pub busy: u64,
    /// Total time of all cores.
    pub total: u64,
    /// Time that the hypervisor gave to other guests.
    pub stolen: u64,
    /// Number of cores.
    pub cores: u32,
}

/// Processor time of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Process id of its parent.
    pub parent: u32,
    /// Name of its command.
    pub name: String,
    /// Processor time in ticks.
    pub ticks: u64,
    /// Start time, which distinguishes it from a later process with the same id.
    pub started: u64,
}

/// Processor time of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Seconds that the calling thread was ready without a core; 0 if the kernel does not report it.
    pub waited_s: f64,
    /// Processor time of ended children in seconds.
    pub reaped_s: f64,
}

/// Reads the kernel's accounts. Unreadable values are 0.
pub fn snapshot() -> Snapshot {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut processes = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(process) = parse_process(&read(&format!("/proc/{pid}/stat"))) {
            processes.insert(pid, process);
        }
    }
    Snapshot {
        cpu: parse_cpu(&read("/proc/stat")),
        processes,
        own: usage(),
    }
}

/// Returns the processor time of a process in seconds.
pub fn cpu_s(pid: u32) -> std::io::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let process = parse_process(&text).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(process.ticks as f64 / hertz())
}

/// Returns the memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or(std::io::ErrorKind::InvalidData)? << 10)
}

/// Ends this process when its parent ends, or at once if that has happened. A process that spins would never notice.
/// For a new child, also between a fork and an exec.
pub(crate) fn die_with(parent: u32) {
    // SAFETY: makes system calls only; `_exit` runs no code of the parent.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
    }
}

/// Ticks per second of the kernel's accounts.
pub fn hertz() -> f64 {
    // SAFETY: sysconf has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// Parses `/proc/stat`.
fn parse_cpu(text: &str) -> Cpu {
    let cores = text
        .lines()
        .filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "))
        .count() as u32;
    let all = text.lines().find_map(|l| l.strip_prefix("cpu ")).unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time after them is part of user time.
    let field: Vec<u64> = all.split_whitespace().take(8).map(|f| f.parse().unwrap_or(0)).collect();
    let at = |i: usize| field.get(i).copied().unwrap_or(0);
    Cpu {
        busy: at(0) + at(1) + at(2) + at(5) + at(6),
        total: field.iter().sum(),
        stolen: at(7),
        cores,
    }
}

/// Parses `/proc/<pid>/stat`.
fn parse_process(text: &str) -> Option<Process> {
    // The name is in brackets and may contain brackets and spaces.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?.to_owned();
    let field: Vec<&str> = text.get(close + 1..)?.split_whitespace().collect();
    let number = |i: usize| field.get(i)?.parse::<u64>().ok();
    Some(Process {
        parent: number(1)? as u32,
        name,
        ticks: number(11)? + number(12)?,
        started: number(19)?,
    })
}

/// Parses `/proc/thread-self/schedstat`: nanoseconds on a core, nanoseconds ready without one, and time slices.
fn parse_waited_s(text: &str) -> Option<f64> {
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? as f64 / 1e9)
}

fn usage() -> Usage {
    // SAFETY: an all-zero rusage is valid, and getrusage only writes into it.
    let children = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Usage {
        waited_s: parse_waited_s(&account).unwrap_or(0.0),
        reaped_s: seconds(children.ru_utime) + seconds(children.ru_stime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_waits_count_as_idle() {
        let cpu = parse_cpu("cpu  10 1 5 100 20 2 3 4 7 0\ncpu0 5 0 0 0\ncpu1 5 0 0 0\nintr 5\n");
        assert_eq!(
            cpu,
            Cpu {
                busy: 21,
                total: 145,
                stolen: 4,
                cores: 2
            }
        );
    }

    #[test]
    fn name_with_brackets_and_spaces_is_parsed() {
        let text = "42 (tmux: (x) y) S 7 42 42 0 -1 4194304 1 2 3 4 11 22 0 0 20 0 1 0 12345 1 1";
        let process = parse_process(text).unwrap();
        assert_eq!(
            process,
            Process {
                parent: 7,
                name: "tmux: (x) y".into(),
                ticks: 33,
                started: 12345
            }
        );
    }

    #[test]
    fn waiting_is_the_second_number_of_schedstat() {
        assert_eq!(parse_waited_s("2500000000 1500000000 12\n"), Some(1.5));
        assert_eq!(parse_waited_s("0\n"), None);
    }

    #[test]
    fn invalid_stat_line_is_ignored() {
        for text in ["", "1", "1 (x", "1 (x) S", ")(", "1 (x) S a b c"] {
            assert_eq!(parse_process(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_is_in_the_table() {
        let now = snapshot();
        assert!(now.processes.contains_key(&std::process::id()) && now.cpu.total > 0);
    }
}
