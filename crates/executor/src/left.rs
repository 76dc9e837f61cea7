//! Processes that calls of tasks left behind, and that have ended: a worker is above whatever it started ([`crate::worker`]), so it has to
//! collect them.

use rustix::process::{Pid, WaitOptions, waitpid};

/// Calls between two looks.
const LOOK_EVERY: u32 = 64;
/// So many may lie there: a process whose status a function asks for in a later call may be among them.
const MOST_DEAD: usize = 64;

/// Counts a worker's calls, and collects what they left.
#[derive(Debug, Default)]
pub struct Left {
    calls: u32,
}

impl Left {
    /// A call ends.
    pub fn after_call(&mut self) {
        self.calls += 1;
        if self.calls < LOOK_EVERY {
            return;
        }
        self.calls = 0;
        let dead = dead();
        if dead.len() > MOST_DEAD {
            for process in dead {
                // It may have been collected meanwhile, by a thread of the function's own.
                let _ = waitpid(Some(process), WaitOptions::NOHANG);
            }
        }
    }
}

/// Children of this process that have ended.
fn dead() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task");
    let mut dead = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        dead.extend(children.filter(|pid| has_ended(*pid)));
    }
    dead
}

fn has_ended(process: Pid) -> bool {
    let about = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    // Its name stands before, in parentheses, and may have any in it.
    about.is_ok_and(|about| {
        about
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    })
}
