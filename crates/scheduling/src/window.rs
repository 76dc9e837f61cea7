//! Decides how many tasks to have at a dispatcher.
//!
//! There must be enough that no worker waits for a round trip to the manager. There should not be more: tasks at a
//! dispatcher have left the queue, cannot be overtaken, and may end as *maybe executed* with their dispatcher.

/// Work to have at hand for each worker, in microseconds: some round trips to a manager that also writes to its disk.
const AHEAD_US: u64 = 20_000;
/// Assumed duration of an execution of an unknown function, in microseconds.
const UNKNOWN_US: u64 = 1_000_000;
/// Most tasks for each worker, however short they are.
const MAX_EACH: u64 = 1_024;
/// Weight of the past in the mean cost: one part in this many is new.
const WEIGHT: u64 = 16;
/// Assumed duration of a dispatcher's first tasks, in microseconds. Short, so that nothing is held up.
const FIRST_GUESS_US: u64 = 1_000;

/// The window of one dispatcher.
#[derive(Debug, Clone)]
pub struct Window {
    mean_us: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            mean_us: FIRST_GUESS_US,
        }
    }
}

impl Window {
    /// Records that a task took `took_us` microseconds on its worker.
    pub fn record(&mut self, took_us: u64) {
        self.mean_us = (self.mean_us * (WEIGHT - 1) + took_us) / WEIGHT;
    }

    /// Number of tasks to have at a time for `workers` workers: at least two for each.
    pub fn tasks(&self, workers: u32) -> u32 {
        let each = (AHEAD_US / self.mean_us.max(1)).clamp(1, MAX_EACH) + 1;
        u32::try_from(each * u64::from(workers.max(1))).unwrap_or(u32::MAX)
    }
}

/// Mean duration of the executions of one function.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    mean_us: Option<u64>,
}

impl Cost {
    /// Records an execution of `took_us` microseconds.
    pub fn record(&mut self, took_us: u64) {
        let mean_us = self.mean_us.unwrap_or(took_us);
        self.mean_us = Some((mean_us * (WEIGHT - 1) + took_us) / WEIGHT);
    }

    /// Mean duration in microseconds; `None` before the first execution has ended.
    pub fn mean_us(&self) -> Option<u64> {
        self.mean_us
    }

    /// Expected duration of the next execution, in microseconds. It is long for an unknown function: the execution
    /// might take an hour, and calls behind it on the same worker would wait.
    pub fn expected_us(&self) -> u64 {
        self.mean_us.unwrap_or(UNKNOWN_US)
    }
}

/// Whether to give one more execution to workers that have `running` ones with `ahead_us` microseconds of work: always
/// if a worker would idle otherwise, else if all workers will finish soon.
pub fn accepts_more(workers: u32, running: usize, ahead_us: u64, cost: &Cost) -> bool {
    let workers = workers.max(1);
    running < workers as usize
        || (running < workers as usize * MAX_EACH as usize
            && ahead_us.saturating_add(cost.expected_us()) <= u64::from(workers) * AHEAD_US / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_after(took_us: u64) -> Window {
        let mut window = Window::default();
        for _ in 0..1_000 {
            window.record(took_us);
        }
        window
    }

    #[test]
    fn window_is_large_for_short_tasks_only() {
        assert_eq!(window_after(10).tasks(1), 1_025);
        assert_eq!(window_after(20_000_000).tasks(4), 8);
        assert!((100..300).contains(&window_after(100).tasks(1)));
    }

    #[test]
    fn long_execution_waits_for_a_free_worker() {
        let (mut short, mut long) = (Cost::default(), Cost::default());
        assert!(accepts_more(2, 1, 0, &Cost::default()));
        assert!(!accepts_more(2, 2, 0, &Cost::default()));
        short.record(10);
        long.record(5_000_000);
        assert!(accepts_more(2, 100, 1_000, &short));
        assert!(!accepts_more(2, 2, 20, &long));
        // No execution waits behind a long one.
        assert!(!accepts_more(2, 2, long.expected_us(), &short));
    }

    #[test]
    fn window_admits_a_task_without_workers() {
        assert!(Window::default().tasks(0) > 0);
    }
}
