//! How many tasks to have at a dispatcher.
//!
//! Enough that no worker waits for the next while the way to the manager and back takes its time; no more, because what is
//! there is out of the queue's hands: it cannot be overtaken, and may end as *maybe executed* with its dispatcher.

/// So much work, in microseconds, is to be at hand for each worker: some round trips to a manager that also writes to its disk.
const AHEAD_US: u64 = 20_000;
/// What an execution is taken to cost of whose function nothing is known.
const UNKNOWN_US: u64 = 1_000_000;
/// However short tasks are, for each worker.
const MOST_EACH: u64 = 1_024;
/// Weight of the past in the mean cost.
const MEMORY: u64 = 16;
/// What a task is taken to cost before one has ended: short, so that nothing is held up for want of knowing.
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
    /// A task took so long on its worker.
    pub fn took(&mut self, took_us: u64) {
        self.mean_us = (self.mean_us * (MEMORY - 1) + took_us) / MEMORY;
    }

    /// How many tasks to have at a time for so many workers: at least one more than runs, for each.
    pub fn tasks(&self, workers: u32) -> u32 {
        let each = (AHEAD_US / self.mean_us.max(1)).clamp(1, MOST_EACH) + 1;
        u32::try_from(each * u64::from(workers.max(1))).unwrap_or(u32::MAX)
    }
}

/// What executions of one function take, as far as is known.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    mean_us: Option<u64>,
}

impl Cost {
    /// One took so long.
    pub fn took(&mut self, took_us: u64) {
        let mean_us = self.mean_us.unwrap_or(took_us);
        self.mean_us = Some((mean_us * (MEMORY - 1) + took_us) / MEMORY);
    }

    /// What the next one is expected to take, in microseconds. Of what nothing is known it is much: it might take an hour, and
    /// whatever was sent to the same worker behind it would wait for it.
    pub fn expected_us(&self) -> u64 {
        self.mean_us.unwrap_or(UNKNOWN_US)
    }
}

/// Whether workers that have so many executions, of so many microseconds together, should be given one more of such a cost
/// now: always if a worker would be idle otherwise, else if all of them will be through soon.
pub fn gives(workers: u32, running: usize, ahead_us: u64, cost: &Cost) -> bool {
    let workers = workers.max(1);
    running < workers as usize
        || (running < workers as usize * MOST_EACH as usize
            && ahead_us.saturating_add(cost.expected_us()) <= u64::from(workers) * AHEAD_US / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(took_us: u64) -> Window {
        let mut window = Window::default();
        for _ in 0..1_000 {
            window.took(took_us);
        }
        window
    }

    #[test]
    fn short_tasks_are_sent_far_ahead_and_long_ones_are_not() {
        assert_eq!(after(10).tasks(1), 1_025);
        assert_eq!(after(20_000_000).tasks(4), 8);
        assert!((100..300).contains(&after(100).tasks(1)));
    }

    #[test]
    fn what_may_take_long_waits_for_a_free_worker() {
        let (mut short, mut long) = (Cost::default(), Cost::default());
        assert!(gives(2, 1, 0, &Cost::default()));
        assert!(!gives(2, 2, 0, &Cost::default()));
        short.took(10);
        long.took(5_000_000);
        assert!(gives(2, 100, 1_000, &short));
        assert!(!gives(2, 2, 20, &long));
        // Nor does anything wait behind it.
        assert!(!gives(2, 2, long.expected_us(), &short));
    }

    #[test]
    fn there_is_room_for_a_first_task_before_the_first_worker() {
        assert!(Window::default().tasks(0) > 0);
    }
}
