//! Properties of every store.

use dayfly_protocol::api::{
    Capacity, FunctionUsage, LeaseState, MAX_FUNCTIONS, Metered, Mode, NodeAddress, Sandbox, Usage,
};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};

use crate::*;

/// The node of all [`record`]s.
pub const NODE: NodeId = NodeId([1; 16]);
/// The lease of all [`record`]s.
pub const LEASE: LeaseId = LeaseId([2; 16]);
/// The tenant of all [`record`]s and [`bearer`]s.
pub const TENANT: TenantId = TenantId([4; 16]);
const PRICES: Prices = Prices {
    allocation_per_gib_s: 0,
    computing_per_s: 1_000_000,
    polling_per_s: 0,
};
/// Capacity of [`NODE`].
pub(crate) const CAPACITY: Capacity = Capacity {
    cores: 3,
    memory_bytes: 1 << 30,
    workers: 32,
    gpus: 2,
};

/// Returns [`NODE`]'s address at a port of the loopback interface.
pub(crate) fn address(port: u16) -> NodeAddress {
    NodeAddress {
        id: NODE,
        name: "n1".into(),
        host: "boot".into(),
        unix: None,
        tcp: Some(format!("127.0.0.1:{port}")),
        key: PublicKey([3; 32]),
        fabrics: Vec::new(),
    }
}

/// Returns a granted, unused lease.
pub fn record() -> LeaseRecord {
    LeaseRecord {
        lease: LEASE,
        tenant: TENANT,
        node: NODE,
        holder: PublicKey([5; 32]),
        state: LeaseState::Granted,
        workers: 2,
        cores_per_worker: 1,
        gpus_per_worker: 1,
        mode: Mode::Hot,
        sandbox: Sandbox::Isolated,
        image: None,
        memory_bytes: 1 << 28,
        duration_ms: 60_000,
        granted_at_ms: 1_000,
        expires_at_ms: 91_000,
        ended_at_ms: 0,
        usage: Usage::default(),
        functions: Vec::new(),
        prices: PRICES,
        bearer: Some([1; 32]),
    }
}

/// Returns the metered usage of a lease.
pub(crate) fn used(computing_us: u64, calls: u64) -> Usage {
    Usage {
        computing_us,
        polling_us: 1,
        allocated_us: 2,
        calls,
        failures: 0,
    }
}

/// Returns a bearer whose hash repeats one byte.
pub(crate) fn bearer(hash: u8, speaks: As, node: Option<NodeId>) -> Bearer {
    Bearer {
        hash: [hash; 32],
        speaks,
        tenant: TENANT,
        name: "mine".into(),
        read_only: false,
        node,
        expires_at_ms: 10_000,
    }
}

/// Loads the complete store.
pub(crate) async fn load(store: &dyn Store) -> Snapshot {
    store.load(0).wait().await.unwrap()
}

pub(crate) async fn only_lease(store: &dyn Store) -> LeaseRecord {
    let mut leases = load(store).await.leases;
    assert_eq!(leases.len(), 1);
    leases.remove(0)
}

/// Registers a node and returns its epoch.
pub(crate) async fn register(store: &dyn Store, address: NodeAddress) -> u64 {
    let registered = store.register(address, CAPACITY, 0).wait().await.unwrap();
    registered.expect("the node has the key that it had").epoch
}

/// Returns notes of changes to [`NODE`]'s leases in one of its epochs.
pub(crate) fn under(epoch: u64, changes: Vec<Change>) -> Vec<Note> {
    let node = NODE;
    let note = |change| Note { node, epoch, change };
    changes.into_iter().map(note).collect()
}

/// Stores changes in the node's first epoch, which begins if there was none.
pub(crate) async fn noted(store: &dyn Store, changes: Vec<Change>) {
    if load(store).await.nodes.is_empty() {
        register(store, address(1)).await;
    }
    let all = vec![Noted::Kept; changes.len()];
    assert_eq!(store.note(under(1, changes)).wait().await, Ok(all));
}

