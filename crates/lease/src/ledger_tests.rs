use dayfly_protocol::api::HostPath;
use dayfly_protocol::ids::PublicKey;
use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn request(workers: u16, mode: Mode) -> LeaseRequest {
    LeaseRequest::native(workers, mode, 1_000, PublicKey([0; 32]))
}

fn ledger(cores: u16) -> Ledger {
    Ledger::new(Resources::of_machine((0..cores).collect(), 8 * GIB))
}

fn lease(n: u16) -> LeaseId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&n.to_le_bytes());
    LeaseId(id)
}

#[test]
fn hot_lease_owns_cores_and_one_stays_shared() {
    let mut ledger = ledger(4);
    let taken = ledger.reserve(lease(1), &request(3, Mode::Hot)).unwrap().clone();
    assert_eq!(taken.cores, vec![3, 2, 1]);
    assert_eq!(ledger.shared_cores(), vec![0]);
    assert_eq!(ledger.free().cores, 0);
}

#[test]
fn last_core_goes_to_one_of_two_leases() {
    let mut ledger = ledger(2);
    assert!(ledger.reserve(lease(1), &request(1, Mode::Hot)).is_ok());
    let error = ledger.reserve(lease(2), &request(1, Mode::Hot)).unwrap_err();
    assert_eq!(
        error,
        LedgerError::NoCapacity {
            what: "cores",
            asked: MilliCores::ONE.into(),
            free: MilliCores::ZERO.into(),
            total: MilliCores::ONE.into(),
        }
    );
    assert_eq!(error.code(), Code::NoCapacity);
    ledger.release(&lease(1)).unwrap();
    assert!(ledger.reserve(lease(2), &request(1, Mode::Hot)).is_ok());
}

#[test]
fn request_beyond_capacity_is_too_large() {
    let error = ledger(2).reserve(lease(1), &request(2, Mode::Hot)).unwrap_err();
    assert_eq!(error.code(), Code::TooLarge);
    assert_eq!(
        error.to_string(),
        "the lease asks for 2 cores and the node has 1 in all; ask for less or for mode warm, which shares cores"
    );
    let greedy = LeaseRequest {
        memory_bytes: 9 * GIB,
        ..request(1, Mode::Warm)
    };
    assert_eq!(ledger(2).reserve(lease(1), &greedy).unwrap_err().code(), Code::TooLarge);
}

#[test]
fn auto_is_hot_until_no_core_is_free() {
    let mut ledger = ledger(2);
    assert_eq!(
        ledger.reserve(lease(1), &request(1, Mode::Auto)).unwrap().mode,
        Mode::Hot
    );
    let second = ledger.reserve(lease(2), &request(1, Mode::Auto)).unwrap().clone();
    assert_eq!((second.mode, second.cores), (Mode::Warm, vec![]));
}

#[test]
fn one_core_serves_only_warm_leases() {
    let mut ledger = ledger(1);
    assert_eq!(ledger.capacity().cores, 0);
    assert_eq!(
        ledger.reserve(lease(1), &request(1, Mode::Auto)).unwrap().mode,
        Mode::Warm
    );
    assert_eq!(
        ledger.reserve(lease(2), &request(1, Mode::Hot)).unwrap_err().code(),
        Code::TooLarge
    );
}

#[test]
fn invalid_request_is_refused_without_effect() {
    let mut ledger = ledger(4);
    let before = ledger.free();
    for bad in [
        request(0, Mode::Warm),
        LeaseRequest {
            cores_per_worker: MilliCores::ZERO,
            ..request(1, Mode::Warm)
        },
        LeaseRequest {
            cores_per_worker: MilliCores::new(9),
            ..request(1, Mode::Warm)
        },
        LeaseRequest {
            cores_per_worker: MilliCores::new(1_500),
            ..request(1, Mode::Hot)
        },
        LeaseRequest {
            duration_ms: 0,
            ..request(1, Mode::Warm)
        },
        LeaseRequest {
            files: vec![HostPath {
                path: format!("/{}", "x".repeat(4096)),
                writable: false,
            }],
            ..request(1, Mode::Warm)
        },
    ] {
        assert_eq!(ledger.reserve(lease(1), &bad).unwrap_err().code(), Code::InvalidRequest);
    }
    assert_eq!(
        ledger.reserve(lease(1), &request(1025, Mode::Warm)).unwrap_err().code(),
        Code::TooLarge
    );
    assert_eq!(ledger.free(), before);
}

