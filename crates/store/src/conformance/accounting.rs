//! Properties of bookings, charges, bills and the audit log of every store.

use dayfly_protocol::api::{FunctionUsage, LeaseState, LoanUsage, MAX_FUNCTIONS, Metered, NodeAddress};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use dayfly_protocol::tenancy::{AuditEntry, Prices, TenantSpec};

use super::store::{LEASE, NODE, PRICES, TENANT, address, booked, changed, load, only_lease, record, register, used};
use crate::{AuditPage, AuditTrim, BillQuery, Change, LeaseRecord, Store, TenantRecord, TrimResult};

async fn spent(store: &dyn Store) -> u64 {
    load(store).await.tenants[0].spent
}

pub async fn repeated_task_charge_is_charged_once(store: &dyn Store) {
    let spec = TenantSpec::default();
    store.tenant(TENANT, "astro".into(), spec).wait().await.unwrap();
    register(store, address(1)).await;
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    booked(store, 1, vec![(LEASE, used(10, 1))]).await;
    let charged = async |total| {
        let nobodys = (TenantId([99; 16]), 7);
        let charged = store.charge(vec![(TENANT, total), nobodys]).wait().await.unwrap();
        Vec::from_iter(charged.into_iter().map(|tenant| (tenant.spent, tenant.spent_on_tasks)))
    };
    assert_eq!(charged(5).await, [(15, 5)]);
    assert_eq!(charged(5).await, [], "a repetition");
    assert_eq!(charged(3).await, [], "one that comes late");
    assert_eq!(charged(12).await, [(22, 12)]);
    assert_eq!(
        booked(store, 2, vec![(LEASE, used(11, 2))]).await.spent,
        vec![(TENANT, 23)],
        "what leases cost is added to it"
    );
    let set = store.tenant(TENANT, "astro".into(), spec).wait().await.unwrap();
    assert_eq!((set.spent, set.spent_on_tasks), (23, 12));
    assert_eq!(load(store).await.tenants, vec![set]);
    assert_eq!(
        charged(1 << 62).await,
        [((1 << 62) + 11, 1 << 62)],
        "as much as there can be"
    );
}

pub async fn booking_counts_once_for_the_nodes_own_leases(store: &dyn Store) {
    register(store, address(1)).await;
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    assert_eq!(booked(store, 3, vec![(LEASE, used(10, 1))]).await.sequence, 3);
    assert_eq!(booked(store, 3, vec![(LEASE, used(99, 9))]).await.sequence, 3);
    assert_eq!(booked(store, 2, vec![(LEASE, used(99, 9))]).await.sequence, 3);
    assert_eq!(only_lease(store).await.usage, used(10, 1));
    assert_eq!(booked(store, 4, vec![(LEASE, used(5, 2))]).await.sequence, 4);
    assert_eq!(only_lease(store).await.usage, used(10, 2), "totals never go back");
    let stranger = NodeAddress {
        id: NodeId([9; 16]),
        ..address(1)
    };
    register(store, stranger.clone()).await;
    store
        .book(stranger.id, 1, vec![(LEASE, used(999, 999).into())])
        .wait()
        .await
        .unwrap();
    assert_eq!(only_lease(store).await.usage, used(10, 2));
}

pub async fn booking_after_the_leases_end_is_counted(store: &dyn Store) {
    register(store, address(1)).await;
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    changed(store, vec![Change::Offered(Box::new(record())), ended]).await;
    booked(store, 1, vec![(LEASE, used(10, 1))]).await;
    assert_eq!(only_lease(store).await.usage, used(10, 1));
}

pub async fn lease_stores_its_latest_usage_by_function(store: &dyn Store) {
    register(store, address(1)).await;
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    let by = |calls| {
        vec![FunctionUsage {
            function: "stats.mean@5f0c9a1b".into(),
            calls,
            failures: 1,
            computing_us: 7,
        }]
    };
    let metered = |calls| Metered {
        usage: used(10, calls),
        functions: by(calls),
        loans: LoanUsage::default(),
    };
    for sequence in 1..=2 {
        let totals = vec![(LEASE, metered(sequence))];
        store.book(NODE, sequence, totals).wait().await.unwrap();
    }
    assert_eq!(only_lease(store).await.functions, by(2), "the latest counts");
    booked(store, 3, vec![(LEASE, used(11, 3))]).await;
    assert_eq!(
        only_lease(store).await.functions,
        by(2),
        "who knows none changes nothing"
    );
    let many = (0..2 * MAX_FUNCTIONS).flat_map(|_| by(1)).collect();
    let totals = Metered {
        usage: used(12, 4),
        functions: many,
        loans: LoanUsage::default(),
    };
    store.book(NODE, 4, vec![(LEASE, totals)]).wait().await.unwrap();
    assert_eq!(only_lease(store).await.functions.len(), MAX_FUNCTIONS);
}

