//! Cores of hot workers that sleep. A worker that polled for its time and fell asleep lends its cores to other leases.
//! When it wakes up it gets cores again, or shares cores as a warm worker does until some are free.

use dayfly_executor::meter::Orders;
use dayfly_lease::Ledger;
use dayfly_lease::ledger::Wanted;
use dayfly_protocol::api::LeaseRequest;

use super::changes::memory_for;
use super::*;

/// Shortest sleep after which cores are lent, in milliseconds: a caller that returns sooner finds its worker hot.
const MIN_SLEEP_MS: u64 = 100;
/// How long a worker polls that woke up without its cores, in microseconds: longer than it takes to notice.
const WAKE_POLL_US: u64 = 60_000;

/// A process, and the cores to pin it to; the shared ones if there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorePin {
    pub process: u32,
    pub cores: Vec<u16>,
}

impl NodeLease {
    /// Whether [`NodeLease::settle`] has something to do.
    pub fn needs_settling(&self) -> bool {
        let now_ms = clock::now_ms();
        let mut state = self.lock();
        let LeaseData {
            slots,
            terms,
            reservation,
            life,
            ..
        } = &mut *state;
        if !life.state().is_live() {
            return false;
        }
        let mut needs = slots.iter().filter(|slot| !slot.is_gone()).count() != usize::from(reservation.workers);
        let is_hot = terms.mode == Mode::Hot;
        for (slot, meter) in slots.iter_mut().zip(&self.meters).filter(|_| is_hot) {
            needs |= slot.lent().is_some() || sleeps_long(slot, meter, terms.hot_for_ms, now_ms);
        }
        needs
    }

    /// Frees what retired workers held, lends the cores of sleeping workers, and gets cores for those that woke up.
    /// Returns the processes to pin to other cores.
    pub fn settle(&self, ledger: &mut Ledger) -> Vec<CorePin> {
        let now_ms = clock::now_ms();
        let mut state = self.lock();
        self.free_retired(&mut state, ledger);
        let hot_for_ms = state.terms.hot_for_ms;
        let is_hot = state.terms.mode == Mode::Hot;
        let mut pins = Vec::new();
        for index in (0..state.slots.len()).filter(|_| is_hot) {
            let (slot, meter) = (&mut state.slots[index], &self.meters[index]);
            if !slot.is_serving() {
                continue;
            }
            let cores = match slot.lent().cloned() {
                Some(lent) => match meter.read().awake {
                    true => ledger.take_back(&self.id(), &lent),
                    false => None,
                },
                None if sleeps_long(slot, meter, hot_for_ms, now_ms) => {
                    meter.set_orders(Orders::default());
                    // It may have woken up meanwhile, and then may count on its cores.
                    (!meter.read().awake).then(|| {
                        ledger.lend(&self.id(), &slot.lend_cores());
                        Vec::new()
                    })
                }
                None => continue,
            };
            if let Some(cores) = cores {
                if !cores.is_empty() {
                    slot.set_cores(cores);
                }
                pins.extend(slot.running_pid().map(|process| CorePin {
                    process,
                    cores: slot.cores().to_vec(),
                }));
            }
            let can_return = slot.lent().is_some_and(|lent| lent.len() <= ledger.free_core_count());
            meter.set_orders(orders_of(&state.terms, &state.slots[index], can_return));
        }
        if !pins.is_empty() {
            state.has_new_limits = true;
        }
        if let Some(held) = ledger.held(&self.id()) {
            state.reservation.cores.clone_from(&held.cores);
        }
        pins
    }

    /// Frees what retired workers held.
    fn free_retired(&self, state: &mut LeaseData, ledger: &mut Ledger) {
        let occupied = state.slots.iter().filter(|slot| !slot.is_gone()).count() as u16;
        if occupied == state.reservation.workers || occupied == 0 {
            return;
        }
        let kept: Vec<u16> = state.slots.iter().flat_map(|slot| slot.cores().to_vec()).collect();
        let request = LeaseRequest {
            workers: occupied,
            mode: state.terms.mode,
            memory_bytes: memory_for(&state.reservation, occupied),
            ..self.granted.request.clone()
        };
        let wanted = Wanted {
            request: &request,
            kept_cores: &kept,
            cores: kept.len(),
        };
        match ledger.change(&self.id(), &wanted) {
            Ok(reservation) => {
                state.reservation = reservation;
                state.has_new_limits = true;
            }
            Err(error) => tracing::debug!(lease = %self.id(), %error, "retired workers keep what they held"),
        }
    }

    /// Gives every worker the orders that follow from the terms.
    pub(super) fn give_orders(&self, state: &LeaseData) {
        for (slot, meter) in state.slots.iter().zip(&self.meters) {
            meter.set_orders(orders_of(&state.terms, slot, true));
        }
    }

    /// Processes of workers without cores of their own.
    pub fn coreless_processes(&self) -> Vec<u32> {
        let state = self.lock();
        let coreless = state.slots.iter().filter(|slot| slot.cores().is_empty());
        coreless.filter_map(WorkerSlot::running_pid).collect()
    }

    /// The cores of a worker; none if it shares cores.
    pub fn cores_of(&self, worker: WorkerIndex) -> Vec<u16> {
        let state = self.lock();
        let slot = state.slots.get(usize::from(worker.0));
        slot.map(|slot| slot.cores().to_vec()).unwrap_or_default()
    }

    /// Whether every worker has cores of its own.
    pub fn owns_all_cores(&self) -> bool {
        let state = self.lock();
        let mut present = state.slots.iter().filter(|slot| !slot.is_gone());
        present.all(|slot| !slot.cores().is_empty())
    }
}

/// Whether a worker has slept with its cores for so long that they are lent.
fn sleeps_long(slot: &mut WorkerSlot, meter: &Meter, hot_for_ms: u32, now_ms: u64) -> bool {
    if hot_for_ms == u32::MAX {
        return false;
    }
    // Without a channel it does not poll before it sleeps.
    let least_ms = match slot.channel() {
        Some(_) => MIN_SLEEP_MS,
        None => MIN_SLEEP_MS.max(hot_for_ms.into()),
    };
    let is_asleep = slot.is_serving() && !meter.read().awake;
    slot.asleep_ms(is_asleep, now_ms) >= least_ms
}

/// The orders for a worker. `can_return` is whether there are cores for it if it lent its own.
fn orders_of(terms: &CurrentTerms, slot: &WorkerSlot, can_return: bool) -> Orders {
    let hot_us = match terms.hot_for_ms {
        u32::MAX => Orders::WITHOUT_END,
        ms => u64::from(ms) * 1_000,
    };
    let poll_us = match (terms.mode, slot.lent()) {
        (Mode::Hot, None) => hot_us,
        (Mode::Hot, Some(_)) if can_return => hot_us.min(WAKE_POLL_US),
        _ => terms.poll_for_us.into(),
    };
    Orders {
        owns_cores: !slot.cores().is_empty(),
        stops: !slot.is_serving(),
        poll_us,
    }
}
