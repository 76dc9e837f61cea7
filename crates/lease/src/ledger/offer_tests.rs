use dayfly_protocol::api::LeaseRequest;
use dayfly_protocol::ids::{LeaseId, PublicKey};
use proptest::prelude::*;

use super::*;
use crate::ledger::Resources;

const GIB: u64 = 1 << 30;

fn ledger() -> Ledger {
    Ledger::new(Resources {
        gpus: vec!["a".into(), "b".into()],
        ..Resources::of_machine((0..4).collect(), 8 * GIB)
    })
}

fn request(workers: u16, mode: Mode) -> LeaseRequest {
    LeaseRequest {
        memory_bytes: GIB,
        ..LeaseRequest::native(workers, mode, 1_000, PublicKey([0; 32]))
    }
}

fn lease(n: u8) -> LeaseId {
    LeaseId([n; 16])
}

fn cores(cores: u16) -> NodeResize {
    NodeResize {
        cores: Some(cores),
        ..NodeResize::default()
    }
}

#[test]
fn free_cores_leave_at_once() {
    let mut ledger = ledger();
    ledger.change_offer(cores(1)).unwrap();
    assert_eq!((ledger.capacity().cores, ledger.free().cores), (1, 1));
    // Warm workers do not run on the cores that left.
    assert_eq!(ledger.shared_cores(), vec![0, 1]);
    assert!(ledger.shortfall().is_none());
    ledger.change_offer(cores(3)).unwrap();
    assert_eq!(ledger.shared_cores(), vec![0, 1, 2, 3]);
}

#[test]
fn leased_cores_leave_with_their_lease() {
    let mut ledger = ledger();
    ledger.reserve(lease(1), &request(2, Mode::Hot)).unwrap();
    ledger.reserve(lease(2), &request(1, Mode::Hot)).unwrap();
    ledger.change_offer(cores(1)).unwrap();
    assert_eq!(ledger.shortfall().cores, 2);
    assert_eq!(ledger.free().cores, 0);
    ledger.release(&lease(1)).unwrap();
    assert!(ledger.shortfall().is_none());
    assert_eq!(ledger.free().cores, 0);
    ledger.release(&lease(2)).unwrap();
    assert_eq!(ledger.free().cores, 1);
}

#[test]
fn places_of_warm_workers_follow_the_cores() {
    let mut ledger = ledger();
    assert_eq!(ledger.offer().workers, 64);
    ledger.change_offer(cores(1)).unwrap();
    assert_eq!(ledger.offer().workers, 32);
    let own = NodeResize {
        workers: Some(5),
        ..cores(2)
    };
    ledger.change_offer(own).unwrap();
    assert_eq!(ledger.offer().workers, 5);
}

#[test]
fn memory_and_gpus_leave_and_come_back() {
    let mut ledger = ledger();
    let with_gpu = LeaseRequest {
        gpus_per_worker: 1,
        memory_bytes: 6 * GIB,
        ..request(1, Mode::Warm)
    };
    ledger.reserve(lease(1), &with_gpu).unwrap();
    let less = NodeResize {
        memory_bytes: Some(4 * GIB),
        gpus: Some(0),
        ..NodeResize::default()
    };
    ledger.change_offer(less).unwrap();
    let short = ledger.shortfall();
    assert_eq!((short.memory_bytes, short.gpus), (2 * GIB, 1));
    assert_eq!((ledger.free().memory_bytes, ledger.free().gpus), (0, 0));
    ledger.release(&lease(1)).unwrap();
    assert_eq!((ledger.free().memory_bytes, ledger.free().gpus), (4 * GIB, 0));
    let all = NodeResize {
        memory_bytes: Some(8 * GIB),
        gpus: Some(2),
        ..NodeResize::default()
    };
    ledger.change_offer(all).unwrap();
    assert_eq!((ledger.free().memory_bytes, ledger.free().gpus), (8 * GIB, 2));
}

#[test]
fn offer_beyond_the_node_is_refused_unchanged() {
    let mut ledger = ledger();
    let before = ledger.offer();
    let error = ledger.change_offer(cores(4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the node cannot offer 4 cores: it was started with 3; ask for less"
    );
    assert_eq!(ledger.offer(), before);
}

#[derive(Debug, Clone)]
enum Happening {
    Reserve(u8, u16, bool, u16),
    Release(u8),
    Offer(u16, u64, u16, u16),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        (0..20u8, 1..3u16, any::<bool>(), 0..2u16)
            .prop_map(|(id, workers, hot, gpus)| Happening::Reserve(id, workers, hot, gpus)),
        (0..20u8).prop_map(Happening::Release),
        (0..4u16, 0..9u64, 0..65u16, 0..3u16)
            .prop_map(|(cores, gib, workers, gpus)| Happening::Offer(cores, gib, workers, gpus)),
    ];
    proptest::collection::vec(one, 0..60)
}

proptest! {
    #[test]
    fn free_and_leased_never_exceed_the_offer_again(happenings in happenings()) {
        let mut ledger = ledger();
        for happening in happenings {
            match happening {
                Happening::Reserve(id, workers, hot, gpus) => {
                    let wanted = LeaseRequest { gpus_per_worker: gpus, ..request(workers, if hot { Mode::Hot } else { Mode::Warm }) };
                    let was_short = !ledger.shortfall().is_none();
                    let before = ledger.shortfall();
                    if ledger.reserve(lease(id), &wanted).is_ok() && was_short {
                        // Only what is not short was granted.
                        prop_assert_eq!(ledger.shortfall(), before);
                    }
                }
                Happening::Release(id) => { ledger.release(&lease(id)); }
                Happening::Offer(cores, gib, workers, gpus) => {
                    let change = NodeResize { cores: Some(cores), memory_bytes: Some(gib * GIB), workers: Some(workers), gpus: Some(gpus) };
                    ledger.change_offer(change).unwrap();
                }
            }
            let leased: usize = ledger.held.values().map(|held| held.cores.len()).sum();
            prop_assert_eq!(leased + ledger.free_cores.len() + ledger.withdrawn_cores.len(), 3);
            let gpus: usize = ledger.held.values().map(|held| held.gpus.len()).sum();
            prop_assert_eq!(gpus + ledger.free_gpus.len() + ledger.withdrawn_gpus.len(), 2);
            let short = ledger.shortfall();
            prop_assert_eq!(leased + ledger.free_cores.len(), usize::from(ledger.offer.cores + short.cores));
            prop_assert_eq!(gpus + ledger.free_gpus.len(), usize::from(ledger.offer.gpus + short.gpus));
        }
    }
}
