//! What a renewal may change: mode, polling and number of workers. This `impl` plans a change and carries it out; the
//! lease table reserves what it takes.

use dayfly_lease::ledger::Wanted;
use dayfly_protocol::api::{HeldTerms, LeaseChange, LeaseRequest};

use super::lending::CorePin;
use super::*;

/// Time in which a worker that is given back reads its orders, in milliseconds: it may be about to begin a call.
const STOP_MS: u64 = 10;

/// The terms of a lease that a renewal may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentTerms {
    /// Never [`Mode::Auto`].
    pub mode: Mode,
    /// Milliseconds that a hot worker polls.
    pub hot_for_ms: u32,
    /// Microseconds that a warm worker polls.
    pub poll_for_us: u32,
    /// Number of workers, without those that are being retired.
    pub workers: u16,
}

impl CurrentTerms {
    /// The terms of a new lease.
    pub fn of(request: &LeaseRequest, reservation: &Reservation) -> Self {
        Self {
            mode: reservation.mode,
            hot_for_ms: request.hot_for_ms,
            poll_for_us: request.poll_for_us,
            workers: reservation.workers,
        }
    }

    /// Whether workers poll without end.
    pub fn never_sleeps(&self) -> bool {
        self.mode == Mode::Hot && self.hot_for_ms == u32::MAX
    }
}

/// A change of a lease, and what it takes of the node.
#[derive(Debug)]
pub struct Plan {
    /// What the lease holds afterwards, the workers included that are being retired.
    request: LeaseRequest,
    /// Cores that its workers go on using.
    kept_cores: Vec<u16>,
    /// How many cores it owns afterwards.
    cores: usize,
    terms: CurrentTerms,
    retired: Vec<usize>,
    added: Vec<usize>,
}

impl Plan {
    /// What the lease is to hold afterwards.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            request: &self.request,
            kept_cores: &self.kept_cores,
            cores: self.cores,
        }
    }
}

impl NodeLease {
    /// What it holds now.
    pub fn reservation(&self) -> Reservation {
        self.lock().reservation.clone()
    }

    /// The terms that a renewal may change.
    pub fn terms(&self) -> CurrentTerms {
        self.lock().terms
    }

    /// What its holder is granted now.
    pub fn held_terms(&self) -> HeldTerms {
        let state = self.lock();
        let serving = serving(&state);
        let is_dense = serving.iter().enumerate().all(|(at, number)| at == *number);
        let terms = state.terms;
        HeldTerms {
            lease: self.id(),
            workers: terms.workers,
            numbers: match is_dense {
                true => Vec::new(),
                false => serving.into_iter().map(|number| number as u16).collect(),
            },
            mode: terms.mode,
            memory_bytes: memory_for(&state.reservation, terms.workers),
        }
    }

    /// What its holder is granted now, if a renewal has changed that.
    pub fn changed_terms(&self) -> Option<HeldTerms> {
        let has_changed = self.lock().has_changed;
        has_changed.then(|| self.held_terms())
    }

    /// Number of workers that the lease has, with those that it has given back.
    pub fn slot_count(&self) -> u16 {
        self.lock().slots.len() as u16
    }

    /// [`NodeLease::slot_count`], and the numbers of those that it has given back.
    pub fn retired(&self) -> (u16, Vec<u16>) {
        let state = self.lock();
        let gone = state.slots.iter().enumerate().filter(|(_, slot)| !slot.is_serving());
        (state.slots.len() as u16, gone.map(|(index, _)| index as u16).collect())
    }

    /// Has a new executor follow the changes since its assignment, which named so many workers and these as retired.
    pub(super) fn complete_assignment(state: &LeaseData, workers: u16, retired: &[u16]) {
        let (mut added, mut given_back) = (Vec::new(), Vec::new());
        for (index, slot) in state.slots.iter().enumerate() {
            let worker = WorkerIndex(index as u16);
            let is_started = worker.0 < workers && !retired.contains(&worker.0);
            match (slot.is_serving(), is_started) {
                (true, false) => added.push(worker),
                (false, true) => given_back.push(worker),
                _ => {}
            }
        }
        start_workers(state.control.as_ref(), added);
        retire_workers(state.control.as_ref(), given_back);
    }

    /// Whether the limits of its sandbox have changed since the last call.
    pub fn take_new_limits(&self) -> bool {
        std::mem::take(&mut self.lock().has_new_limits)
    }

    /// Returns an error unless the lease may be renewed for this long.
    pub fn check_renewal(&self, duration_ms: u64) -> Result<(), Failure> {
        if duration_ms == 0 {
            return Err(dayfly_lease::state::LeaseError::NoDuration.into());
        }
        Ok(self.lock().life.check(clock::now_ms())?)
    }

