//! Renewals that change a lease: its record, its tenant's quota and its bill.

use dayfly_protocol::error::Failure;
use dayfly_protocol::tenancy::{BillPage, Prices, Quota, Role, Tenant};

use super::tenants::{PRICES, member};
use super::*;

impl Client {
    async fn renew(&mut self, lease: LeaseId, change: LeaseChange) -> Result<Grant, Failure> {
        let request = RenewRequest {
            duration_ms: 60_000,
            change,
        };
        let body = serde_json::to_string(&request).unwrap();
        let (status, body) = self.send("POST", &format!("/v1/leases/{lease}/renew"), &body).await;
        match status {
            200 => Ok(serde_json::from_str(&body).unwrap()),
            _ => Err(serde_json::from_str::<ErrorBody>(&body).unwrap().error),
        }
    }
}

fn to_workers(workers: u16) -> LeaseChange {
    LeaseChange {
        workers: Some(workers),
        ..LeaseChange::default()
    }
}

#[tokio::test]
async fn changed_lease_is_recorded_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Warm)).await.unwrap();
    let renewed = client.renew(grant.lease, to_workers(3)).await.unwrap();
    assert_eq!((renewed.workers, renewed.memory_bytes), (3, 3 * grant.memory_bytes));
    let hot = LeaseChange {
        mode: Some(Mode::Hot),
        ..to_workers(1)
    };
    assert_eq!(client.renew(grant.lease, hot).await.unwrap().mode, Mode::Hot);
    let path = format!("/v1/leases/{}", grant.lease);
    let seen = client.get::<LeaseStatus>(&path).await;
    assert_eq!(
        (seen.workers, seen.mode, seen.memory_bytes),
        (1, Mode::Hot, grant.memory_bytes)
    );
    let too_many = client.renew(grant.lease, to_workers(1_000)).await.unwrap_err();
    assert_eq!(too_many.code, Code::TooLarge, "{too_many}");
    assert_eq!(client.get::<LeaseStatus>(&path).await.workers, 1);
    client.renew(grant.lease, to_workers(2)).await.unwrap();
    manager.shutdown().await;
    drop((node, client, manager));
    let manager = restart(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let kept = client.get::<LeaseStatus>(&path).await;
    assert_eq!(
        (kept.workers, kept.mode, kept.memory_bytes),
        (2, Mode::Hot, 2 * grant.memory_bytes)
    );
}

#[tokio::test]
async fn growth_beyond_the_quota_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    own.tenant("astro", |spec| {
        spec.quota = Quota {
            workers: Some(4),
            ..Quota::default()
        }
    })
    .await;
    let lease = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    let refused = astro.renew(lease, to_workers(5)).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded, "{refused}");
    // A refused renewal leaves nothing reserved.
    assert_eq!(astro.renew(lease, to_workers(4)).await.unwrap().workers, 4);
    assert_eq!(astro.lease(&request(Mode::Warm)).await, Err(Code::QuotaExceeded));
    astro.renew(lease, to_workers(3)).await.unwrap();
    astro.lease(&request(Mode::Warm)).await.unwrap();
    let tenants = own.get::<Vec<Tenant>>("/v1/tenants").await;
    let held = tenants.iter().find(|tenant| tenant.name == "astro").unwrap();
    assert_eq!((held.leases, held.workers), (2, 4));
}

#[tokio::test]
async fn growth_is_cut_to_the_quota() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    own.tenant("astro", |spec| {
        spec.quota = Quota {
            workers: Some(4),
            ..Quota::default()
        }
    })
    .await;
    let lease = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    let at_least = |min_workers| LeaseChange {
        min_workers: Some(min_workers),
        ..to_workers(9)
    };
    let refused = astro.renew(lease, at_least(5)).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded, "{refused}");
    assert_eq!(astro.renew(lease, at_least(2)).await.unwrap().workers, 4);
    let malformed = astro.renew(lease, at_least(10)).await.unwrap_err();
    assert_eq!(malformed.code, Code::InvalidRequest, "{malformed}");
}

