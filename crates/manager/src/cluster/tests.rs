//! Sampling of nodes, and what leases end with after the full state is read from the store.

use std::collections::BTreeSet;

use dayfly_protocol::api::{Capacity, NodeAddress};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::tenancy::Role;
use dayfly_store::conformance::store::{self as conformance, LEASE, TENANT};

use super::nodes::SAMPLE;
use super::*;

fn cluster(nodes: u16) -> Cluster {
    let capacity = Capacity {
        cores: 1,
        memory_bytes: 1,
        workers: MilliCores::ONE,
        gpus: 0,
    };
    let record = |n: u16| {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&n.to_be_bytes());
        NodeRecord {
            address: NodeAddress {
                id: NodeId(id),
                name: n.to_string(),
                host: String::new(),
                unix: None,
                tcp: None,
                key: PublicKey([0; 32]),
                fabrics: Vec::new(),
            },
            capacity,
            epoch: 1,
            booked: 0,
            reclaimed: false,
            manager: None,
        }
    };
    let snapshot = Snapshot {
        nodes: (0..nodes).map(record).collect(),
        ..Snapshot::default()
    };
    Cluster::from_snapshot(snapshot, Instant::now())
}

#[test]
fn samples_are_small_distinct_and_reach_every_node() {
    let few = cluster(2 * SAMPLE as u16);
    assert!(few.nodes().sample(7, None).is_none(), "so few are all considered");
    let cluster = cluster(1_000);
    let mut seen = BTreeSet::new();
    for random in 0..1_000 {
        let sample = cluster.nodes().sample(random, None).unwrap();
        let sample: Vec<NodeId> = sample.iter().map(|view| view.node).collect();
        let distinct: BTreeSet<NodeId> = sample.iter().copied().collect();
        assert_eq!(distinct.len(), sample.len());
        assert!(sample.len() <= SAMPLE && sample.len() > SAMPLE / 2);
        seen.extend(distinct);
    }
    assert_eq!(seen.len(), 1_000);
    assert_eq!(cluster.nodes().views(None, None).len(), 1_000);
}

const OLD: [u8; 32] = [1; 32];
const NEW: [u8; 32] = [2; 32];

fn bearer(hash: [u8; 32]) -> Bearer {
    Bearer {
        hash,
        kind: BearerKind::Client(Role::User),
        tenant: TENANT,
        name: "laptop".into(),
        read_only: false,
        node: None,
        expires_at_ms: u64::MAX,
    }
}

fn snapshot(bearers: &[[u8; 32]], lease_bearer: Option<[u8; 32]>) -> Snapshot {
    Snapshot {
        bearers: bearers.iter().copied().map(bearer).collect(),
        leases: vec![LeaseRecord {
            bearer: lease_bearer,
            ..conformance::record()
        }],
        ..Snapshot::default()
    }
}

/// Returns the token of a lease of the old one after this state was read.
fn bearer_after(read: Snapshot) -> Option<[u8; 32]> {
    let mut cluster = Cluster::from_snapshot(snapshot(&[OLD], Some(OLD)), Instant::now());
    cluster.apply_snapshot(PublicKey([9; 32]), read);
    cluster.leases().get(&LEASE).unwrap().bearer
}

#[test]
fn lease_follows_a_replaced_or_revoked_token() {
    assert_eq!(bearer_after(snapshot(&[NEW], Some(NEW))), Some(NEW));
    // Revoked without its leases.
    assert_eq!(bearer_after(snapshot(&[], None)), None);
}

#[test]
fn lease_keeps_a_valid_or_revoked_token() {
    assert_eq!(bearer_after(snapshot(&[OLD, NEW], Some(NEW))), Some(OLD));
    assert_eq!(bearer_after(snapshot(&[NEW], Some(OLD))), Some(OLD));
}
