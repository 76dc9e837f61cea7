//! One measured worker: its control group, and the readings of its running call.

use std::sync::Weak;
use std::time::{Duration, Instant};

use dayfly_harvest::{Amount, CallId};
use dayfly_sandbox::cgroup::{GroupError, Hierarchies, Reading, Weight, WorkerGroup};

use super::driver::BegunCall;

/// Shortest window that is measured: the kernel accounts in ticks of up to 4 ms.
const MIN_WINDOW: Duration = Duration::from_millis(10);

/// What a call used in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub length: Duration,
    pub used: Amount,
    pub waiting_ppm: u32,
}

/// A worker with a group of its own.
#[derive(Debug)]
pub(super) struct MeasuredWorker {
    group: WorkerGroup,
    owned: Amount,
    call: Option<RunningCall>,
}

#[derive(Debug)]
struct RunningCall {
    id: CallId,
    at: Instant,
    last: Reading,
}

impl MeasuredWorker {
    /// Makes a group for the worker of a call, and moves it there. It is held to the cores that it owns.
    pub fn admit(hierarchies: &Hierarchies, name: &str, call: &BegunCall) -> Result<Self, GroupError> {
        let sandbox = call.sandbox.as_ref().and_then(Weak::upgrade);
        let mut group = hierarchies.worker_group(name, sandbox.as_deref())?;
        group.weigh(Weight::of_cores(call.owned.milli_cores))?;
        group.limit_cpu(call.owned.milli_cores)?;
        if let Some(sandbox) = &sandbox {
            sandbox.weigh(Weight::of_cores(call.owned.milli_cores.saturating_mul(call.workers)))?;
        }
        group.admit(call.pid)?;
        Ok(Self {
            group,
            owned: call.owned,
            call: None,
        })
    }

    /// Begins to measure a call.
    pub fn begin(&mut self, id: CallId) -> Result<(), GroupError> {
        let last = self.group.read()?;
        self.call = Some(RunningCall {
            id,
            at: Instant::now(),
            last,
        });
        Ok(())
    }

    /// What it owns.
    pub fn owned(&self) -> Amount {
        self.owned
    }

    /// Ends the measurement of the running call.
    pub fn end(&mut self) -> Option<CallId> {
        self.call.take().map(|call| call.id)
    }

    /// What the running call used since the last window. `None` without a call, and for a very short window.
    pub fn measure(&mut self) -> Result<Option<(CallId, Window)>, GroupError> {
        let Some(call) = &mut self.call else { return Ok(None) };
        if call.at.elapsed() < MIN_WINDOW {
            return Ok(None);
        }
        let now = self.group.read()?;
        let at = Instant::now();
        let window = window(&call.last, &now, at - call.at);
        (call.last, call.at) = (now, at);
        Ok(Some((call.id, window)))
    }
}

/// What was used between two readings.
fn window(before: &Reading, after: &Reading, length: Duration) -> Window {
    let length_ns = length.as_nanos().max(1);
    let share = |ns: u64, scale: u128| u64::try_from(u128::from(ns) * scale / length_ns).unwrap_or(u64::MAX);
    let waited = match (before.waiting_ns, after.waiting_ns) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        // No record: only its use speaks for it.
        _ => 0,
    };
    Window {
        length,
        used: Amount::new(
            share(after.cpu_ns.saturating_sub(before.cpu_ns), 1_000),
            after.memory_peak_bytes,
        ),
        waiting_ppm: share(waited, 1_000_000).min(1_000_000) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_use_per_measured_time() {
        let reading = |cpu_ns, waiting_ns| Reading {
            cpu_ns,
            waiting_ns,
            memory_peak_bytes: 5,
            ..Reading::default()
        };
        let length = Duration::from_millis(200);
        let used = window(&reading(7, Some(0)), &reading(100_000_007, Some(4_000_000)), length);
        assert_eq!((used.used, used.waiting_ppm), (Amount::new(500, 5), 20_000));
        // Counters that fall, as of another group, count as nothing; waiting of many threads counts as all of the time.
        let odd = window(&reading(9, Some(0)), &reading(0, Some(u64::MAX)), length);
        assert_eq!((odd.used.milli_cores, odd.waiting_ppm), (0, 1_000_000));
        let endless = window(&reading(0, None), &reading(u64::MAX, Some(1)), Duration::ZERO);
        assert_eq!((endless.used.milli_cores, endless.waiting_ppm), (u64::MAX, 0));
    }
}
