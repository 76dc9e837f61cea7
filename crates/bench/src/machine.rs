//! The machine of a measurement.

use crate::tsc::Tsc;
use serde::{Deserialize, Serialize};

/// Properties of the machine that affect the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that are online.
    pub cores: u32,
    /// The kernel's version.
    pub kernel: String,
    /// Architecture, such as `x86_64`.
    pub arch: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// Frequency of the time stamp counter in MHz.
    pub tsc_mhz: f64,
    /// The counter's smallest step in nanoseconds: single latencies are multiples of it.
    pub tsc_step_ns: f64,
    /// Frequency governor of the first core, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub governor: Option<String>,
    /// Version of Dayfly.
    pub dayfly: String,
}

impl Machine {
    /// Returns the properties of this machine.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let memory = read("/proc/meminfo").unwrap_or_default();
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            // Not the cores of this thread, which is pinned to one when it measures.
            // SAFETY: sysconf has no preconditions.
            cores: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32,
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
            arch: std::env::consts::ARCH.into(),
            memory_mib: field(&memory, "MemTotal")
                .and_then(|m| m.split(' ').next()?.parse().ok())
                .unwrap_or(0)
                / 1024,
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
            tsc_mhz: Tsc::get().mhz().round(),
            tsc_step_ns: (Tsc::step_ns() * 10.0).round() / 10.0,
            governor: governor.map(|g| g.trim().to_owned()),
            dayfly: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// Returns the value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_their_spacing() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2: x\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2: x"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn machine_has_cores_memory_and_kernel() {
        let machine = Machine::this();
        assert!(
            machine.cores > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty(),
            "{machine:?}"
        );
    }
}