#[test]
fn warm_worker_of_several_cores_takes_several_places() {
    let mut ledger = Ledger::new(Resources {
        workers: 8,
        ..Resources::of_machine((0..8).collect(), 8 * GIB)
    });
    let wide = |workers| LeaseRequest {
        cores_per_worker: MilliCores::from(3_u16),
        ..request(workers, Mode::Warm)
    };
    ledger.reserve(lease(1), &wide(2)).unwrap();
    assert_eq!(ledger.free().workers, MilliCores::from(2_u16));
    assert_eq!(ledger.reserve(lease(2), &wide(1)).unwrap_err().code(), Code::NoCapacity);
    assert_eq!(ledger.reserve(lease(2), &wide(3)).unwrap_err().code(), Code::TooLarge);
    ledger.release(&lease(1));
    assert_eq!(ledger.free().workers, MilliCores::from(8_u16));
}

/// A request for workers of so many thousandths of a core.
fn small(workers: u16, thousandths: u64) -> LeaseRequest {
    LeaseRequest {
        cores_per_worker: MilliCores::new(thousandths),
        ..request(workers, Mode::Warm)
    }
}

#[test]
fn two_places_hold_four_workers_of_half() {
    let mut ledger = Ledger::new(Resources {
        workers: 2,
        ..Resources::of_machine((0..2).collect(), 8 * GIB)
    });
    for n in 0..4 {
        let held = ledger.reserve(lease(n), &small(1, 500)).unwrap();
        assert_eq!((held.places, held.memory_bytes), (MilliCores::new(500), 2 * GIB));
    }
    assert_eq!(ledger.free().workers, MilliCores::ZERO);
    let refused = ledger.reserve(lease(4), &small(1, 10)).unwrap_err();
    assert_eq!(refused.code(), Code::NoCapacity);
    assert!(
        refused
            .to_string()
            .contains("asks for 0.01 places of warm workers of which 0 of 2 are free")
    );
    ledger.release(&lease(0));
    assert!(ledger.reserve(lease(4), &small(2, 250)).is_ok());
}

#[test]
fn auto_with_a_fraction_is_warm() {
    let half = LeaseRequest {
        mode: Mode::Auto,
        ..small(1, 500)
    };
    assert_eq!(ledger(4).reserve(lease(1), &half).unwrap().mode, Mode::Warm);
}

#[test]
fn processes_of_small_workers_are_bounded() {
    let mut ledger = ledger(16);
    let one_byte = |workers| LeaseRequest {
        memory_bytes: 1,
        ..small(workers, 10)
    };
    ledger.reserve(lease(1), &one_byte(1_000)).unwrap();
    assert_eq!(
        ledger.reserve(lease(2), &one_byte(25)).unwrap_err().code(),
        Code::NoCapacity
    );
    ledger.reserve(lease(2), &one_byte(24)).unwrap();
    ledger.release(&lease(1));
    ledger.reserve(lease(3), &one_byte(1_000)).unwrap();
}

#[test]
fn small_workers_compute_at_once_where_they_fit() {
    let mut ledger = ledger(2);
    ledger.reserve(lease(1), &request(3, Mode::Warm)).unwrap();
    assert_eq!(ledger.calls_at_once(), 2);
    ledger.reserve(lease(2), &small(1, 500)).unwrap();
    assert_eq!(ledger.calls_at_once(), 2);
    ledger.reserve(lease(3), &small(5, 400)).unwrap();
    assert_eq!(ledger.calls_at_once(), 5, "five of 0.4 cores");
    ledger.release(&lease(2));
    ledger.release(&lease(3));
    assert_eq!(ledger.calls_at_once(), 2);
}