pub async fn a_nodes_epoch_grows_with_each_registration(store: &dyn Store) {
    assert_eq!(register(store, address(1)).await, 1);
    assert_eq!(register(store, address(2)).await, 2);
    let thief = NodeAddress {
        key: PublicKey([8; 32]),
        ..address(3)
    };
    assert_eq!(store.register(thief, CAPACITY, 0).wait().await, Ok(None), "another key");
    let kept = NodeRecord {
        address: address(2),
        capacity: CAPACITY,
        epoch: 2,
        booked: 0,
        reclaimed: false,
        manager: store.load(0).wait().await.unwrap().nodes[0].manager,
    };
    assert_eq!(load(store).await.nodes, vec![kept]);
}

pub async fn a_node_that_was_taken_back_stays_so_when_it_registers_anew(store: &dyn Store) {
    register(store, address(1)).await;
    store.reclaim(NODE, true).wait().await.unwrap();
    register(store, address(2)).await;
    assert!(load(store).await.nodes[0].reclaimed);
    store.reclaim(NODE, false).wait().await.unwrap();
    assert!(!load(store).await.nodes[0].reclaimed);
    // An unknown node is ignored.
    store.reclaim(NodeId([77; 16]), true).wait().await.unwrap();
    assert_eq!(load(store).await.nodes.len(), 1);
}

pub async fn a_lease_is_kept_through_its_life_and_ends_once(store: &dyn Store) {
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
    assert_eq!(only_lease(store).await, record());
    let renewed = Change::Renewed {
        lease: LEASE,
        duration_ms: 5,
        expires_at_ms: 6,
        bearer: Some([9; 32]),
    };
    let active = Change::Active {
        lease: LEASE,
        expires_at_ms: 61_000,
    };
    noted(store, vec![active, renewed.clone()]).await;
    let active = LeaseRecord {
        state: LeaseState::Active,
        duration_ms: 5,
        expires_at_ms: 6,
        bearer: Some([9; 32]),
        ..record()
    };
    assert_eq!(only_lease(store).await, active);
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Revoked,
        at_ms: 70,
    };
    let again = Change::Ended {
        lease: LEASE,
        state: LeaseState::Lost,
        at_ms: 90,
    };
    noted(store, vec![ended, again, renewed, Change::Offered(Box::new(record()))]).await;
    assert_eq!(
        only_lease(store).await,
        LeaseRecord {
            state: LeaseState::Revoked,
            ended_at_ms: 70,
            ..active
        }
    );
}

pub async fn a_lease_that_its_node_refuses_never_was_and_one_that_it_takes_is_as_the_node_says(store: &dyn Store) {
    let taken = Change::Taken {
        lease: LEASE,
        mode: Mode::Warm,
        image: Some("tool:1@sha256:00ff".into()),
        sandbox: Sandbox::Container,
    };
    let refused = Change::Refused { lease: LEASE };
    noted(store, vec![Change::Offered(Box::new(record())), taken.clone()]).await;
    assert_eq!(only_lease(store).await.mode, Mode::Warm);
    assert_eq!(only_lease(store).await.sandbox, Sandbox::Container);
    assert_eq!(only_lease(store).await.image.as_deref(), Some("tool:1@sha256:00ff"));
    noted(store, vec![refused.clone()]).await;
    assert_eq!(load(store).await.leases, vec![]);
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    noted(store, vec![Change::Offered(Box::new(record())), ended, refused, taken]).await;
    assert_eq!(
        only_lease(store).await.mode,
        Mode::Hot,
        "what has ended stays as it was"
    );
}

pub async fn whoever_lost_a_node_changes_nothing_of_its_leases(store: &dyn Store) {
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
    assert_eq!(register(store, address(1)).await, 2);
    let late = LeaseRecord {
        lease: LeaseId([6; 16]),
        ..record()
    };
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Lost,
        at_ms: 70,
    };
    let notes = under(1, vec![ended.clone(), Change::Offered(Box::new(late))]);
    assert_eq!(store.note(notes).wait().await, Ok(vec![Noted::Stale, Noted::Stale]));
    assert_eq!(only_lease(store).await, record());
    let mut mixed = under(1, vec![Change::Refused { lease: LEASE }]);
    mixed.extend(under(2, vec![ended]));
    assert_eq!(store.note(mixed).wait().await, Ok(vec![Noted::Stale, Noted::Kept]));
    assert_eq!(only_lease(store).await.state, LeaseState::Lost);
}

