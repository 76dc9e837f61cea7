use dayfly_protocol::api::Mode;
use dayfly_protocol::cores::MilliCores;
use proptest::prelude::*;

use super::*;

fn candidate(id: u8, cores: u16, places: u16, idle_ms: Option<u64>) -> Candidate {
    Candidate {
        id: LeaseId([id; 16]),
        held: Reservation {
            mode: if cores > 0 { Mode::Hot } else { Mode::Warm },
            workers: cores.max(places),
            places: places.into(),
            cores: (0..cores).collect(),
            memory_bytes: 0,
            gpus: Vec::new(),
        },
        idle_ms,
        age_ms: u64::from(id),
        is_ending: false,
    }
}

fn cores(cores: u16) -> Shortfall {
    Shortfall {
        cores,
        ..Shortfall::default()
    }
}

fn ids(chosen: &[LeaseId]) -> Vec<u8> {
    chosen.iter().map(|id| id.0[0]).collect()
}

#[test]
fn nothing_ends_without_shortfall() {
    assert!(to_end(Shortfall::default(), &[candidate(1, 2, 0, Some(5))]).is_empty());
}

#[test]
fn idle_leases_end_before_busy_ones() {
    let leases = [
        candidate(1, 1, 0, None),
        candidate(2, 1, 0, Some(10)),
        candidate(3, 1, 0, Some(500)),
        candidate(4, 1, 0, None),
    ];
    assert_eq!(ids(&to_end(cores(1), &leases)), [3]);
    assert_eq!(ids(&to_end(cores(3), &leases)), [3, 2, 1]);
}

#[test]
fn lease_that_ends_already_counts() {
    let mut ending = candidate(1, 2, 0, None);
    ending.is_ending = true;
    assert!(to_end(cores(2), &[ending.clone(), candidate(2, 1, 0, Some(1))]).is_empty());
    assert_eq!(ids(&to_end(cores(3), &[ending, candidate(2, 1, 0, Some(1))])), [2]);
}

#[test]
fn larger_lease_spares_smaller_ones() {
    let leases = [candidate(1, 1, 0, Some(100)), candidate(2, 4, 0, Some(1))];
    assert_eq!(ids(&to_end(cores(4), &leases)), [2]);
}

#[test]
fn warm_leases_do_not_end_for_cores() {
    assert!(to_end(cores(2), &[candidate(1, 0, 4, Some(100))]).is_empty());
}

proptest! {
    #[test]
    fn as_few_leases_end_as_needed(
        amounts in proptest::collection::vec((0..4u16, 0..4u16, proptest::option::of(0..1_000u64)), 0..12),
        short_cores in 0..12u16,
        short_places in 0..12u16,
    ) {
        let leases: Vec<_> = amounts.iter().enumerate()
            .map(|(id, (cores, places, idle))| candidate(id as u8, *cores, if *cores > 0 { 0 } else { *places }, *idle))
            .collect();
        let short = Shortfall { cores: short_cores, places: MilliCores::from(short_places), ..Shortfall::default() };
        let chosen = to_end(short, &leases);
        let held = |id: &LeaseId| &leases.iter().find(|lease| lease.id == *id).unwrap().held;
        let left = chosen.iter().fold(short, |left, id| left.without(held(id)));
        let least = leases.iter().fold(short, |left, lease| left.without(&lease.held));
        prop_assert_eq!(left, least, "what can be repaid is repaid");
        for spared in &chosen {
            let others = chosen.iter().filter(|id| *id != spared);
            let without = others.fold(short, |left, id| left.without(held(id)));
            prop_assert_ne!(without, left, "each end is needed");
        }
    }
}
