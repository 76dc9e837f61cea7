//! Properties of every store.

use dayfly_protocol::api::{Capacity, LeaseState, LoanUsage, Mode, NodeAddress, Sandbox, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::{Prices, Role};

use crate::*;

/// The node of all [`record`]s.
pub const NODE: NodeId = NodeId([1; 16]);
/// The lease of all [`record`]s.
pub const LEASE: LeaseId = LeaseId([2; 16]);
/// The tenant of all [`record`]s and [`bearer`]s.
pub const TENANT: TenantId = TenantId([4; 16]);
/// Prices of all [`record`]s.
pub(crate) const PRICES: Prices = Prices {
    allocation_per_gib_s: 0,
    computing_per_s: 1_000_000,
    polling_per_s: 0,
    borrowed_core_per_s: 1_000_000,
    borrowed_per_gib_s: 3,
    core_per_s: 4,
    gpu_per_s: 5,
};
/// Capacity of [`NODE`].
pub(crate) const CAPACITY: Capacity = Capacity {
    cores: 3,
    memory_bytes: 1 << 30,
    workers: MilliCores::new(32_000),
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
        cores_per_worker: MilliCores::ONE,
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
        loans: LoanUsage::default(),
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
pub(crate) fn bearer(hash: u8, kind: BearerKind, node: Option<NodeId>) -> Bearer {
    Bearer {
        hash: [hash; 32],
        kind,
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
pub(crate) fn under(epoch: u64, changes: Vec<Change>) -> Vec<OwnedChange> {
    let node = NODE;
    let owned = |change| OwnedChange { node, epoch, change };
    changes.into_iter().map(owned).collect()
}

/// Stores changes in the node's first epoch, which begins if there was none.
pub(crate) async fn changed(store: &dyn Store, changes: Vec<Change>) {
    if load(store).await.nodes.is_empty() {
        register(store, address(1)).await;
    }
    let all = vec![ChangeResult::Kept; changes.len()];
    assert_eq!(store.change_leases(under(1, changes)).wait().await, Ok(all));
}

pub async fn node_epoch_grows_with_each_registration(store: &dyn Store) {
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

pub async fn reclaimed_node_stays_reclaimed_when_registered_again(store: &dyn Store) {
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

pub async fn lease_changes_are_stored_and_end_once(store: &dyn Store) {
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
    assert_eq!(only_lease(store).await, record());
    let renewed = Change::Renewed {
        lease: LEASE,
        duration_ms: 5,
        expires_at_ms: 6,
        bearer: Some([9; 32]),
        workers: 7,
        mode: Mode::Warm,
        memory_bytes: 8 << 20,
    };
    let active = Change::Active {
        lease: LEASE,
        expires_at_ms: 61_000,
    };
    changed(store, vec![active, renewed.clone()]).await;
    let active = LeaseRecord {
        state: LeaseState::Active,
        duration_ms: 5,
        expires_at_ms: 6,
        bearer: Some([9; 32]),
        workers: 7,
        mode: Mode::Warm,
        memory_bytes: 8 << 20,
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
    changed(store, vec![ended, again, renewed, Change::Offered(Box::new(record()))]).await;
    assert_eq!(
        only_lease(store).await,
        LeaseRecord {
            state: LeaseState::Revoked,
            ended_at_ms: 70,
            ..active
        }
    );
}

pub async fn refused_lease_is_deleted_and_accepted_one_updated(store: &dyn Store) {
    let taken = Change::Taken {
        lease: LEASE,
        mode: Mode::Warm,
        image: Some("tool:1@sha256:00ff".into()),
        sandbox: Sandbox::Container,
    };
    let refused = Change::Refused { lease: LEASE };
    changed(store, vec![Change::Offered(Box::new(record())), taken.clone()]).await;
    assert_eq!(only_lease(store).await.mode, Mode::Warm);
    assert_eq!(only_lease(store).await.sandbox, Sandbox::Container);
    assert_eq!(only_lease(store).await.image.as_deref(), Some("tool:1@sha256:00ff"));
    changed(store, vec![refused.clone()]).await;
    assert_eq!(load(store).await.leases, vec![]);
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    changed(store, vec![Change::Offered(Box::new(record())), ended, refused, taken]).await;
    assert_eq!(
        only_lease(store).await.mode,
        Mode::Hot,
        "what has ended stays as it was"
    );
}

pub async fn former_owner_of_node_changes_no_leases(store: &dyn Store) {
    changed(store, vec![Change::Offered(Box::new(record()))]).await;
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
    let changes = under(1, vec![ended.clone(), Change::Offered(Box::new(late))]);
    assert_eq!(
        store.change_leases(changes).wait().await,
        Ok(vec![ChangeResult::Stale, ChangeResult::Stale])
    );
    assert_eq!(only_lease(store).await, record());
    let mut mixed = under(1, vec![Change::Refused { lease: LEASE }]);
    mixed.extend(under(2, vec![ended]));
    assert_eq!(
        store.change_leases(mixed).wait().await,
        Ok(vec![ChangeResult::Stale, ChangeResult::Kept])
    );
    assert_eq!(only_lease(store).await.state, LeaseState::Lost);
}

pub async fn old_ended_leases_are_not_loaded(store: &dyn Store) {
    let ended = Change::Ended {
        lease: LEASE,
        state: LeaseState::Released,
        at_ms: 70,
    };
    changed(store, vec![Change::Offered(Box::new(record())), ended]).await;
    assert_eq!(store.load(70).wait().await.unwrap().leases.len(), 1);
    assert_eq!(store.load(71).wait().await.unwrap().leases, vec![]);
}

pub(crate) async fn booked(store: &dyn Store, sequence: u64, totals: Vec<(LeaseId, Usage)>) -> BookingResult {
    let totals = totals.into_iter().map(|(lease, used)| (lease, used.into())).collect();
    store.book(NODE, sequence, totals).wait().await.unwrap()
}

pub async fn join_token_admits_one_node(store: &dyn Store) {
    store.keep(bearer(1, BearerKind::Join, None)).wait().await.unwrap();
    let admit = |join: u8, credential: u8, node: u8, now| {
        store
            .admit(
                [join; 32],
                bearer(credential, BearerKind::Node, Some(NodeId([node; 16]))),
                now,
            )
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
        .filter(|bearer| bearer.kind == BearerKind::Node)
        .collect();
    assert_eq!(
        credentials,
        vec![bearer(22, BearerKind::Node, Some(NODE))],
        "a node has one credential"
    );
}

/// Returns a client's bearer with this name.
pub(crate) fn client(hash: u8, name: &str) -> Bearer {
    Bearer {
        name: name.into(),
        ..bearer(hash, BearerKind::Client(Role::User), None)
    }
}

pub async fn client_token_replaces_earlier_one_of_same_name(store: &dyn Store) {
    let stranger = Bearer {
        tenant: TenantId([7; 16]),
        ..client(3, "laptop")
    };
    let node = bearer(4, BearerKind::Node, Some(NODE));
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
    store.revoke([5; 32], RevokedLeases::End).wait().await.unwrap();
    let mut left = load(store).await.bearers;
    left.sort_by_key(|bearer| bearer.hash);
    assert_eq!(left, vec![new, stranger, node]);
}

pub async fn expired_session_is_deleted_by_the_next(store: &dyn Store) {
    let session = |hash, expires_at_ms| Bearer {
        name: "laptop".into(),
        expires_at_ms,
        ..bearer(hash, BearerKind::Session, None)
    };
    let far = 1 << 50;
    for bearer in [client(1, "laptop"), session(2, 1), session(3, far), session(4, far)] {
        store.keep(bearer).wait().await.unwrap();
    }
    let mut left = load(store).await.bearers;
    left.sort_by_key(|bearer| bearer.hash);
    assert_eq!(left, vec![client(1, "laptop"), session(3, far), session(4, far)]);
    // Neither replaces the other.
    store.keep(client(5, "laptop")).wait().await.unwrap();
    assert_eq!(load(store).await.bearers.len(), 3);
}

pub async fn lease_is_rebound_when_its_token_is_replaced(store: &dyn Store) {
    let kept = LeaseRecord {
        lease: LeaseId([6; 16]),
        bearer: Some([3; 32]),
        ..record()
    };
    for bearer in [client(1, "laptop"), client(3, "cluster")] {
        store.keep(bearer).wait().await.unwrap();
    }
    changed(
        store,
        [record(), kept].map(|record| Change::Offered(Box::new(record))).into(),
    )
    .await;
    store.keep(client(2, "laptop")).wait().await.unwrap();
    store.revoke([3; 32], RevokedLeases::Keep).wait().await.unwrap();
    store.revoke([2; 32], RevokedLeases::End).wait().await.unwrap();
    let mut bearers: Vec<_> = load(store)
        .await
        .leases
        .iter()
        .map(|lease| (lease.lease, lease.bearer))
        .collect();
    bearers.sort_unstable();
    assert_eq!(bearers, [(LEASE, Some([2; 32])), (LeaseId([6; 16]), None)]);
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_store {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            store,
            node_epoch_grows_with_each_registration,
            reclaimed_node_stays_reclaimed_when_registered_again,
            lease_changes_are_stored_and_end_once,
            refused_lease_is_deleted_and_accepted_one_updated,
            former_owner_of_node_changes_no_leases,
            old_ended_leases_are_not_loaded,
            join_token_admits_one_node,
            client_token_replaces_earlier_one_of_same_name,
            expired_session_is_deleted_by_the_next,
            lease_is_rebound_when_its_token_is_replaced
        );
    };
}
