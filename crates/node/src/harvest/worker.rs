//! One measured worker: its control group, and the readings of its running call.

use std::sync::Weak;
use std::time::{Duration, Instant};

use dayfly_harvest::{Amount, CallId};
use dayfly_protocol::executor::MIN_LONG_CALL_US;
use dayfly_protocol::node_api::{CallLoans, End, Printer};
use dayfly_sandbox::cgroup::{Group, GroupError, Hierarchies, Reading, Weight, WorkerGroup};

use super::driver::{BegunCall, WorkerKey};
use super::memory::MemoryLimits;
use super::series::Series;
use crate::leases::NodeLease;
use crate::loan_sums::LoanWindow;

/// Shortest window that is measured: the kernel accounts in ticks of up to 4 ms.
const MIN_WINDOW: Duration = Duration::from_millis(10);

/// What a call used in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub length: Duration,
    pub used: Amount,
    pub waiting_ppm: u32,
}

/// Share of what it owns, in percent, below which a borrower that waits counts as starved.
const STARVED_PERCENT: u64 = 95;
/// Share of a window, in millionths, that a starved borrower waits.
const STARVED_WAITING_PPM: u32 = 50_000;

/// The other measured workers of a lease.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Others {
    /// What they borrowed together, in thousandths of a core.
    pub borrowed: u64,
    /// Those with less weight.
    pub light: u64,
    /// What they borrowed together, in bytes.
    pub memory: u64,
}

/// A worker with a group of its own.
#[derive(Debug)]
pub(super) struct MeasuredWorker {
    group: WorkerGroup,
    sandbox: Option<Weak<Group>>,
    lease: Weak<NodeLease>,
    /// Workers of its lease.
    workers: u64,
    owned: Amount,
    /// Its limit of processor time in thousandths of a core: what it owns, and what it borrowed.
    limit: u64,
    /// Whether it has less weight than others.
    is_light: bool,
    memory: MemoryLimits,
    call: Option<RunningCall>,
}

