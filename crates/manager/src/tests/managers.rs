//! Several managers over one real PostgreSQL, with fake nodes.

use dayfly_protocol::tenancy::{Quota, TenantSpec};
use dayfly_store::conformance::postgres_database as database;

use super::profiles::{harvest, learnt, respond};
use super::*;
use crate::options::StoreKind;

async fn manager(directory: &Path, url: &str) -> Handle {
    let options = Options {
        store: StoreKind::Postgres { url: url.to_owned() },
        heartbeat: Duration::from_millis(500),
        lease_lost_after: Duration::from_millis(500),
        ..options(directory)
    };
    Manager::start(options).await.unwrap()
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < TIMEOUT * 2, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until all managers know each other.
async fn acquainted(managers: &[&Handle]) {
    for manager in managers {
        let mut client = Client::new(manager).await;
        until("that all managers know each other", async || {
            client.get::<Vec<ManagerStatus>>("/v1/managers").await.len() == managers.len()
        })
        .await;
    }
}

/// Starts two managers that know each other.
async fn two_managers(one: &tempfile::TempDir, two: &tempfile::TempDir, url: &str) -> (Handle, Handle) {
    let (a, b) = (manager(one.path(), url).await, manager(two.path(), url).await);
    acquainted(&[&a, &b]).await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_manager_grants_on_all_nodes() {
    let Some(database) = database() else { return };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = two_managers(&one, &two, &database.url).await;
    let near = FakeNode::join(&a, 1, Manner::Honest).await;
    let far = FakeNode::join(&b, 2, Manner::Honest).await;
    // Each node gets the keys and addresses of all managers.
    assert_eq!(near.signing_keys.len(), 2);
    let mut client = Client::new(&a).await;
    let both_cores = LeaseRequest {
        workers: 2,
        ..request(Mode::Hot)
    };
    let first = client.lease(&both_cores).await.unwrap();
    let second = client.lease(&both_cores).await.unwrap();
    assert_eq!((first.node.id, second.node.id), (near.id, far.id));
    assert_eq!(client.lease(&both_cores).await.err(), Some(Code::NoCapacity));
    assert_eq!(client.get::<Vec<NodeStatus>>("/v1/nodes").await.len(), 2);
    assert_eq!(client.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 2);
    assert_eq!(client.state(second.lease).await, LeaseState::Granted);
    let wanted = LeaseRequest {
        node: Some(far.id),
        ..both_cores.clone()
    };
    let mut events = a.events();
    // An abbreviated id finds the lease of the other manager as well.
    let end = second.lease.to_string().split_off(20);
    let (status, body) = client.send("DELETE", &format!("/v1/leases/...{end}"), "").await;
    assert_eq!(status, 200, "{body}");
    event(&mut events, lease_event(second.lease, far.id, LeaseState::Released)).await;
    assert_eq!(client.lease(&wanted).await.unwrap().node.id, far.id);
    for manager in [a, b] {
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_manager_shows_profiles_of_all_nodes() {
    let Some(database) = database() else { return };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = two_managers(&one, &two, &database.url).await;
    let mut near = FakeNode::join(&a, 1, Manner::Silent).await;
    let mut far = FakeNode::join(&b, 2, Manner::Silent).await;
    let (mut of_a, mut of_b) = (Client::new(&a).await, Client::new(&b).await);
    harvest(&near, &mut of_a, HarvestMode::Watch, None).await;
    harvest(&far, &mut of_b, HarvestMode::On, None).await;
    for client in [&mut of_a, &mut of_b] {
        let (rows, asked_near, asked_far) = tokio::join!(
            client.get::<Vec<FunctionProfile>>("/v1/functions/f/profile"),
            respond(&mut near, vec![learnt("m.f@12345678", "It lends nothing.")]),
            respond(&mut far, vec![learnt("m.f@12345678", "It lends.")]),
        );
        assert_eq!(asked_near, asked_far);
        let shown: Vec<_> = rows.iter().map(|row| (row.node, row.mode)).collect();
        assert_eq!(shown, [(near.id, HarvestMode::Watch), (far.id, HarvestMode::On)]);
    }
    for manager in [a, b] {
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_offer_does_not_count_at_other_managers() {
    let Some(database) = database() else { return };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = two_managers(&one, &two, &database.url).await;
    let _full = FakeNode::join(&a, 1, Manner::Full).await;
    let _honest = FakeNode::join(&b, 2, Manner::Honest).await;
    let mut client = Client::new(&a).await;
    let spec = TenantSpec {
        quota: Quota {
            workers: Some(1),
            ..Quota::default()
        },
        ..TenantSpec::default()
    };
    let body = serde_json::to_string(&spec).unwrap();
    let (status, body) = client.send("PUT", "/v1/tenants/default", &body).await;
    assert_eq!(status, 200, "{body}");
    for _ in 0..5 {
        let grant = client.lease(&request(Mode::Hot)).await.unwrap();
        let full = client.lease(&request(Mode::Hot)).await.err();
        assert_eq!(full, Some(Code::QuotaExceeded));
        let (status, body) = client.send("DELETE", &format!("/v1/leases/{}", grant.lease), "").await;
        assert_eq!(status, 200, "{body}");
    }
    for manager in [a, b] {
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_dead_node_and_manager_are_ended() {
    let Some(database) = database() else { return };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = two_managers(&one, &two, &database.url).await;
    let node = FakeNode::join(&a, 1, Manner::Honest).await;
    let grant = Client::new(&a).await.lease(&request(Mode::Hot)).await.unwrap();
    drop(node);
    a.shutdown().await;
    let mut client = Client::new(&b).await;
    until("the end of a lease that nobody looks after", async || {
        let leases: Vec<LeaseStatus> = client.get("/v1/leases").await;
        leases
            .iter()
            .any(|lease| lease.lease == grant.lease && lease.state == LeaseState::Lost)
    })
    .await;
    let nodes: Vec<NodeStatus> = client.get("/v1/nodes").await;
    assert_eq!((nodes.len(), nodes[0].state, nodes[0].leases), (1, NodeState::Lost, 0));
    b.shutdown().await;
}
