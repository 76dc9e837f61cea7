//! How many tasks to have at a dispatcher.
//!
//! Enough that no worker waits for the next while the way to the manager and back takes its time; no more, because what is
//! there is out of the queue's hands: it cannot be overtaken, and may end as *maybe executed* with its dispatcher.

/// So much work, in microseconds, is to be at hand for each worker: some round trips to a manager that also writes to its disk.
const AHEAD_US: u64 = 20_000;
/// However short tasks are, for each worker.
const MOST_EACH: u64 = 1_024;
/// What waits behind so long a task would gain more by another worker than a worker by having its next task at hand.
const LONG_US: u64 = 2_000;
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

    /// How many of those to give to the workers themselves: of long tasks just one each, so that none waits behind another while
    /// a worker is free.
    pub fn at_workers(&self, workers: u32) -> u32 {
        match self.mean_us > LONG_US {
            true => workers.max(1),
            false => self.tasks(workers),
        }
    }
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
    fn there_is_room_for_a_first_task_before_the_first_worker() {
        assert!(Window::default().tasks(0) > 0);
    }
}