#[derive(Debug)]
struct RunningCall {
    id: CallId,
    /// As its client knows it.
    by: Printer,
    series: Series,
    last_window: Option<LoanWindow>,
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
        let memory = MemoryLimits::new(&group, call.sandbox.clone(), call.owned.memory_bytes)?;
        Ok(Self {
            group,
            memory,
            sandbox: call.sandbox.clone(),
            lease: call.lease.clone(),
            workers: call.workers.max(1),
            owned: call.owned,
            limit: call.owned.milli_cores,
            is_light: false,
            call: None,
        })
    }

    /// Changes its limit of processor time, and its weight: a borrower has less than others, so that those who own cores
    /// get them back before anybody reacts. `others` are the other workers of its lease.
    pub fn limit_cpu(&mut self, milli_cores: u64, others: &Others) -> Result<(), GroupError> {
        let milli_cores = milli_cores.max(self.owned.milli_cores);
        let borrowed = milli_cores - self.owned.milli_cores;
        // Of the sandbox.
        let whole = self.owned.milli_cores.saturating_mul(self.workers);
        let whole = whole.saturating_add(others.borrowed).saturating_add(borrowed);
        if milli_cores <= self.limit {
            return self.lower(milli_cores, whole, others);
        }
        let before = (self.limit, whole - (milli_cores - self.limit));
        self.limit = milli_cores;
        // No group of version 1 may have more than the one above it.
        let raised = self
            .set_light(true, others)
            .and_then(|()| self.limit_sandbox(whole))
            .and_then(|()| self.group.limit_cpu(milli_cores));
        if raised.is_err() {
            let _ = self.lower(before.0, before.1, others);
        }
        raised
    }

    /// Lowers its limit, then that of its sandbox, also if its own group is gone.
    fn lower(&mut self, milli_cores: u64, whole: u64, others: &Others) -> Result<(), GroupError> {
        let lowered = self.group.limit_cpu(milli_cores);
        if lowered.as_ref().is_err_and(|error| !error.is_vanished()) {
            return lowered;
        }
        self.limit = milli_cores;
        self.limit_sandbox(whole)?;
        self.set_light(self.has_loans(), others)?;
        lowered
    }

    /// Whether its limit is above what it owns.
    pub fn has_loans(&self) -> bool {
        self.limit > self.owned.milli_cores
    }

    /// What it borrowed, in thousandths of a core.
    pub fn borrowed(&self) -> u64 {
        self.limit.saturating_sub(self.owned.milli_cores)
    }

    /// Its limit of processor time in thousandths of a core.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether it has less weight than others.
    pub fn is_light(&self) -> bool {
        self.is_light
    }

    /// Gives a borrower that got less than it owns, and waited, the weight of its own cores, until it has them: calls
    /// that are not measured have the weight of others, too.
    pub fn balance(&mut self, window: &Window, others: &Others) -> Result<(), GroupError> {
        if !self.has_loans() {
            return Ok(());
        }
        let own = self.owned.milli_cores.saturating_mul(STARVED_PERCENT) / 100;
        let is_starved = window.used.milli_cores < own && window.waiting_ppm > STARVED_WAITING_PPM;
        self.set_light(!is_starved, others)
    }

    /// Its limits of memory, and the group that has them.
    pub fn memory(&mut self) -> (&mut MemoryLimits, &WorkerGroup) {
        (&mut self.memory, &self.group)
    }

    /// What it borrowed of memory, in bytes.
    pub fn borrowed_memory(&self) -> u64 {
        self.memory.borrowed()
    }

    /// Lets its lease learn that its process was killed for lack of memory.
    pub fn watch_memory(&self, key: WorkerKey) {
        if let Some(lease) = self.lease.upgrade() {
            lease.watch_memory(key.worker, key.incarnation, self.memory.watch());
        }
    }

    /// Moves it out of its group, and removes the group. Returns whether that is done.
    pub fn leave(&mut self, others: &Others) -> bool {
        self.group.leave() && self.memory.leave_sandbox(others.memory)
    }

    /// Records what its call had in a window, and what its lease lent and borrowed.
    pub fn note_loans(&mut self, window: &LoanWindow) {
        if let Some(call) = &mut self.call {
            call.series.add(window);
            call.last_window = Some(*window);
        }
        let has_loans = window.lent != Amount::ZERO || window.borrowed != Amount::ZERO;
        if let Some(lease) = self.lease.upgrade().filter(|_| has_loans) {
            lease.add_loans(window);
        }
    }

    /// Ends its process for this reason, if it still runs.
    pub fn kill(&self, key: WorkerKey, end: End) {
        let lease = self.lease.upgrade();
        if let Some(lease) = lease.filter(|lease| lease.is_running(key.worker, key.incarnation)) {
            lease.kill_worker(key.worker, end);
        }
    }

    /// Ends its process, since it cannot be lowered to what it may have.
    pub fn kill_borrower(&self, key: WorkerKey) {
        let signal = rustix::process::Signal::KILL.as_raw();
        self.kill(
            key,
            match self.memory.is_returning() {
                true => End::MemoryReturned,
                // As if the system had.
                false => End::Signalled { signal },
            },
        );
    }

    fn limit_sandbox(&self, milli_cores: u64) -> Result<(), GroupError> {
        match self.sandbox.as_ref().and_then(Weak::upgrade) {
            Some(sandbox) => sandbox.limit_cpu(milli_cores),
            None => Ok(()),
        }
    }

    fn set_light(&mut self, is_light: bool, others: &Others) -> Result<(), GroupError> {
        if is_light == self.is_light {
            return Ok(());
        }
        let owned = self.owned.milli_cores;
        let (light, full) = (Weight::below_others(owned), Weight::of_cores(owned));
        let own = match is_light {
            true => light,
            false => full,
        };
        self.group.weigh(own)?;
        if let Some(sandbox) = self.sandbox.as_ref().and_then(Weak::upgrade) {
            let heavy = (self.workers - 1).saturating_sub(others.light);
            let full = Weight::of_cores(owned.saturating_mul(heavy));
            let mut all = vec![own];
            all.extend((0..others.light).map(|_| light));
            if heavy > 0 {
                all.push(full);
            }
            sandbox.weigh(Weight::sum(all))?;
        }
        self.is_light = is_light;
        Ok(())
    }

    /// Begins to measure a call, which its client knows as `by`.
    pub fn begin(&mut self, id: CallId, by: Printer) -> Result<(), GroupError> {
        let last = self.group.read()?;
        self.call = Some(RunningCall {
            id,
            by,
            series: Series::default(),
            last_window: None,
            at: Instant::now(),
            last,
        });
        Ok(())
    }

    /// What it owns.
    pub fn owned(&self) -> Amount {
        self.owned
    }

    /// The running call.
    pub fn call(&self) -> Option<CallId> {
        self.call.as_ref().map(|call| call.id)
    }

    /// The last window of the running call.
    pub fn last_window(&self) -> Option<LoanWindow> {
        self.call.as_ref().and_then(|call| call.last_window)
    }

    /// Ends the measurement of the running call. Keeps what a long call had for its client, if that attributes output.
    pub fn end(&mut self) -> Option<CallId> {
        let RunningCall { id, by, series, .. } = self.call.take()?;
        if series.us() >= MIN_LONG_CALL_US
            && let Some(lease) = self.lease.upgrade()
            && lease.granted.request.output_by_call
            && let Some(series) = series.report()
        {
            lease.ended_loans().add(CallLoans { by, series });
        }
        Some(id)
    }

    /// The processor time, in thousandths of a core, that the running call has used since the last window. `None` without
    /// a call, and for a very short window.
    pub fn milli_cores(&self) -> Result<Option<(CallId, u64)>, GroupError> {
        let Some(call) = self.call.as_ref().filter(|call| call.at.elapsed() >= MIN_WINDOW) else {
            return Ok(None);
        };
        let cpu_ns = self.group.read_cpu()?;
        Ok(Some((call.id, milli_cores(&call.last, cpu_ns, call.at.elapsed()))))
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

/// The use between two readings.
fn window(before: &Reading, after: &Reading, length: Duration) -> Window {
    let waited = match (before.waiting_ns, after.waiting_ns) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        // No record: only its use speaks for it.
        _ => 0,
    };
    Window {
        length,
        used: Amount::new(milli_cores(before, after.cpu_ns, length), after.memory_peak_bytes),
        waiting_ppm: share(waited, 1_000_000, length).min(1_000_000) as u32,
    }
}

/// The mean use of processors since a reading, in thousandths of a core.
fn milli_cores(before: &Reading, cpu_ns: u64, length: Duration) -> u64 {
    share(cpu_ns.saturating_sub(before.cpu_ns), 1_000, length)
}

/// A part of a time, where all of it is `scale`.
fn share(ns: u64, scale: u128, length: Duration) -> u64 {
    u64::try_from(u128::from(ns) * scale / length.as_nanos().max(1)).unwrap_or(u64::MAX)
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