pub async fn lease_stores_totals_of_its_loans(store: &dyn Store) {
    register(store, address(1)).await;
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    assert_eq!(only_lease(store).await.loans, LoanUsage::default());
    let loans = |lent_core_us, waited_us| LoanUsage {
        lent_core_us,
        borrowed_core_us: 7,
        lent_mib_s: 8,
        borrowed_mib_s: 1024,
        waited_us,
    };
    let metered = |loans| Metered {
        loans,
        ..used(10, 1).into()
    };
    for (sequence, loans) in [(1, loans(5, 2)), (2, loans(4, 3)), (3, LoanUsage::default())] {
        let totals = vec![(LEASE, metered(loans))];
        store.book(NODE, sequence, totals).wait().await.unwrap();
    }
    assert_eq!(only_lease(store).await.loans, loans(5, 3), "totals never decrease");
    // 10 us of computing, 7 us of a core and one GiB for a second.
    assert_eq!(only_lease(store).await.cost().total(), 10 + 7 + 3);
}

pub async fn part_of_a_core_is_kept_and_charged(store: &dyn Store) {
    register(store, address(1)).await;
    let quarter = LeaseRecord {
        cores_per_worker: MilliCores::new(250),
        ..record()
    };
    changed(store, vec![Change::Offered(Box::new(quarter))]).await;
    booked(store, 1, vec![(LEASE, used(40, 1))]).await;
    let kept = only_lease(store).await;
    assert_eq!(kept.cores_per_worker, MilliCores::new(250));
    assert_eq!(kept.cost().total(), 10, "a quarter of 40 us");
}

pub async fn booking_is_charged_once_at_the_leases_prices(store: &dyn Store) {
    register(store, address(1)).await;
    let spec = TenantSpec {
        budget: Some(7),
        ..TenantSpec::default()
    };
    let new = TenantRecord {
        id: TENANT,
        name: "astro".into(),
        spec,
        spent: 0,
        spent_on_tasks: 0,
    };
    assert_eq!(store.tenant(TENANT, "astro".into(), spec).wait().await, Ok(new));
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    // A million billionths per second is one per microsecond.
    assert_eq!(
        booked(store, 1, vec![(LEASE, used(10, 1))]).await.spent,
        vec![(TENANT, 10)]
    );
    assert_eq!(
        booked(store, 1, vec![(LEASE, used(50, 1))]).await.spent,
        vec![],
        "a repetition"
    );
    assert_eq!(
        booked(store, 2, vec![(LEASE, used(4, 1))]).await.spent,
        vec![(TENANT, 10)],
        "less"
    );
    assert_eq!(
        booked(store, 3, vec![(LEASE, used(25, 2))]).await.spent,
        vec![(TENANT, 25)]
    );
    assert_eq!((spent(store).await, only_lease(store).await.cost().total()), (25, 25));
    let other = TenantSpec {
        suspended: true,
        ..spec
    };
    let set = store
        .tenant(TenantId([99; 16]), "astro".into(), other)
        .wait()
        .await
        .unwrap();
    let kept = TenantRecord {
        id: TENANT,
        name: "astro".into(),
        spec: other,
        spent: 25,
        spent_on_tasks: 0,
    };
    assert_eq!(set, kept, "a name has one id for ever");
    assert_eq!(load(store).await.tenants, vec![kept], "new limits forgive nothing");
}

