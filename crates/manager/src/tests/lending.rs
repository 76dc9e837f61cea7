//! Leases of warm workers on nodes of which some lend.

use dayfly_protocol::node_messages::{LendablePools, PoolStep};

use super::*;

/// Lets a node report this on all of its heartbeats, and sends one.
fn report(node: &FakeNode, pools: &LendablePools) {
    *node.pools.lock().unwrap() = Some(pools.clone());
    let beat = NodeMessage::Heartbeat {
        free: ledger(2).free(),
        clock_ms: now_ms(),
        harvest: None,
        pools: Some(Box::new(pools.clone())),
    };
    node.say.send(beat).unwrap();
}

/// What a node reports that lends so much of what running calls own, and as much that nobody owns.
fn lending(milli_cores: u64) -> LendablePools {
    let step = PoolStep {
        remaining_us: 600_000_000,
        units: milli_cores,
    };
    LendablePools {
        cpu: vec![step],
        unowned_milli_cores: milli_cores,
        ..LendablePools::default()
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.expect(what);
}

#[tokio::test]
async fn warm_leases_go_to_the_lending_node() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _idle = FakeNode::join(&manager, 1, Manner::Honest).await;
    let lender = FakeNode::join(&manager, 2, Manner::Honest).await;
    report(&lender, &lending(1_500));
    until("a node lends", || !manager.lending().is_empty()).await;
    let mut client = Client::new(&manager).await;
    for _ in 0..8 {
        let grant = client.lease(&request(Mode::Warm)).await.unwrap();
        assert_eq!(grant.node.id, lender.id, "both have as many free workers");
        // The node that has more free workers comes first, whatever the other lends.
        let second = client.lease(&request(Mode::Warm)).await.unwrap();
        assert_ne!(second.node.id, lender.id);
        for lease in [grant.lease, second.lease] {
            let (status, body) = client.send("DELETE", &format!("/v1/leases/{lease}"), "").await;
            assert_eq!(status, 200, "{body}");
        }
    }
}

#[tokio::test]
async fn wrong_pools_are_ignored_without_harm() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    report(&node, &lending(u64::MAX));
    until("the node lends", || !manager.lending().is_empty()).await;
    let (_, known) = manager.lending().remove(0);
    assert!(known.spare.cpu.at(0) < 1_000_000 && known.unowned.milli_cores < 1_000_000);
    let twice = lending(1_000).cpu.repeat(2);
    report(
        &node,
        &LendablePools {
            cpu: twice,
            ..LendablePools::default()
        },
    );
    until("the report is dropped", || manager.lending().is_empty()).await;
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Warm)).await.unwrap();
    assert_eq!(grant.node.id, node.id);
}