    /// Restarts its duration from now.
    pub fn renew(&self, duration_ms: u64) -> Result<(), Failure> {
        self.lock().life.renew(clock::now_ms(), duration_ms)?;
        self.wake.notify_one();
        Ok(())
    }

    /// Plans a change to this many workers in this mode. Nothing changes yet.
    pub fn plan(&self, change: &LeaseChange, workers: u16, mode: Mode) -> Result<Plan, Failure> {
        let state = self.lock();
        state.life.check(clock::now_ms())?;
        let serving = serving(&state);
        if usize::from(workers) != serving.len() {
            self.check_resizable()?;
        }
        let retired = self.choose_retired(&state, serving.len().saturating_sub(workers.into()))?;
        let lacking = usize::from(workers).saturating_sub(serving.len());
        let added = vacant_numbers(&state, lacking);
        if added.len() < lacking {
            let text = format!("a lease has at most {MAX_WORKERS} workers, also while some of them end; ask for fewer");
            return Err(Failure::new(Code::TooLarge, text));
        }
        let occupied = state.slots.iter().filter(|slot| !slot.is_gone()).count() + added.len();
        let own_cores = usize::from(self.granted.request.cores_per_worker.as_whole().unwrap_or(1));
        let kept_cores: Vec<u16> = match (state.terms.mode, mode) {
            (Mode::Hot, Mode::Hot) => state.slots.iter().flat_map(|slot| slot.cores().to_vec()).collect(),
            _ => Vec::new(),
        };
        let cores = match (state.terms.mode, mode) {
            (Mode::Hot, Mode::Hot) => kept_cores.len() + added.len() * own_cores,
            (_, Mode::Hot) => usize::from(workers) * own_cores,
            _ => 0,
        };
        let terms = CurrentTerms {
            mode,
            hot_for_ms: change.hot_for_ms.unwrap_or(state.terms.hot_for_ms),
            poll_for_us: change.poll_for_us.unwrap_or(state.terms.poll_for_us),
            workers,
        };
        Ok(Plan {
            request: LeaseRequest {
                workers: occupied as u16,
                mode,
                memory_bytes: memory_for(&state.reservation, occupied as u16),
                hot_for_ms: terms.hot_for_ms,
                poll_for_us: terms.poll_for_us,
                ..self.granted.request.clone()
            },
            kept_cores,
            cores,
            terms,
            retired,
            added,
        })
    }

    /// Returns an error if the number of workers is fixed.
    fn check_resizable(&self) -> Result<(), Failure> {
        let granted = &self.granted;
        let text = if granted.origin.allowance().is_some() {
            "a lease under an allowance keeps its number of workers, which counts against the allowance on all nodes; \
             take another lease under it, or lease from the manager"
        } else if granted.request.is_gang {
            "a lease of a gang keeps its number of workers, because its ranks count on each other; lease another gang"
        } else if granted.request.gpus_per_worker > 0 {
            "a lease with GPUs keeps its number of workers; lease again for more or fewer"
        } else {
            return Ok(());
        };
        Err(Failure::new(Code::InvalidRequest, text))
    }

