use dayfly_protocol::api::LeaseChange;
use dayfly_protocol::ids::{LeaseId, PublicKey};
use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
const LEASE: LeaseId = LeaseId([1; 16]);
const OTHER: LeaseId = LeaseId([2; 16]);

fn request(workers: u16, mode: Mode) -> LeaseRequest {
    LeaseRequest {
        memory_bytes: u64::from(workers) * GIB,
        ..LeaseRequest::native(workers, mode, 1_000, PublicKey([0; 32]))
    }
}

fn change(
    ledger: &mut Ledger,
    lease: &LeaseId,
    request: &LeaseRequest,
    kept_cores: &[u16],
    cores: usize,
) -> Result<Reservation, LedgerError> {
    let wanted = Wanted {
        request,
        kept_cores,
        cores,
    };
    ledger.change(lease, &wanted)
}

/// Four cores to lease, 64 places, 16 GiB.
fn ledger() -> Ledger {
    Ledger::new(Resources {
        workers: 64,
        ..Resources::of_machine((0..5).collect(), 16 * GIB)
    })
}

#[test]
fn grown_lease_keeps_its_cores() {
    let mut ledger = ledger();
    let before = ledger.reserve(LEASE, &request(2, Mode::Hot)).unwrap().clone();
    let after = change(&mut ledger, &LEASE, &request(3, Mode::Hot), &before.cores, 3).unwrap();
    assert_eq!(after.cores[..2], before.cores[..]);
    assert_eq!((after.cores.len(), after.workers), (3, 3));
    assert_eq!((ledger.free().cores, ledger.free().memory_bytes), (1, 13 * GIB));
    ledger.release(&LEASE);
    assert_eq!(ledger.free(), ledger.capacity());
}

#[test]
fn refused_change_leaves_the_lease_alone() {
    let mut ledger = ledger();
    let before = ledger.reserve(LEASE, &request(2, Mode::Hot)).unwrap().clone();
    ledger.reserve(OTHER, &request(1, Mode::Hot)).unwrap();
    let free = ledger.free();
    let refused = change(&mut ledger, &LEASE, &request(4, Mode::Hot), &before.cores, 4).unwrap_err();
    assert_eq!(refused.code(), Code::NoCapacity, "{refused}");
    let refused = change(&mut ledger, &LEASE, &request(5, Mode::Hot), &before.cores, 5).unwrap_err();
    assert_eq!(refused.code(), Code::TooLarge, "{refused}");
    assert_eq!((ledger.free(), ledger.held(&LEASE)), (free, Some(&before)));
}

#[test]
fn shrunken_lease_frees_cores_beyond_its_number() {
    let mut ledger = ledger();
    let before = ledger.reserve(LEASE, &request(3, Mode::Hot)).unwrap().clone();
    let after = change(&mut ledger, &LEASE, &request(1, Mode::Hot), &before.cores, 1).unwrap();
    assert_eq!(after.cores[..], before.cores[..1]);
    assert_eq!(ledger.free().cores, 3);
}

#[test]
fn malformed_change_is_refused() {
    let change = |workers, min_workers| {
        validate_change(&LeaseChange {
            workers,
            min_workers,
            ..LeaseChange::default()
        })
    };
    for right in [(None, None), (Some(1), None), (Some(4), Some(4)), (Some(4), Some(1))] {
        assert_eq!(change(right.0, right.1), Ok(()), "{right:?}");
    }
    for wrong in [(Some(0), None), (None, Some(1)), (Some(4), Some(0)), (Some(4), Some(5))] {
        let error = change(wrong.0, wrong.1).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest, "{wrong:?}");
    }
}

#[test]
fn change_of_mode_exchanges_cores_for_places() {
    let mut ledger = ledger();
    ledger.reserve(LEASE, &request(2, Mode::Hot)).unwrap();
    change(&mut ledger, &LEASE, &request(2, Mode::Warm), &[], 0).unwrap();
    assert_eq!((ledger.free().cores, ledger.free().workers), (4, 62_u16.into()));
    let hot = change(&mut ledger, &LEASE, &request(2, Mode::Hot), &[], 2).unwrap();
    assert_eq!((hot.cores.len(), hot.places), (2, MilliCores::ZERO));
    assert_eq!((ledger.free().cores, ledger.free().workers), (2, 64_u16.into()));
}

#[test]
fn lent_core_returns_if_it_is_free() {
    let mut ledger = ledger();
    let own = ledger.reserve(LEASE, &request(1, Mode::Hot)).unwrap().cores.clone();
    ledger.lend(&LEASE, &own);
    assert_eq!(ledger.free().cores, 4);
    assert_eq!(ledger.take_back(&LEASE, &own), Some(own.clone()));
    assert_eq!(ledger.free().cores, 3);
    ledger.lend(&LEASE, &own);
    ledger.reserve(OTHER, &request(4, Mode::Hot)).unwrap();
    assert_eq!(ledger.take_back(&LEASE, &own), None);
    ledger.release(&OTHER);
    assert_eq!(ledger.take_back(&LEASE, &own), Some(own));
}

proptest! {
    #[test]
    fn changes_neither_lose_nor_invent_resources(
        steps in proptest::collection::vec((any::<bool>(), 1..8_u16, any::<bool>(), 0..3_u8), 1..60)
    ) {
        let mut ledger = ledger();
        for (first, workers, hot, what) in steps {
            let lease = if first { LEASE } else { OTHER };
            let wanted = request(workers, if hot { Mode::Hot } else { Mode::Warm });
            let owned = ledger.held(&lease).map(|held| held.cores.clone());
            match (what, owned) {
                (_, None) => drop(ledger.reserve(lease, &wanted)),
                (0, Some(_)) => drop(ledger.release(&lease)),
                (1, Some(owned)) => {
                    let cores = if hot { usize::from(workers) } else { 0 };
                    drop(change(&mut ledger, &lease, &wanted, &owned, cores));
                }
                (_, Some(owned)) => {
                    ledger.lend(&lease, &owned);
                    drop(ledger.take_back(&lease, &owned));
                }
            }
            let held: Vec<Reservation> = [LEASE, OTHER].iter().filter_map(|lease| ledger.held(lease).cloned()).collect();
            let mut cores: Vec<u16> = held.iter().flat_map(|held| held.cores.clone()).collect();
            cores.extend(&ledger.free_cores);
            cores.sort_unstable();
            prop_assert_eq!(cores, vec![1, 2, 3, 4]);
            let memory: u64 = held.iter().map(|held| held.memory_bytes).sum();
            prop_assert_eq!(ledger.free().memory_bytes + memory, 16 * GIB);
        }
        ledger.release(&LEASE);
        ledger.release(&OTHER);
        prop_assert_eq!(ledger.free(), ledger.capacity());
    }
}