pub async fn bill_lists_leases_of_its_period_by_pages(store: &dyn Store) {
    let lease = |n: u8, tenant: u8| LeaseRecord {
        lease: LeaseId([n; 16]),
        tenant: TenantId([tenant; 16]),
        granted_at_ms: 1_000 + u64::from(n / 2),
        ..record()
    };
    let leases: Vec<LeaseRecord> = (1..=6).map(|n| lease(n, n % 2)).collect();
    let offered = |record: &LeaseRecord| Change::Offered(Box::new(record.clone()));
    changed(store, leases.iter().rev().map(offered).collect()).await;
    let ended = Change::Ended {
        lease: leases[0].lease,
        state: LeaseState::Released,
        at_ms: 2_000,
    };
    changed(store, vec![ended]).await;
    let all = BillQuery {
        tenant: None,
        from_ms: 0,
        until_ms: i64::MAX as u64,
        after: None,
        limit: 100,
    };
    let ids = |query| async move {
        let lines = store.bill(query).wait().await.unwrap();
        lines.iter().map(|record| record.lease.0[0]).collect::<Vec<_>>()
    };
    assert_eq!(ids(all).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(ids(BillQuery { from_ms: 2_001, ..all }).await, [2, 3, 4, 5, 6]);
    assert_eq!(ids(BillQuery { until_ms: 1_002, ..all }).await, [1, 2, 3]);
    let one = Some(TenantId([1; 16]));
    assert_eq!(ids(BillQuery { tenant: one, ..all }).await, [1, 3, 5]);
    let first = store.bill(BillQuery { limit: 2, ..all }).wait().await.unwrap();
    let after = Some((first[1].granted_at_ms, first[1].lease));
    assert_eq!(ids(BillQuery { after, limit: 3, ..all }).await, [3, 4, 5]);
}

pub async fn audit_entries_are_numbered_and_prices_stored(store: &dyn Store) {
    let entry = |subject: &str| AuditEntry {
        number: 0,
        at_ms: 5,
        tenant: TENANT,
        token: "0102".into(),
        action: "tenant.set".into(),
        subject: subject.into(),
        details: "{}".into(),
    };
    for subject in ["a", "b", "c"] {
        store.audit(entry(subject)).wait().await.unwrap();
    }
    let b = AuditEntry {
        number: 2,
        ..entry("b")
    };
    let page = |above, before, limit| AuditPage { above, before, limit };
    assert_eq!(store.audited(page(1, None, 1)).wait().await, Ok(vec![b.clone()]));
    assert_eq!(store.audited(page(0, None, 100)).wait().await.unwrap().len(), 3);
    assert_eq!(store.audited(page(0, Some(3), 1)).wait().await, Ok(vec![b]));
    let last = store.audited(page(0, Some(u64::MAX), 2)).wait().await.unwrap();
    assert_eq!(last.iter().map(|entry| entry.number).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(load(store).await.prices, Prices::default());
    store.prices(PRICES).wait().await.unwrap();
    assert_eq!(load(store).await.prices, PRICES);
}

pub async fn audit_log_keeps_the_newest_entries_within_its_bounds(store: &dyn Store) {
    let entry = |at_ms, bytes| AuditEntry {
        number: 0,
        at_ms,
        tenant: TENANT,
        token: "0102".into(),
        action: "tenant.set".into(),
        subject: "a".into(),
        details: "x".repeat(bytes),
    };
    for (at_ms, bytes) in [(1, 10), (2, 10), (3, 5_000), (4, 1_000), (5, 1_000)] {
        store.audit(entry(at_ms, bytes)).wait().await.unwrap();
    }
    let numbers = async || {
        let page = AuditPage {
            above: 0,
            before: None,
            limit: 100,
        };
        let entries = store.audited(page).wait().await.unwrap();
        entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
    };
    let surplus = async |most_bytes| store.audit_surplus(most_bytes).wait().await.unwrap();
    let trim = async |above, up_to, before_ms| {
        let step = 2;
        let trim = AuditTrim {
            above,
            step,
            up_to,
            before_ms,
        };
        let TrimResult { entries, next } = store.trim_audit(trim).wait().await.unwrap();
        (entries, next)
    };
    assert_eq!(surplus(1 << 20).await, 0);
    assert_eq!(trim(0, 0, 2).await, (1, Some(2)));
    assert_eq!(numbers().await, [2, 3, 4, 5]);
    assert_eq!(surplus(4_000).await, 3);
    // Each step examines only its own entries.
    assert_eq!(trim(0, 3, 0).await, (2, Some(3)));
    assert_eq!(trim(3, 3, 0).await, (0, Some(5)));
    assert_eq!(trim(5, 3, 0).await, (0, None));
    assert_eq!(numbers().await, [4, 5]);
    assert_eq!(surplus(4_000).await, 0);
    store.audit(entry(6, 1)).wait().await.unwrap();
    assert_eq!(numbers().await, [4, 5, 6]);
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_accounting {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            accounting,
            repeated_task_charge_is_charged_once,
            booking_counts_once_for_the_nodes_own_leases,
            booking_after_the_leases_end_is_counted,
            lease_stores_its_latest_usage_by_function,
            lease_stores_totals_of_its_loans,
            part_of_a_core_is_kept_and_charged,
            booking_is_charged_once_at_the_leases_prices,
            bill_lists_leases_of_its_period_by_pages,
            audit_entries_are_numbered_and_prices_stored,
            audit_log_keeps_the_newest_entries_within_its_bounds
        );
    };
}
