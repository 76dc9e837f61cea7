//! Gangs over several fake nodes.

use std::collections::BTreeSet;

use super::*;

fn gang(workers: u16, placement: Placement) -> GangRequest {
    GangRequest {
        lease: LeaseRequest {
            workers,
            ..request(Mode::Hot)
        },
        placement,
        among: Vec::new(),
    }
}

impl Client {
    async fn gang(&mut self, request: &GangRequest) -> Result<Vec<Grant>, Code> {
        let body = serde_json::to_string(request).unwrap();
        match self.send("POST", "/v1/gangs", &body).await {
            (201, body) => Ok(serde_json::from_str(&body).unwrap()),
            (status, body) => Err(code(status, &body)),
        }
    }

    async fn live(&mut self) -> usize {
        let leases = self.get::<Vec<LeaseStatus>>("/v1/leases").await;
        leases.iter().filter(|lease| lease.state == LeaseState::Granted).count()
    }
}

/// Workers of each part.
fn workers(grants: &[Grant]) -> Vec<u16> {
    grants.iter().map(|grant| grant.workers).collect()
}

#[tokio::test]
async fn gang_takes_as_many_nodes_as_needed() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let (_a, _b) = (
        FakeNode::join(&manager, 1, Manner::Honest).await,
        FakeNode::join(&manager, 2, Manner::Honest).await,
    );
    let mut client = Client::new(&manager).await;
    let packed = client.gang(&gang(3, Placement::Packed)).await.unwrap();
    assert_eq!(workers(&packed), [2, 1]);
    assert_ne!(packed[0].node.id, packed[1].node.id);
    assert_eq!(client.gang(&gang(2, Placement::Packed)).await, Err(Code::NoCapacity));
    assert_eq!(client.gang(&gang(5, Placement::Packed)).await, Err(Code::TooLarge));
    for grant in packed {
        client.send("DELETE", &format!("/v1/leases/{}", grant.lease), "").await;
    }
    let spread = client.gang(&gang(2, Placement::Spread)).await.unwrap();
    assert_eq!(workers(&spread), [1, 1]);
    assert_eq!(client.gang(&gang(2, Placement::Together)).await, Err(Code::NoCapacity));
}

#[tokio::test]
async fn fabric_gang_has_nodes_of_one_fabric() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut nodes = Vec::new();
    for id in 1..=4 {
        nodes.push(FakeNode::join(&manager, id, Manner::Honest).await);
    }
    let mut client = Client::new(&manager).await;
    let first = client.gang(&gang(4, Placement::Fabric)).await.unwrap();
    let second = client.gang(&gang(3, Placement::Fabric)).await.unwrap();
    for grants in [&first, &second] {
        let fabrics: BTreeSet<_> = grants.iter().map(|grant| &grant.node.fabrics).collect();
        assert_eq!((grants.len(), fabrics.len()), (2, 1), "{grants:?}");
    }
    assert_ne!(first[0].node.fabrics, second[0].node.fabrics);
    assert_eq!(client.gang(&gang(2, Placement::Fabric)).await, Err(Code::NoCapacity));
    assert_eq!(client.gang(&gang(5, Placement::Fabric)).await, Err(Code::TooLarge));
}

#[tokio::test]
async fn gang_with_a_refused_part_moves_without_leftovers() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _full = FakeNode::join(&manager, 1, Manner::Full).await;
    let honest = FakeNode::join(&manager, 2, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    assert_eq!(client.gang(&gang(3, Placement::Spread)).await, Err(Code::NoCapacity));
    assert_eq!(client.live().await, 0, "all of a gang or none");
    let grants = client.gang(&gang(2, Placement::Spread)).await.unwrap();
    assert_eq!((workers(&grants), grants[0].node.id), (vec![2], honest.id));
}

#[tokio::test]
async fn two_racing_gangs_never_hold_half_each() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let (_a, _b) = (
        FakeNode::join(&manager, 1, Manner::Honest).await,
        FakeNode::join(&manager, 2, Manner::Honest).await,
    );
    let (mut one, mut two) = (Client::new(&manager).await, Client::new(&manager).await);
    let patient = GangRequest {
        lease: LeaseRequest {
            wait_ms: 10_000,
            ..gang(4, Placement::Packed).lease
        },
        placement: Placement::Packed,
        among: Vec::new(),
    };
    for _ in 0..20 {
        let in_turn = async |client: &mut Client| {
            let grants = client.gang(&patient).await.unwrap();
            assert_eq!(workers(&grants), [2, 2]);
            for grant in grants {
                client.send("DELETE", &format!("/v1/leases/{}", grant.lease), "").await;
            }
        };
        tokio::join!(in_turn(&mut one), in_turn(&mut two));
    }
    assert_eq!(one.live().await, 0);
}

#[tokio::test]
async fn gang_over_the_quota_is_refused_whole() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _nodes = [
        FakeNode::join(&manager, 1, Manner::Honest).await,
        FakeNode::join(&manager, 2, Manner::Honest).await,
    ];
    let mut client = Client::new(&manager).await;
    let spec = r#"{"quota":{"cores":3}}"#;
    let (status, body) = client.send("PUT", "/v1/tenants/default", spec).await;
    assert!(status < 300, "{body}");
    assert_eq!(client.gang(&gang(4, Placement::Packed)).await, Err(Code::QuotaExceeded));
    assert_eq!(client.live().await, 0);
    assert_eq!(
        workers(&client.gang(&gang(3, Placement::Packed)).await.unwrap()),
        [2, 1]
    );
}
