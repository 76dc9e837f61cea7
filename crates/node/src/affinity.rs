//! Processor affinity of processes.

/// Restricts every thread of a process to these cores. Does nothing if the process is gone or the cores do not exist.
pub fn pin(process: u32, cores: &[u16]) {
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        if usize::from(*core) < rustix::thread::CpuSet::MAX_CPU {
            set.set(usize::from(*core));
        }
    }
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return;
    };
    for thread in threads.flatten() {
        let id = thread.file_name().to_string_lossy().parse().ok();
        if let Some(id) = id.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::thread::sched_setaffinity(Some(id), &set);
        }
    }
}
