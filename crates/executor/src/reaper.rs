//! Reaps processes that calls of tasks left behind. A worker is the subreaper of everything that it started
//! ([`crate::worker`]), so it has to reap them.

use rustix::process::{Pid, WaitOptions, waitpid};

/// Calls between two checks.
const CHECK_EVERY: u32 = 64;
/// Zombies that may remain: a later call may still ask for the status of one.
const MAX_ZOMBIES: usize = 64;

/// Counts a worker's calls, and reaps what they left.
#[derive(Debug, Default)]
pub struct Reaper {
    calls: u32,
}

impl Reaper {
    /// Counts a call, and reaps zombies at every [`CHECK_EVERY`]th one if there are more than [`MAX_ZOMBIES`].
    pub fn after_call(&mut self) {
        self.calls += 1;
        if self.calls < CHECK_EVERY {
            return;
        }
        self.calls = 0;
        let zombies = zombies();
        if zombies.len() > MAX_ZOMBIES {
            for process in zombies {
                // A thread of the function may have reaped it meanwhile.
                let _ = waitpid(Some(process), WaitOptions::NOHANG);
            }
        }
    }
}

/// Children of this process that have ended.
fn zombies() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task");
    let mut zombies = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        zombies.extend(children.filter(|pid| is_zombie(*pid)));
    }
    zombies
}

fn is_zombie(process: Pid) -> bool {
    let about = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    // The name comes first, in parentheses, and may contain parentheses.
    about.is_ok_and(|about| {
        about
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    })
}
