//! Estimates how long executions had workers, from when they were given to several workers and when they ended.

use std::time::Duration;

/// Busy time of several workers that is not yet attributed to an execution.
#[derive(Debug, Clone, Copy, Default)]
pub struct BusyTime {
    /// Time of the last look, on any clock.
    until: Duration,
    left: Duration,
}

impl BusyTime {
    /// Returns the largest time that each of the executions that ended by `now` can have had a worker. `begun` is when
    /// the first of them was given to the workers. `outstanding` counts all executions that the workers had until now,
    /// including those that ended.
    ///
    /// Executions wait for each other in the workers' rings, so the time since each was given is not its duration. The
    /// busy time of all workers since the last look is divided among those that ended. Time that exceeds what those can
    /// have had remains for the next ones.
    pub fn share(
        &mut self,
        now: Duration,
        begun: Duration,
        outstanding: usize,
        workers: usize,
        ended: usize,
    ) -> Duration {
        let at_work = u32::try_from(outstanding.min(workers.max(1))).unwrap_or(u32::MAX);
        self.left += now.saturating_sub(self.until.max(begun)) * at_work;
        self.until = now;
        self.left / u32::try_from(ended.max(1)).unwrap_or(u32::MAX)
    }

    /// Attributes `took` of the busy time. If nothing is outstanding any more, no time remains.
    pub fn count(&mut self, took: Duration, outstanding: usize) {
        self.left = if outstanding == 0 {
            Duration::ZERO
        } else {
            self.left.saturating_sub(took)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Ends executions that were begun at these times, in order. Returns how long each had a worker.
    fn end(busy: &mut BusyTime, now: u32, begun: &[u32], outstanding: usize, workers: usize) -> Vec<Duration> {
        let first = begun.iter().min().copied().unwrap_or(0);
        let most = busy.share(now * MS, first * MS, outstanding, workers, begun.len());
        let mut left = outstanding;
        let took = begun.iter().map(|begun| {
            let took = most.min((now - begun) * MS);
            left -= 1;
            busy.count(took, left);
            took
        });
        took.collect()
    }

    #[test]
    fn parallel_executions_each_have_their_whole_time() {
        let mut busy = BusyTime::default();
        assert_eq!(end(&mut busy, 1100, &[1000], 2, 2), [100 * MS]);
        assert_eq!(end(&mut busy, 1101, &[1000], 1, 2), [101 * MS]);
        // Idle time between them belongs to no execution.
        assert_eq!(end(&mut busy, 9100, &[9000], 1, 2), [100 * MS]);
    }

    #[test]
    fn queued_executions_share_the_busy_time() {
        let mut busy = BusyTime::default();
        let begun = [1000; 100];
        assert_eq!(end(&mut busy, 1050, &begun, 200, 2), [MS; 100]);
        assert_eq!(end(&mut busy, 1100, &begun, 100, 2), [MS; 100]);
        // A single execution; the second worker was idle.
        assert_eq!(end(&mut busy, 1300, &[1200], 1, 2), [100 * MS]);
    }

    #[test]
    fn long_execution_beside_short_ones_is_counted() {
        let mut busy = BusyTime::default();
        let mut all = Duration::ZERO;
        for at in 1..=100 {
            all += end(&mut busy, 1000 + at, &[1000 + at - 1], 2, 2)
                .iter()
                .sum::<Duration>();
        }
        assert_eq!(all, 100 * MS);
        assert_eq!(end(&mut busy, 1100, &[1000], 1, 2), [100 * MS]);
    }
}
