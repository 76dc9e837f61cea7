use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TENANT: TenantId = TenantId([1; 16]);
const LEASE: LeaseId = LeaseId([2; 16]);

fn channel(number: u32) -> ChannelId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_le_bytes());
    ChannelId(id)
}

fn accept(window: &mut ReplayWindow, number: u32, sent_at_ms: u64, now_ms: u64) -> Result<(), TokenError> {
    window.accept_of(TENANT, LEASE, channel(number), sent_at_ms, now_ms)
}

#[test]
fn hello_is_accepted_once() {
    let mut window = ReplayWindow::new(1_000, 10);
    assert_eq!(accept(&mut window, 1, 5_000, 5_000), Ok(()));
    assert_eq!(accept(&mut window, 1, 5_000, 5_001), Err(TokenError::Replayed));
    assert_eq!(accept(&mut window, 1, 5_001, 5_001), Err(TokenError::Replayed));
    assert_eq!(accept(&mut window, 2, 5_000, 5_001), Ok(()));
}

#[test]
fn old_or_future_hello_is_refused() {
    let mut window = ReplayWindow::new(1_000, 10);
    for sent_at_ms in [3_999, 6_001] {
        let refused = accept(&mut window, 1, sent_at_ms, 5_000);
        assert!(matches!(refused, Err(TokenError::ClockTooFar { .. })));
    }
    assert_eq!(accept(&mut window, 1, 4_000, 5_000), Ok(()));
}

#[test]
fn memory_is_bounded_and_returns_with_time() {
    let mut window = ReplayWindow::new(1_000, 2);
    accept(&mut window, 1, 5_000, 5_000).unwrap();
    accept(&mut window, 2, 5_000, 5_000).unwrap();
    let full = TokenError::TooManyHellos { capacity: 2 };
    assert_eq!(accept(&mut window, 3, 5_000, 5_000), Err(full));
    assert_eq!(accept(&mut window, 3, 6_500, 6_500), Ok(()));
    assert_eq!(window.len(), 1);
}

#[test]
fn clock_set_back_accepts_no_forgotten_hello() {
    let mut window = ReplayWindow::new(1_000, 10);
    accept(&mut window, 1, 5_000, 5_000).unwrap();
    accept(&mut window, 2, 7_000, 7_000).unwrap();
    assert!(accept(&mut window, 1, 5_000, 5_500).is_err());
    assert!(accept(&mut window, 2, 7_000, 6_500).is_err());
}

#[test]
fn flood_of_one_lease_costs_only_that_lease() {
    let (other_lease, other) = (LeaseId([3; 16]), TenantId([9; 16]));
    let mut window = ReplayWindow::new(1_000, 100);
    for number in 0..200 {
        let _ = accept(&mut window, number, 5_000, 5_000);
    }
    for number in 0..20 {
        assert_eq!(
            window.accept_of(TENANT, other_lease, channel(number), 5_000, 5_000),
            Ok(())
        );
        assert_eq!(window.accept_of(other, LEASE, channel(number), 5_000, 5_000), Ok(()));
    }
    assert_eq!(window.len(), 100);
    // None of its hellos is accepted a second time, remembered or not.
    for number in 0..200 {
        assert!(accept(&mut window, number, 5_000, 5_000).is_err());
    }
}

#[test]
fn channel_id_of_another_lease_is_accepted() {
    let mut window = ReplayWindow::new(1_000, 10);
    accept(&mut window, 1, 5_000, 5_000).unwrap();
    let another = window.accept_of(TenantId([9; 16]), LEASE, channel(1), 5_000, 5_000);
    assert_eq!(another, Ok(()));
}

#[derive(Debug, Clone, Copy)]
struct Step {
    tenant: u8,
    lease: u8,
    channel: u32,
    sent_ago_ms: i64,
    after_ms: i64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..4u8, 0..3u8, 0..60u32, -60..60i64, -20..40i64).prop_map(|(tenant, lease, channel, sent_ago_ms, after_ms)| {
        Step {
            tenant,
            lease,
            channel,
            sent_ago_ms,
            after_ms,
        }
    })
}

proptest! {
    /// Whatever is sent, in any order and under any clock, each hello opens at most one connection.
    #[test]
    fn no_hello_is_accepted_twice(steps in prop::collection::vec(step(), 0..300)) {
        let mut window = ReplayWindow::new(50, 12);
        let mut accepted = HashSet::new();
        let mut now_ms = 10_000i64;
        for step in steps {
            now_ms += step.after_ms;
            let sent_at_ms = (now_ms - step.sent_ago_ms) as u64;
            let hello = (step.tenant, step.lease, step.channel, sent_at_ms);
            let (tenant, lease) = (TenantId([step.tenant; 16]), LeaseId([step.lease; 16]));
            if window.accept_of(tenant, lease, channel(step.channel), sent_at_ms, now_ms as u64).is_ok() {
                prop_assert!(accepted.insert(hello), "{hello:?} opened two");
            }
            prop_assert!(window.len() <= 12);
            let counted: usize = window.tenants.of.values().map(|leases| leases.of.values().map(Count::count).sum::<usize>()).sum();
            prop_assert_eq!(counted, window.len());
        }
    }

    /// A sender that stays within an even share is never refused, however much the others send.
    #[test]
    fn even_share_is_never_refused(flood in prop::collection::vec((1..4u8, 0..3u8), 0..400), every in 1..8usize) {
        let mut window = ReplayWindow::new(1_000, 40);
        let mut sent: BTreeMap<u8, u32> = BTreeMap::new();
        for (number, (tenant, lease)) in flood.into_iter().enumerate() {
            let own = sent.entry(tenant).or_default();
            *own += 1;
            let _ = window.accept_of(TenantId([tenant; 16]), LeaseId([lease; 16]), channel(*own), 5_000, 5_000);
            let mine = sent.entry(0).or_default();
            if number % every == 0 && *mine < 10 {
                *mine += 1;
                let accepted = window.accept_of(TenantId([0; 16]), LEASE, channel(*mine), 5_000, 5_000);
                prop_assert_eq!(accepted, Ok(()));
            }
        }
        // None of its hellos was forgotten.
        for number in 1..=sent.get(&0).copied().unwrap_or(0) {
            let again = window.accept_of(TenantId([0; 16]), LEASE, channel(number), 5_000, 5_000);
            prop_assert_eq!(again, Err(TokenError::Replayed));
        }
    }
}
