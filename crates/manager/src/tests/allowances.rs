//! Leases that nodes grant under allowances: which reports the manager accepts, and what it sends to nodes.

use dayfly_lease::SigningKey;
use dayfly_lease::token::Opening;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::hello::Hello;
use dayfly_protocol::ids::{AllowanceId, ChannelId};
use dayfly_protocol::node_api::DirectStart;
use dayfly_protocol::tenancy::Role;
use dayfly_store::system::{now_ms, random};
use zerocopy::{FromBytes, IntoBytes};

use super::tenants::member;
use super::*;

fn holder() -> SigningKey {
    SigningKey::from_seed([9; 32])
}

fn wish(workers: u32, workers_per_node: u16) -> AllowanceRequest {
    AllowanceRequest {
        holder: holder().public(),
        workers,
        cores: MilliCores::ZERO,
        memory_bytes: 0,
        workers_per_node,
        duration_ms: 60_000,
        sandbox: None,
    }
}

impl Client {
    async fn allow(&mut self, request: &AllowanceRequest) -> Result<Allowance, Code> {
        let body = serde_json::to_string(request).unwrap();
        match self.send("POST", "/v1/allowances", &body).await {
            (201, body) => Ok(serde_json::from_str(&body).unwrap()),
            (status, body) => Err(code(status, &body)),
        }
    }
}

fn token(allowance: &Allowance) -> Token {
    Token::read_from_bytes(&hex::decode(&allowance.token).unwrap()).unwrap()
}

/// Returns a client's hello to a node.
fn hello(token: Token, node: NodeId, holder: &SigningKey) -> Hello {
    Opening::Control { encrypted: false }.sign(node, token, ChannelId(random()), now_ms(), holder)
}

/// Returns a node's report of a lease that it granted for a hello.
fn started(lease: u8, hello: &Hello, workers: u16) -> NodeMessage {
    NodeMessage::Started {
        lease: LeaseId([lease; 16]),
        start: Box::new(DirectStart {
            hello: hex::encode(hello.as_bytes()),
            holder: holder().public(),
            workers,
            cores_per_worker: MilliCores::ONE,
            mode: Mode::Warm,
            sandbox: Sandbox::Process,
            image: None,
            memory_bytes: 1 << 20,
            duration_ms: 60_000,
            started_at_ms: now_ms(),
        }),
    }
}

fn adopted(message: &ManagerMessage) -> bool {
    matches!(message, ManagerMessage::Adopted { .. })
}

fn exhausted(message: &ManagerMessage) -> bool {
    matches!(message, ManagerMessage::Exhausted { for_ms: 1.., .. })
}

fn has_room(message: &ManagerMessage) -> bool {
    matches!(message, ManagerMessage::Exhausted { for_ms: 0, .. })
}

fn ended(lease: u8) -> impl Fn(&ManagerMessage) -> bool {
    move |message| matches!(message, ManagerMessage::End { lease: ended, .. } if ended.0 == [lease; 16])
}

#[tokio::test]
async fn exhausted_allowance_is_announced_to_all_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let mut first = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut second = FakeNode::join(&manager, 2, Manner::Honest).await;
    let allowance = client.allow(&wish(3, 2)).await.unwrap();
    assert_eq!(allowance.nodes.len(), 2);
    let token = token(&allowance);
    first
        .say
        .send(started(1, &hello(token, first.id, &holder()), 2))
        .unwrap();
    first.hears(adopted).await;
    second
        .say
        .send(started(2, &hello(token, second.id, &holder()), 2))
        .unwrap();
    // One more than the total is recorded, because it has started.
    first.hears(exhausted).await;
    second.hears(exhausted).await;
    assert_eq!(client.state(LeaseId([2; 16])).await, LeaseState::Granted);
    let path = format!("/v1/allowances/{}", allowance.allowance);
    assert_eq!(client.get::<Allowance>(&path).await.workers_left, 0);
    // A node that reconnects is informed again.
    let third = FakeNode::join(&manager, 3, Manner::Honest).await;
    let mut third = third;
    third.hears(exhausted).await;
    let over = |lease: u8| NodeMessage::LeaseEnded {
        lease: LeaseId([lease; 16]),
        state: LeaseState::Released,
    };
    first.say.send(over(1)).unwrap();
    second.hears(has_room).await;
    assert_eq!(client.get::<Allowance>(&path).await.workers_left, 1);
    assert_eq!(client.state(LeaseId([1; 16])).await, LeaseState::Released);
}