    /// The workers to give back: those without a running call first, then those without a channel, then the highest
    /// numbers. Delegated ones stay.
    fn choose_retired(&self, state: &LeaseData, count: usize) -> Result<Vec<usize>, Failure> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let is_free = |index: &usize| !state.delegations.is_delegated(*index as u16);
        let mut candidates: Vec<usize> = serving(state).into_iter().filter(is_free).collect();
        if candidates.len() < count {
            let text = format!(
                "{count} workers are to be given back, and only {} are not delegated; take delegations back first",
                candidates.len()
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        candidates.sort_by_key(|index| {
            let is_running = self.meters[*index].read().is_running();
            let has_channel = state.slots[*index].channel().is_some();
            (is_running, has_channel, std::cmp::Reverse(*index))
        });
        candidates.truncate(count);
        Ok(candidates)
    }

    /// Carries out a change for which this was reserved. `grace` is for running calls of workers that are given back.
    /// Returns the processes to pin to other cores.
    pub fn apply(&self, plan: Plan, reservation: Reservation, grace: Duration) -> Vec<CorePin> {
        let mut state = self.lock();
        let mut fresh = reservation.cores[plan.kept_cores.len().min(reservation.cores.len())..].to_vec();
        let own_cores = usize::from(self.granted.request.cores_per_worker.as_whole().unwrap_or(1));
        let was_hot = state.terms.mode == Mode::Hot;
        let is_hot = plan.terms.mode == Mode::Hot;
        let allocated_ms = state.life.allocated_ms(clock::now_ms());
        let now_ms = clock::now_ms();
        let until_ms = now_ms.saturating_add(grace.as_millis() as u64);
        for index in &plan.retired {
            state.slots[*index].retire(now_ms.saturating_add(STOP_MS)..until_ms.max(now_ms + STOP_MS));
        }
        for index in &plan.added {
            while state.slots.len() <= *index {
                state.slots.push(WorkerSlot::default());
            }
            state.slots[*index].revive(allocated_ms);
        }
        let mut pins = Vec::new();
        for (index, slot) in state.slots.iter_mut().enumerate() {
            let needs_cores = is_hot && slot.is_serving() && (!was_hot || plan.added.contains(&index));
            if needs_cores {
                let rest = fresh.split_off(own_cores.min(fresh.len()));
                slot.set_cores(std::mem::replace(&mut fresh, rest));
            } else if !is_hot {
                slot.set_cores(Vec::new());
            }
            if was_hot != is_hot
                && let Some(process) = slot.running_pid()
            {
                pins.push(CorePin {
                    process,
                    cores: slot.cores().to_vec(),
                });
            }
        }
        state.reservation = reservation;
        state.terms = plan.terms;
        state.has_changed = true;
        state.has_new_limits = true;
        let numbers = state.slots.len() as u16;
        state.delegations.set_workers(numbers);
        self.give_orders(&state);
        let added = plan.added.iter().map(|index| WorkerIndex(*index as u16));
        start_workers(state.control.as_ref(), added.collect());
        drop(state);
        self.notify_changed();
        self.wake.notify_one();
        pins
    }

    /// Ends workers that are given back, when their call has ended or their grace is over. Returns whether any remain.
    pub(super) fn advance_retirements(&self, state: &mut LeaseData, now_ms: u64) -> bool {
        let mut remain = false;
        let LeaseData { slots, control, .. } = &mut *state;
        let mut over = Vec::new();
        for (index, (slot, meter)) in slots.iter_mut().zip(&self.meters).enumerate() {
            let Some(time) = slot.retires_within() else { continue };
            remain = true;
            // Its orders forbid it to begin another call.
            let is_stopped = now_ms >= time.start && !meter.read().is_running();
            if is_stopped || now_ms >= time.end {
                // Its channel ends with its process: only then is it certain which calls have begun.
                slot.end_for_good();
                over.push(WorkerIndex(index as u16));
            }
        }
        retire_workers(control.as_ref(), over);
        remain
    }

    /// Completes the retirement of a worker whose process is gone.
    pub(super) fn end_retirement(state: &mut LeaseData, index: usize) {
        let allocated_ms = state.life.allocated_ms(clock::now_ms());
        state.slots[index].end_retirement(allocated_ms);
    }
}

/// Requests workers of an executor. A dead one is replaced by one that starts all workers.
fn start_workers(control: Option<&ControlSocket>, workers: Vec<WorkerIndex>) {
    if let Some(control) = control.filter(|_| !workers.is_empty()) {
        let _ = control.send(&ToExecutor::Start { workers }, &[]);
    }
}

/// Requests an executor to end workers for good. If it cannot take that, it is stuck or dead, and either is noticed.
pub(super) fn retire_workers(control: Option<&ControlSocket>, workers: Vec<WorkerIndex>) {
    if let Some(control) = control.filter(|_| !workers.is_empty()) {
        let _ = control.send(&ToExecutor::Retire { workers }, &[]);
    }
}

/// The numbers of the workers that are not being retired.
fn serving(state: &LeaseData) -> Vec<usize> {
    let slots = state.slots.iter().enumerate();
    slots
        .filter(|(_, slot)| slot.is_serving())
        .map(|(index, _)| index)
        .collect()
}

/// The lowest numbers that no worker has.
fn vacant_numbers(state: &LeaseData, count: usize) -> Vec<usize> {
    let vacant = (0..usize::from(MAX_WORKERS)).filter(|index| state.slots.get(*index).is_none_or(WorkerSlot::is_gone));
    vacant.take(count).collect()
}

/// Memory for so many workers in proportion to what the lease holds, in bytes.
pub(super) fn memory_for(reservation: &Reservation, workers: u16) -> u64 {
    if workers == reservation.workers {
        return reservation.memory_bytes;
    }
    let of_one = reservation.memory_bytes.div_ceil(reservation.workers.max(1).into());
    of_one.saturating_mul(workers.into())
}