/// What a node reports of a lease with a worker more.
fn grown(grant: &Grant) -> HeldTerms {
    HeldTerms {
        lease: grant.lease,
        workers: 2,
        numbers: vec![0, 3],
        mode: Mode::Warm,
        memory_bytes: 2 * grant.memory_bytes,
    }
}

fn late_response(terms: HeldTerms) -> NodeMessage {
    NodeMessage::Answer {
        request: 1 << 40,
        refused: None,
        mode: None,
        image: None,
        sandbox: None,
        terms: Some(Box::new(terms)),
    }
}

impl Client {
    async fn until_workers(&mut self, lease: LeaseId, workers: u16) {
        let since = Instant::now();
        while self.get::<LeaseStatus>(&format!("/v1/leases/{lease}")).await.workers != workers {
            assert!(since.elapsed() < TIMEOUT, "the change was not recorded");
        }
    }
}

#[tokio::test]
async fn late_response_still_changes_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let other = FakeNode::join(&manager, 2, Manner::Full).await;
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Warm)).await.unwrap();
    // Another node has no say in it.
    let foreign = HeldTerms {
        workers: 9,
        numbers: Vec::new(),
        ..grown(&grant)
    };
    other.say.send(late_response(foreign)).unwrap();
    node.say.send(late_response(grown(&grant))).unwrap();
    client.until_workers(grant.lease, 2).await;
    let wrong = HeldTerms {
        numbers: vec![3, 0],
        ..grown(&grant)
    };
    node.say.send(late_response(wrong)).unwrap();
    let end = async { while node.heard.recv().await.is_some() {} };
    tokio::time::timeout(TIMEOUT, end).await.expect("its connection ends");
    assert_eq!(
        client
            .get::<LeaseStatus>(&format!("/v1/leases/{}", grant.lease))
            .await
            .workers,
        2
    );
}

#[tokio::test]
async fn registration_reports_changes_that_were_lost() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Warm)).await.unwrap();
    let credential = node.credential.clone().unwrap();
    drop(node);
    let mut registration = registration(1, &[grant.lease], &ledger(2));
    if let NodeMessage::Register { leases, .. } = &mut registration {
        let terms = HeldTerms {
            memory_bytes: 9 * grant.memory_bytes,
            ..grown(&grant)
        };
        leases[0].terms = Some(Box::new(terms));
    }
    let mut socket = websocket(&manager, "/v1/nodes/connect", &credential).await.unwrap();
    send(&mut socket, &registration).await;
    client.until_workers(grant.lease, 2).await;
    let seen = client.get::<LeaseStatus>(&format!("/v1/leases/{}", grant.lease)).await;
    assert_eq!(
        seen.memory_bytes,
        2 * grant.memory_bytes,
        "more than in proportion is not recorded"
    );
}

#[tokio::test]
async fn change_neither_repeats_nor_loses_charges() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let prices = Prices {
        allocation_per_gib_s: 1_000_000,
        computing_per_s: 0,
        ..PRICES
    };
    own.put::<Prices>("/v1/prices", &prices).await;
    let gib = LeaseRequest {
        memory_bytes: 1 << 30,
        ..request(Mode::Warm)
    };
    let lease = astro.lease(&gib).await.unwrap().lease;
    // One worker for a second, then two for another second.
    for (sequence, workers, allocated_us) in [(1, 2, 1_000_000), (2, 1, 3_000_000), (3, 1, 4_000_000)] {
        let usage = Usage {
            allocated_us,
            ..Usage::default()
        };
        let meters = NodeMessage::Meters {
            sequence,
            usage: vec![(lease, usage.into())],
        };
        node.say.send(meters).unwrap();
        node.hears(|message| *message == ManagerMessage::Booked { sequence })
            .await;
        let total = astro.get::<BillPage>("/v1/bill").await.lines[0].total;
        assert_eq!(total, allocated_us, "a GiB for each worker");
        astro.renew(lease, to_workers(workers)).await.unwrap();
        let total = astro.get::<BillPage>("/v1/bill").await.lines[0].total;
        assert_eq!(total, allocated_us, "a change costs nothing by itself");
    }
}