pub async fn leases_that_ended_long_ago_are_not_loaded(store: &dyn Store) {
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    noted(store, vec![Change::Offered(Box::new(record())), ended]).await;
    assert_eq!(store.load(70).wait().await.unwrap().leases.len(), 1);
    assert_eq!(store.load(71).wait().await.unwrap().leases, vec![]);
}

pub(crate) async fn booked(store: &dyn Store, sequence: u64, totals: Vec<(LeaseId, Usage)>) -> Booked {
    let totals = totals.into_iter().map(|(lease, used)| (lease, used.into())).collect();
    store.book(NODE, sequence, totals).wait().await.unwrap()
}

pub async fn a_booking_counts_once_and_only_for_the_nodes_own_leases(store: &dyn Store) {
    register(store, address(1)).await;
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
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

pub async fn a_booking_arrives_after_its_lease_has_ended(store: &dyn Store) {
    register(store, address(1)).await;
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    noted(store, vec![Change::Offered(Box::new(record())), ended]).await;
    booked(store, 1, vec![(LEASE, used(10, 1))]).await;
    assert_eq!(only_lease(store).await.usage, used(10, 1));
}

pub async fn a_lease_remembers_which_functions_used_it(store: &dyn Store) {
    register(store, address(1)).await;
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
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
    };
    store.book(NODE, 4, vec![(LEASE, totals)]).wait().await.unwrap();
    assert_eq!(only_lease(store).await.functions.len(), MAX_FUNCTIONS);
}

pub async fn a_join_token_admits_one_node(store: &dyn Store) {
    store.keep(bearer(1, As::Join, None)).wait().await.unwrap();
    let admit = |join: u8, credential: u8, node: u8, now| {
        store
            .admit([join; 32], bearer(credential, As::Node, Some(NodeId([node; 16]))), now)
            .wait()
    };
    assert_eq!(admit(7, 20, 1, 0).await, Ok(false), "no such token");
    assert_eq!(admit(1, 20, 1, 10_000).await, Ok(false), "expired");
    assert_eq!(admit(1, 20, 1, 9_999).await, Ok(true));
    assert_eq!(admit(1, 21, 2, 9_999).await, Ok(false), "used by another node");
    assert_eq!(admit(1, 22, 1, 9_999).await, Ok(true), "the same node again");
    let credentials: Vec<Bearer> = load(store)
        .await
        .bearers
        .into_iter()
        .filter(|bearer| bearer.speaks == As::Node)
        .collect();
    assert_eq!(
        credentials,
        vec![bearer(22, As::Node, Some(NODE))],
        "a node has one credential"
    );
}

/// Returns a client's bearer with this name.
pub(crate) fn client(hash: u8, name: &str) -> Bearer {
    Bearer {
        name: name.into(),
        ..bearer(hash, As::Client(Role::User), None)
    }
}

pub async fn a_clients_token_replaces_its_tenants_earlier_one_of_the_same_name(store: &dyn Store) {
    let stranger = Bearer {
        tenant: TenantId([7; 16]),
        ..client(3, "laptop")
    };
    let node = bearer(4, As::Node, Some(NODE));
    for bearer in [
        client(1, "laptop"),
        stranger.clone(),
        node.clone(),
        client(5, "cluster"),
    ] {
        store.keep(bearer).wait().await.unwrap();
    }
    let new = Bearer {
        read_only: true,
        ..client(2, "laptop")
    };
    store.keep(new.clone()).wait().await.unwrap();
    store.revoke([5; 32], Leases::End).wait().await.unwrap();
    let mut left = load(store).await.bearers;
    left.sort_by_key(|bearer| bearer.hash);
    assert_eq!(left, vec![new, stranger, node]);
}

