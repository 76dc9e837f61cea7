use proptest::prelude::*;

use super::*;
use crate::call::Phase;

const MIB: u64 = 1 << 20;

/// Starts a call of phases of milliseconds of one core and cores.
fn start(machine: &mut Machine, call: u64, owned_cores: u64, phases: &[(u64, u64)]) {
    let phase = |(core_ms, cores): &(u64, u64)| Phase {
        core_us: core_ms * 1_000,
        milli_cores: cores * 1_000,
        memory_bytes: 100 * MIB,
    };
    let phases: Vec<_> = phases.iter().map(phase).collect();
    let owned = Amount::new(owned_cores * 1_000, 256 * MIB);
    machine.start(CallId(call), owned, Phases::new(&phases).unwrap());
}

/// Runs to the next stop. Returns when and what stopped.
fn run(machine: &mut Machine) -> (u64, Vec<(CallId, Stop)>) {
    loop {
        let Some(next_us) = machine.next_us() else {
            return (machine.now_us(), Vec::new());
        };
        machine.advance(next_us);
        let stopped = machine.stopped();
        if !stopped.is_empty() {
            return (next_us, stopped);
        }
    }
}

#[test]
fn call_is_as_fast_as_its_limit() {
    let mut machine = Machine::new(Amount::new(8_000, 1_024 * MIB));
    // 100 ms at 1 core, then 300 core-ms at 2 of 4 cores.
    start(&mut machine, 1, 2, &[(100, 1), (300, 4)]);
    assert_eq!(run(&mut machine), (250_000, vec![(CallId(1), Stop::Finished)]));
    assert_eq!(machine.totals().work, 400_000_000);
}

#[test]
fn borrower_uses_what_owners_leave() {
    let mut machine = Machine::new(Amount::new(4_000, 1_024 * MIB));
    start(&mut machine, 1, 3, &[(100, 1), (300, 3)]);
    start(&mut machine, 2, 1, &[(10_000, 8)]);
    machine.limit(CallId(2), Resource::Cpu, 3_000, false);
    // While the owner uses one core, the borrower has three; afterwards it has its own.
    assert_eq!(run(&mut machine), (200_000, vec![(CallId(1), Stop::Finished)]));
    assert_eq!(machine.done(CallId(2)), (300 + 100) * 1_000_000);
}

#[test]
fn borrowers_share_in_proportion_to_loans() {
    let mut machine = Machine::new(Amount::new(6_000, 1_024 * MIB));
    for (call, limit) in [(1, 2_000), (2, 4_000)] {
        start(&mut machine, call, 1, &[(60_000, 8)]);
        machine.limit(CallId(call), Resource::Cpu, limit, false);
    }
    start(&mut machine, 3, 2, &[(60_000, 2)]);
    machine.next_us();
    machine.advance(1_000);
    // Two cores are left for loans of one and three cores.
    assert_eq!(machine.done(CallId(1)), 1_500_000);
    assert_eq!(machine.done(CallId(2)), 2_500_000);
}

#[test]
fn memory_above_the_limit_stops_a_call() {
    let mut machine = Machine::new(Amount::new(8_000, 1_024 * MIB));
    start(&mut machine, 1, 1, &[(1_000, 1)]);
    machine.limit(CallId(1), Resource::Memory, 50 * MIB, false);
    let (at_us, stopped) = run(&mut machine);
    assert_eq!(stopped, [(CallId(1), Stop::OutOfMemory)]);
    assert_eq!(at_us, 250_001, "half of the peak at a quarter of the work");
    assert!(machine.memory(CallId(1)) > 50 * MIB);
}

#[test]
fn reclaimed_call_runs_on_until_removed() {
    let mut machine = Machine::new(Amount::new(8_000, 1_024 * MIB));
    start(&mut machine, 1, 1, &[(1_000, 1)]);
    machine.next_us();
    machine.advance(500_000);
    machine.limit(CallId(1), Resource::Memory, 50 * MIB, true);
    assert_eq!(run(&mut machine), (1_000_000, vec![(CallId(1), Stop::Finished)]));
}

#[test]
fn window_shows_use_and_waiting() {
    let mut machine = Machine::new(Amount::new(8_000, 1_024 * MIB));
    start(&mut machine, 1, 2, &[(50, 1), (1_000, 4)]);
    let first_us = machine.next_us().unwrap();
    machine.advance(first_us);
    machine.stopped();
    machine.next_us();
    machine.advance(100_000);
    let measured = machine.measure(CallId(1), 20_000).unwrap();
    assert_eq!(
        (measured.window_us, measured.milli_cores, measured.waiting_ppm),
        (100_000, 1_500, 500_000)
    );
    assert_eq!(machine.measure(CallId(1), 0), None, "no time has passed");
}

#[test]
fn call_without_work_finishes_at_once() {
    let mut machine = Machine::new(Amount::new(8_000, 1_024 * MIB));
    start(&mut machine, 1, 2, &[(0, 0)]);
    start(&mut machine, 2, 2, &[(0, 1), (0, 1)]);
    assert_eq!(
        run(&mut machine),
        (0, vec![(CallId(1), Stop::Finished), (CallId(2), Stop::Finished)])
    );
}

proptest! {
    #[test]
    fn work_is_conserved_and_owners_come_first(
        calls in prop::collection::vec((1..9u64, prop::collection::vec((0..500u64, 1..12u64), 1..4), 0..6_000u64), 1..12),
    ) {
        let owned: u64 = calls.iter().map(|(cores, _, _)| cores * 1_000).sum();
        let mut machine = Machine::new(Amount::new(owned, 1 << 40));
        let mut work = 0;
        for (id, (cores, phases, extra)) in calls.iter().enumerate() {
            work += phases.iter().map(|(core_ms, _)| u128::from(core_ms * 1_000_000)).sum::<u128>();
            start(&mut machine, id as u64, *cores, phases);
            machine.limit(CallId(id as u64), Resource::Cpu, cores * 1_000 + extra, false);
        }
        while !machine.is_idle() {
            let next_us = machine.next_us().expect("a call runs");
            let rates: u64 = machine.calls.values().map(|call| call.rate).sum();
            prop_assert!(rates <= owned, "more than the machine has");
            for call in machine.calls.values() {
                prop_assert!(call.rate >= call.parallelism().min(call.owned.milli_cores), "an owner waits");
                prop_assert!(call.rate <= call.limit.milli_cores);
            }
            machine.advance(next_us);
            for (id, stop) in machine.stopped() {
                prop_assert_eq!(stop, Stop::Finished);
                machine.remove(id);
            }
        }
        prop_assert_eq!(machine.totals().work, work);
    }
}