#[tokio::test]
async fn lease_without_its_tenants_request_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let mut hostile = FakeNode::join(&manager, 1, Manner::Honest).await;
    let other = FakeNode::join(&manager, 2, Manner::Honest).await;
    let allowance = client.allow(&wish(8, 2)).await.unwrap();
    let token = token(&allowance);
    let (own, stranger) = (hostile.id, SigningKey::from_seed([66; 32]));
    let mut forged = token;
    forged.workers = 100.into();
    let mut later = hello(token, own, &holder());
    later.sent_at_ms = (now_ms() + 3_600_000).into();
    let lies = [
        ("what was said to another node", hello(token, other.id, &holder())),
        ("what its holder never said", hello(token, own, &stranger)),
        ("what no manager signed", hello(forged, own, &holder())),
        ("what was changed afterwards", later),
    ];
    for (number, (what, lie)) in (10..).zip(lies) {
        hostile.say.send(started(number, &lie, 1)).unwrap();
        hostile.hears(ended(number)).await;
        let leases = client.get::<Vec<LeaseStatus>>("/v1/leases").await;
        assert!(leases.is_empty(), "{what}: {leases:?}");
    }
    // A lease beyond the cap for one node is refused.
    let said = hello(token, own, &holder());
    hostile.say.send(started(20, &said, 3)).unwrap();
    hostile.hears(ended(20)).await;
    hostile.say.send(started(21, &said, 2)).unwrap();
    hostile.hears(adopted).await;
    hostile.say.send(started(22, &said, 1)).unwrap();
    hostile.hears(ended(22)).await;
    // A lease of another node is refused.
    other
        .say
        .send(started(21, &hello(token, other.id, &holder()), 1))
        .unwrap();
    let mut other = other;
    other.hears(ended(21)).await;
    assert_eq!(client.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 1);
}

#[tokio::test]
async fn repeated_start_counts_once_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let credential = node.credential.clone().unwrap();
    let allowance = client.allow(&wish(4, 4)).await.unwrap();
    let said = hello(token(&allowance), node.id, &holder());
    for _ in 0..2 {
        node.say.send(started(1, &said, 1)).unwrap();
        node.hears(adopted).await;
    }
    assert_eq!(client.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 1);
    drop(node);
    manager.shutdown().await;
    drop((manager, client));
    let manager = restart(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let held = [LeaseId([1; 16]), LeaseId([2; 16])];
    let mut node = FakeNode::connect(&manager, 1, &credential, Manner::Honest, &held)
        .await
        .unwrap();
    for lease in [1, 2] {
        node.say.send(started(lease, &said, 1)).unwrap();
        node.hears(adopted).await;
    }
    assert_eq!(client.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 2);
    // The allowance itself is unknown after the restart.
    let (status, body) = client
        .send("GET", &format!("/v1/allowances/{}", allowance.allowance), "")
        .await;
    assert_eq!(code(status, &body), Code::NotFound);
}

#[tokio::test]
async fn allowance_counts_for_the_quota_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut own = Client::new(&manager).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    own.tenant("astro", |spec| spec.quota.workers = Some(4)).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    assert_eq!(astro.allow(&wish(5, 0)).await, Err(Code::QuotaExceeded));
    let allowance = astro.allow(&wish(3, 0)).await.unwrap();
    assert_eq!(astro.allow(&wish(2, 0)).await, Err(Code::QuotaExceeded));
    // A lease under it counts once.
    let mut node = node;
    node.say
        .send(started(1, &hello(token(&allowance), node.id, &holder()), 2))
        .unwrap();
    node.hears(adopted).await;
    assert_eq!(astro.allow(&wish(2, 0)).await, Err(Code::QuotaExceeded));
    let one_more = astro.allow(&wish(1, 0)).await.unwrap();
    for id in [allowance.allowance, one_more.allowance] {
        let (status, body) = astro.send("DELETE", &format!("/v1/allowances/{id}"), "").await;
        assert_eq!(status, 204, "{body}");
    }
    // The nodes are informed of its end, and its lease continues.
    node.hears(exhausted).await;
    assert_eq!(astro.state(LeaseId([1; 16])).await, LeaseState::Granted);
    assert_eq!(astro.allow(&wish(3, 0)).await, Err(Code::QuotaExceeded));
    assert!(astro.allow(&wish(2, 0)).await.is_ok());
}

#[tokio::test]
async fn changed_list_of_nodes_ends_the_wait() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let first = FakeNode::join(&manager, 1, Manner::Honest).await;
    let allowance = client.allow(&wish(1, 0)).await.unwrap();
    assert_eq!(allowance.nodes.len(), 1);
    let path = |version| format!("/v1/allowances/{}?after={version}&wait_ms=9000", allowance.allowance);
    let begun = Instant::now();
    let joins = FakeNode::join(&manager, 2, Manner::Honest);
    let (version, second) = (allowance.version, path(allowance.version));
    let (news, second) = tokio::join!(client.get::<Allowance>(&second), joins);
    assert_eq!(news.nodes.len(), 2);
    assert!(news.version > version && begun.elapsed() < Duration::from_secs(5));
    drop(first);
    let news = client.get::<Allowance>(&path(news.version)).await;
    assert_eq!(news.nodes.len(), 1);
    assert_eq!(news.nodes[0].node.id, second.id);
    let stranger = AllowanceId([7; 16]);
    let (status, body) = client.send("GET", &format!("/v1/allowances/{stranger}"), "").await;
    assert_eq!(code(status, &body), Code::NotFound);
}