pub async fn lease_ends_with_the_token_that_replaces_its_own_or_with_none(store: &dyn Store) {
    let kept = LeaseRecord {
        lease: LeaseId([6; 16]),
        bearer: Some([3; 32]),
        ..record()
    };
    for bearer in [client(1, "laptop"), client(3, "cluster")] {
        store.keep(bearer).wait().await.unwrap();
    }
    noted(
        store,
        [record(), kept].map(|record| Change::Offered(Box::new(record))).into(),
    )
    .await;
    store.keep(client(2, "laptop")).wait().await.unwrap();
    store.revoke([3; 32], Leases::Keep).wait().await.unwrap();
    store.revoke([2; 32], Leases::End).wait().await.unwrap();
    let mut bearers: Vec<_> = load(store)
        .await
        .leases
        .iter()
        .map(|lease| (lease.lease, lease.bearer))
        .collect();
    bearers.sort_unstable();
    assert_eq!(bearers, [(LEASE, Some([2; 32])), (LeaseId([6; 16]), None)]);
}

async fn spent(store: &dyn Store) -> u64 {
    load(store).await.tenants[0].spent
}

pub async fn what_is_booked_is_charged_to_its_tenant_once_at_the_leases_own_prices(store: &dyn Store) {
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
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
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

pub async fn what_tasks_cost_is_charged_once_however_often_it_is_told(store: &dyn Store) {
    let spec = TenantSpec::default();
    store.tenant(TENANT, "astro".into(), spec).wait().await.unwrap();
    register(store, address(1)).await;
    noted(store, vec![Change::Offered(Box::new(record()))]).await;
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

pub async fn the_bill_has_every_lease_of_its_time_in_order_and_goes_on_where_a_page_ended(store: &dyn Store) {
    let lease = |n: u8, tenant: u8| LeaseRecord {
        lease: LeaseId([n; 16]),
        tenant: TenantId([tenant; 16]),
        granted_at_ms: 1_000 + u64::from(n / 2),
        ..record()
    };
    let leases: Vec<LeaseRecord> = (1..=6).map(|n| lease(n, n % 2)).collect();
    let offered = |record: &LeaseRecord| Change::Offered(Box::new(record.clone()));
    noted(store, leases.iter().rev().map(offered).collect()).await;
    let ended = Change::Ended {
        lease: leases[0].lease,
        state: LeaseState::Released,
        at_ms: 2_000,
    };
    noted(store, vec![ended]).await;
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
        let Trimmed { entries, next } = store.trim_audit(trim).wait().await.unwrap();
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

pub async fn the_audit_log_numbers_its_entries_and_the_sites_prices_are_kept(store: &dyn Store) {
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

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_store {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            store,
            what_tasks_cost_is_charged_once_however_often_it_is_told,
            a_nodes_epoch_grows_with_each_registration,
            a_node_that_was_taken_back_stays_so_when_it_registers_anew,
            a_lease_is_kept_through_its_life_and_ends_once,
            a_lease_that_its_node_refuses_never_was_and_one_that_it_takes_is_as_the_node_says,
            whoever_lost_a_node_changes_nothing_of_its_leases,
            leases_that_ended_long_ago_are_not_loaded,
            a_booking_counts_once_and_only_for_the_nodes_own_leases,
            a_booking_arrives_after_its_lease_has_ended,
            a_lease_remembers_which_functions_used_it,
            a_join_token_admits_one_node,
            a_clients_token_replaces_its_tenants_earlier_one_of_the_same_name,
            lease_ends_with_the_token_that_replaces_its_own_or_with_none,
            what_is_booked_is_charged_to_its_tenant_once_at_the_leases_own_prices,
            the_bill_has_every_lease_of_its_time_in_order_and_goes_on_where_a_page_ended,
            the_audit_log_numbers_its_entries_and_the_sites_prices_are_kept,
            audit_log_keeps_the_newest_entries_within_its_bounds
        );
    };
}