#[test]
fn gpu_belongs_to_one_lease_at_a_time() {
    let mut ledger = Ledger::new(Resources {
        gpus: ["0", "2", "GPU-7"].map(String::from).to_vec(),
        ..Resources::of_machine((0..4).collect(), 8 * GIB)
    });
    let wanting = |workers, gpus_per_worker| LeaseRequest {
        gpus_per_worker,
        ..request(workers, Mode::Warm)
    };
    assert_eq!(ledger.reserve(lease(1), &wanting(2, 1)).unwrap().gpus, ["0", "2"]);
    assert_eq!(ledger.free().gpus, 1);
    assert_eq!(
        ledger.reserve(lease(2), &wanting(1, 2)).unwrap_err().code(),
        Code::NoCapacity
    );
    assert_eq!(
        ledger.reserve(lease(2), &wanting(2, 2)).unwrap_err().code(),
        Code::TooLarge
    );
    assert_eq!(ledger.reserve(lease(2), &wanting(1, 1)).unwrap().gpus, ["GPU-7"]);
    ledger.release(&lease(1));
    assert_eq!(ledger.reserve(lease(3), &wanting(1, 2)).unwrap().gpus, ["0", "2"]);
    assert_eq!(ledger.reserve(lease(4), &wanting(1, 0)).unwrap().gpus, [""; 0]);
}

#[test]
fn second_reservation_and_second_release_are_refused() {
    let mut ledger = ledger(4);
    ledger.reserve(lease(1), &request(1, Mode::Warm)).unwrap();
    assert!(ledger.reserve(lease(1), &request(1, Mode::Warm)).is_err());
    assert!(ledger.release(&lease(1)).is_some());
    assert!(ledger.release(&lease(1)).is_none());
}

fn any_request() -> impl Strategy<Value = LeaseRequest> {
    let mode = prop_oneof![Just(Mode::Hot), Just(Mode::Warm), Just(Mode::Auto)];
    (
        0..12u16,
        prop_oneof![(0..4u64).prop_map(|cores| cores * 1_000), 0..4_000u64].prop_map(MilliCores::new),
        prop_oneof![Just(0), 1..10 * GIB, Just(u64::MAX)],
        mode,
    )
        .prop_map(|(workers, cores_per_worker, memory_bytes, mode)| LeaseRequest {
            cores_per_worker,
            memory_bytes,
            ..request(workers, mode)
        })
}

proptest! {
    #[test]
    fn free_and_held_resources_add_up(
        cores in 0..9u16,
        steps in proptest::collection::vec((0..6u16, proptest::option::weighted(0.7, any_request())), 1..60),
    ) {
        let mut ledger = ledger(cores);
        let empty = ledger.free();
        for (n, step) in steps {
            let before = ledger.free();
            match step {
                Some(asked) => match ledger.reserve(lease(n), &asked).cloned() {
                    Ok(got) => {
                        prop_assert!(got.mode != Mode::Auto);
                        prop_assert!(got.memory_bytes >= asked.memory_bytes);
                        let wanted = if got.mode == Mode::Hot { places_of(&asked) } else { MilliCores::ZERO };
                        prop_assert_eq!(MilliCores::from(got.cores.len() as u32), wanted);
                    }
                    Err(_) => prop_assert_eq!(ledger.free(), before, "a refused lease took something"),
                },
                None => { ledger.release(&lease(n)); }
            }
            let held: Vec<_> = (0..6).filter_map(|n| ledger.held(&lease(n))).collect();
            let owned: Vec<u16> = held.iter().flat_map(|r| r.cores.clone()).collect();
            let distinct: BTreeSet<u16> = owned.iter().copied().collect();
            prop_assert_eq!(owned.len(), distinct.len(), "one core has two owners");
            prop_assert!(ledger.shared_cores().iter().all(|core| !distinct.contains(core)));
            prop_assert!(cores == 0 || !ledger.shared_cores().is_empty());
            let memory: u64 = held.iter().map(|r| r.memory_bytes).sum();
            prop_assert_eq!(memory + ledger.free().memory_bytes, empty.memory_bytes);
            let warm: MilliCores = held.iter().filter(|r| r.mode == Mode::Warm).map(|r| r.places).sum();
            prop_assert!(warm <= empty.workers);
            prop_assert_eq!(warm.plus(ledger.free().workers), empty.workers);
            prop_assert_eq!(owned.len() as u16 + ledger.free().cores, empty.cores);
        }
        for n in 0..6 { ledger.release(&lease(n)); }
        prop_assert_eq!(ledger.free(), empty, "release returns everything");
    }
}
