//! Tests with a real manager on the loopback, clients that write HTTP themselves, and fake nodes.

mod allowances;
mod fake_node;
mod gangs;
mod lending;
mod loans;
mod managers;
mod profiles;
mod queries;
mod renewals;
mod tasks;
mod tenants;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use dayfly_lease::token::check_token;
use dayfly_protocol::api::*;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey};
use dayfly_protocol::node_messages::{ManagerMessage, NodeMessage};
use dayfly_store::StoreError;
use dayfly_store::system::now_ms;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::*;
use fake_node::*;

fn options(directory: &Path) -> Options {
    Options {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        // Long, so that no node is lost on a busy machine. Tests of loss set their own.
        heartbeat: Duration::from_secs(5),
        ..Options::new(directory)
    }
}

async fn start(directory: &Path) -> Handle {
    Manager::start(options(directory)).await.unwrap()
}

/// A client with one HTTP connection.
struct Client {
    stream: TlsStream<TcpStream>,
    token: String,
}

impl Client {
    async fn new(manager: &Handle) -> Self {
        Self {
            stream: tls(manager).await,
            token: manager.connection().token.clone(),
        }
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.token,
            body.len()
        );
        self.stream.write_all((head + body).as_bytes()).await.unwrap();
        tokio::time::timeout(TIMEOUT, response(&mut self.stream))
            .await
            .expect("a response in time")
    }

    async fn get<T: serde::de::DeserializeOwned>(&mut self, path: &str) -> T {
        let (status, body) = self.send("GET", path, "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn lease(&mut self, request: &LeaseRequest) -> Result<Grant, Code> {
        let (status, body) = self
            .send("POST", "/v1/leases", &serde_json::to_string(request).unwrap())
            .await;
        if status == 201 {
            Ok(serde_json::from_str(&body).unwrap())
        } else {
            Err(code(status, &body))
        }
    }

    async fn state(&mut self, lease: LeaseId) -> LeaseState {
        self.get::<LeaseStatus>(&format!("/v1/leases/{lease}")).await.state
    }
}

async fn response(stream: &mut TlsStream<TcpStream>) -> (u16, String) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
            let length = head
                .split("content-length: ")
                .nth(1)
                .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
            if bytes.len() >= end + 4 + length {
                let status = head[9..12].parse().unwrap();
                return (status, String::from_utf8(bytes[end + 4..].to_vec()).unwrap());
            }
        }
        let mut part = [0; 16 << 10];
        let got = stream.read(&mut part).await.unwrap();
        assert!(got > 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&part[..got]);
    }
}

fn code(status: u16, body: &str) -> Code {
    let error = serde_json::from_str::<ErrorBody>(body)
        .unwrap_or_else(|error| panic!("{error}: {body}"))
        .error;
    assert_eq!(status, error.code.http_status(), "{body}");
    assert!(!error.message.is_empty());
    error.code
}

fn request(mode: Mode) -> LeaseRequest {
    LeaseRequest::native(1, mode, 60_000, PublicKey([7; 32]))
}

/// Waits for an event of the manager.
async fn event(events: &mut tokio::sync::broadcast::Receiver<SiteEvent>, wanted: Event) {
    let search = async { while events.recv().await.expect("events go on").event != wanted {} };
    tokio::time::timeout(TIMEOUT, search).await.expect("the event in time");
}

fn lease_event(lease: LeaseId, node: NodeId, state: LeaseState) -> Event {
    Event::Lease { lease, node, state }
}

#[tokio::test]
async fn grant_has_a_token_that_its_node_verifies() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Auto)).await.unwrap();
    assert_eq!((grant.node.id, grant.mode, grant.workers), (node.id, Mode::Hot, 1));
    let bytes = hex::decode(&grant.token).unwrap();
    let token: Token = zerocopy::FromBytes::read_from_bytes(&bytes).unwrap();
    assert_eq!(check_token(&token, now_ms(), 0, &node.id, &node.signing_keys), Ok(()));
    assert_eq!(
        (token.lease, token.epoch.get(), token.holder),
        (grant.lease, 1, PublicKey([7; 32]))
    );
    assert_eq!(token.memory_bytes.get(), grant.memory_bytes);
    assert_eq!(client.state(grant.lease).await, LeaseState::Granted);
    manager.shutdown().await;
}

#[tokio::test]
async fn last_core_goes_to_one_of_two_clients() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let (mut a, mut b) = (Client::new(&manager).await, Client::new(&manager).await);
    a.lease(&request(Mode::Hot)).await.unwrap();
    let hot = request(Mode::Hot);
    let (first, second) = tokio::join!(a.lease(&hot), b.lease(&hot));
    let refused = [first, second].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused, vec![Code::NoCapacity]);
}

#[tokio::test]
async fn released_lease_makes_room_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let both = LeaseRequest {
        workers: 2,
        ..request(Mode::Hot)
    };
    for _ in 0..20 {
        let grant = client.lease(&both).await.unwrap();
        let (status, body) = client.send("DELETE", &format!("/v1/leases/{}", grant.lease), "").await;
        assert_eq!(
            (status, serde_json::from_str::<LeaseStatus>(&body).unwrap().state),
            (200, LeaseState::Released)
        );
    }
}

#[tokio::test]
async fn refused_offer_goes_to_the_next_node() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _full = FakeNode::join(&manager, 1, Manner::Full).await;
    let honest = FakeNode::join(&manager, 2, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    for _ in 0..2 {
        assert_eq!(client.lease(&request(Mode::Hot)).await.unwrap().node.id, honest.id);
    }
}

#[tokio::test]
async fn failing_node_is_suspended_until_it_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut events = manager.events();
    let mut broken = FakeNode::join(&manager, 1, Manner::Broken).await;
    let mut client = Client::new(&manager).await;
    for _ in 0..3 {
        assert_eq!(
            client.lease(&request(Mode::Warm)).await,
            Err(Code::ExecutorFailed),
            "there is no other node"
        );
    }
    let status = manager.nodes().remove(0);
    assert_eq!(
        (status.state, status.why.as_deref()),
        (NodeState::Suspended, Some("the fake has no executor"))
    );
    assert!(
        status.suspended_ms > 8_000 && status.suspended_ms <= 10_000,
        "{status:?}"
    );
    let told = tokio::time::timeout(TIMEOUT, async {
        loop {
            if let Event::NodeSuspended { node, .. } = events.recv().await.unwrap().event {
                return node;
            }
        }
    });
    assert_eq!(told.await.unwrap(), broken.id);
    // The suspended node gets no offers, and requests are refused.
    while broken.heard.try_recv().is_ok() {}
    assert_eq!(client.lease(&request(Mode::Warm)).await, Err(Code::NoCapacity));
    assert!(broken.heard.try_recv().is_err());
    // A new connection does not end the suspension.
    drop(broken);
    event(&mut events, Event::NodeLost { node: NodeId([1; 16]) }).await;
    let honest = FakeNode::join(&manager, 1, Manner::Honest).await;
    assert_eq!(client.lease(&request(Mode::Warm)).await, Err(Code::NoCapacity));
    let resume = format!("/v1/nodes/{}", honest.id);
    assert_eq!(client.send("PUT", &resume, "").await.0, 200);
    client.lease(&request(Mode::Warm)).await.unwrap();
    assert_eq!(manager.nodes()[0].state, NodeState::Up);
}

#[tokio::test]
async fn broken_interpreter_of_a_tenant_suspends_no_node() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Broken).await;
    let mut client = Client::new(&manager).await;
    let request = LeaseRequest {
        runtime: Runtime::Python {
            version: "3.11.7".into(),
            cloudpickle: "3.1.0".into(),
            executable: Some("/bin/false".into()),
            path: Vec::new(),
            environment: None,
            code: None,
        },
        ..request(Mode::Warm)
    };
    for _ in 0..10 {
        assert_eq!(client.lease(&request).await, Err(Code::ExecutorFailed));
    }
    assert_eq!(manager.nodes()[0].state, NodeState::Up);
}

#[tokio::test]
async fn impossible_requests_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    assert_eq!(client.lease(&request(Mode::Hot)).await, Err(Code::NoCapacity));
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let hot = request(Mode::Hot);
    assert_eq!(
        client
            .lease(&LeaseRequest {
                workers: 3,
                ..hot.clone()
            })
            .await,
        Err(Code::TooLarge)
    );
    assert_eq!(
        client
            .lease(&LeaseRequest {
                workers: 0,
                ..hot.clone()
            })
            .await,
        Err(Code::InvalidRequest)
    );
    assert_eq!(
        client
            .lease(&LeaseRequest {
                duration_ms: u64::MAX,
                ..hot.clone()
            })
            .await,
        Err(Code::TooLarge)
    );
    assert_eq!(
        client
            .lease(&LeaseRequest {
                node: Some(NodeId([9; 16])),
                ..hot
            })
            .await,
        Err(Code::NotFound)
    );
}

#[tokio::test]
async fn lease_is_renewed_and_ends_when_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut events = manager.events();
    let mut client = Client::new(&manager).await;
    let grant = client.lease(&request(Mode::Warm)).await.unwrap();
    node.say.send(NodeMessage::LeaseActive { lease: grant.lease }).unwrap();
    event(&mut events, lease_event(grant.lease, node.id, LeaseState::Active)).await;
    let path = format!("/v1/leases/{}", grant.lease);
    let (status, body) = client
        .send("POST", &format!("{path}/renew"), r#"{"duration_ms":3600000}"#)
        .await;
    let renewed: Grant = serde_json::from_str(&body).unwrap();
    assert_eq!((status, renewed.duration_ms), (200, 3_600_000));
    assert!(renewed.expires_at_ms > grant.expires_at_ms);
    node.hears(|message| {
        matches!(
            message,
            ManagerMessage::Renew {
                duration_ms: 3_600_000,
                ..
            }
        )
    })
    .await;
    assert_eq!(client.send("POST", &format!("{path}/revoke"), "").await.0, 200);
    event(&mut events, lease_event(grant.lease, node.id, LeaseState::Revoked)).await;
    node.hears(|message| matches!(message, ManagerMessage::End { state, .. } if *state == LeaseState::Revoked))
        .await;
    let (status, body) = client
        .send("POST", &format!("{path}/renew"), r#"{"duration_ms":1000}"#)
        .await;
    assert_eq!(code(status, &body), Code::LeaseEnded);
}

#[tokio::test]
async fn requests_without_the_right_token_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let join = manager.join_token(Duration::from_secs(60)).await.unwrap().token;
    let mut client = Client::new(&manager).await;
    for token in ["", "guess", join.as_str()] {
        client.token = token.into();
        for (method, path) in [
            ("GET", "/v1/leases".to_string()),
            ("POST", "/v1/leases".into()),
            ("GET", format!("/v1/leases/{}", LeaseId([1; 16]))),
            ("DELETE", format!("/v1/leases/{}", LeaseId([1; 16]))),
            ("POST", format!("/v1/leases/{}/revoke", LeaseId([1; 16]))),
            ("GET", "/v1/nodes".into()),
            ("POST", "/v1/nodes/join-tokens".into()),
            ("GET", "/v1/events".into()),
            ("GET", "/v1/tenants".into()),
            ("PUT", "/v1/tenants/x".into()),
            ("GET", "/v1/tokens".into()),
            ("POST", "/v1/tokens".into()),
            ("DELETE", "/v1/tokens/x".into()),
            ("PUT", "/v1/prices".into()),
            ("GET", "/v1/bill".into()),
            ("GET", "/v1/audit".into()),
        ] {
            let (status, body) = client.send(method, &path, "{}").await;
            assert_eq!(
                code(status, &body),
                Code::Unauthorized,
                "{method} {path} with `{token}`"
            );
        }
    }
    assert_eq!(
        client.get::<VersionInfo>("/v1/version").await.wire_version,
        dayfly_protocol::WIRE_VERSION
    );
    assert_eq!(client.get::<Health>("/v1/health").await.status, HealthStatus::Ok);
    let operator = manager.connection().token.clone();
    assert_eq!(
        websocket(&manager, "/v1/nodes/connect", &operator).await.err(),
        Some(401)
    );
    assert_eq!(websocket(&manager, "/v1/nodes/connect", "guess").await.err(), Some(401));
}

#[tokio::test]
async fn join_token_and_credential_admit_one_node_only() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let join = manager.join_token(Duration::from_secs(60)).await.unwrap().token;
    let node = FakeNode::connect(&manager, 1, &join, Manner::Honest, &[])
        .await
        .unwrap();
    let credential = node.credential.clone().unwrap();
    let second = FakeNode::connect(&manager, 2, &join, Manner::Honest, &[])
        .await
        .err()
        .unwrap();
    assert_eq!(second.code, Code::Unauthorized);
    let other = FakeNode::connect(&manager, 2, &credential, Manner::Honest, &[])
        .await
        .err()
        .unwrap();
    assert_eq!(other.code, Code::Unauthorized);
    let mut events = manager.events();
    drop(node);
    event(&mut events, Event::NodeLost { node: NodeId([1; 16]) }).await;
    let again = FakeNode::connect(&manager, 1, &credential, Manner::Honest, &[])
        .await
        .unwrap();
    assert_eq!((again.epoch, again.credential.clone()), (2, None));
}

#[tokio::test]
async fn leases_and_meters_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let used = Usage {
        computing_us: 5,
        polling_us: 6,
        allocated_us: 7,
        calls: 8,
        failures: 1,
    };
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let credential = node.credential.clone().unwrap();
    let mut client = Client::new(&manager).await;
    let kept = client.lease(&request(Mode::Warm)).await.unwrap().lease;
    let gone = client.lease(&request(Mode::Warm)).await.unwrap().lease;
    let ended = client.lease(&request(Mode::Warm)).await.unwrap().lease;
    node.say
        .send(NodeMessage::Meters {
            sequence: 1,
            usage: vec![(kept, used.into())],
        })
        .unwrap();
    node.hears(|message| *message == ManagerMessage::Booked { sequence: 1 })
        .await;
    client.send("DELETE", &format!("/v1/leases/{ended}"), "").await;
    let token = manager.connection().token.clone();
    let (ca, key) = (manager.ca_pem().to_string(), manager.signing_key());
    manager.shutdown().await;
    drop((node, client, manager));

    let manager = restart(directory.path()).await;
    assert_eq!((manager.ca_pem(), manager.signing_key()), (ca.as_str(), key));
    assert_eq!(manager.connection().token, token, "clients keep their token");
    let mut client = Client::new(&manager).await;
    let status: LeaseStatus = client.get(&format!("/v1/leases/{kept}")).await;
    assert_eq!((status.state, status.usage), (LeaseState::Granted, used));
    assert_eq!(client.state(ended).await, LeaseState::Released);
    let mut node = FakeNode::connect(&manager, 1, &credential, Manner::Honest, &[kept, ended])
        .await
        .unwrap();
    node.hears(|message| matches!(message, ManagerMessage::End { lease, .. } if *lease == ended))
        .await;
    assert_eq!(client.state(kept).await, LeaseState::Granted);
    assert_eq!(client.state(gone).await, LeaseState::Lost);
    let twice = Usage { calls: 99, ..used };
    node.say
        .send(NodeMessage::Meters {
            sequence: 1,
            usage: vec![(kept, twice.into())],
        })
        .unwrap();
    node.hears(|message| *message == ManagerMessage::Booked { sequence: 1 })
        .await;
    assert_eq!(
        client.get::<LeaseStatus>(&format!("/v1/leases/{kept}")).await.usage,
        used
    );
}

/// Starts a manager over the directory of one that is stopping. Its database closes when its last task ends.
async fn restart(directory: &Path) -> Handle {
    let until = Instant::now() + TIMEOUT;
    loop {
        match Manager::start(options(directory)).await {
            Err(Error::Store(StoreError::InUse(_))) if Instant::now() < until => tokio::task::yield_now().await,
            other => return other.unwrap(),
        }
    }
}

#[tokio::test]
async fn silent_node_is_lost_before_its_leases() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        heartbeat: Duration::from_millis(250),
        lease_lost_after: Duration::from_secs(3),
        ..options(directory.path())
    };
    let manager = Manager::start(options).await.unwrap();
    let mut events = manager.events();
    let honest = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let lease = client.lease(&request(Mode::Warm)).await.unwrap().lease;
    let silent = FakeNode::join(&manager, 2, Manner::Silent).await;
    event(&mut events, Event::NodeLost { node: silent.id }).await;
    drop(honest);
    event(&mut events, Event::NodeLost { node: NodeId([1; 16]) }).await;
    assert_eq!(client.state(lease).await, LeaseState::Granted);
    assert_eq!(
        client.lease(&request(Mode::Warm)).await,
        Err(Code::NoCapacity),
        "a lost node gets no leases"
    );
    event(&mut events, lease_event(lease, NodeId([1; 16]), LeaseState::Lost)).await;
}

#[tokio::test]
async fn watchers_receive_events_of_nodes_and_leases() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let token = manager.connection().token.clone();
    let mut socket = websocket(&manager, "/v1/events", &token).await.unwrap();
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let grant = Client::new(&manager).await.lease(&request(Mode::Warm)).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let message = tokio::time::timeout(TIMEOUT, socket.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if let Ok(text) = message.to_text()
            && !text.is_empty()
        {
            heard.push(serde_json::from_str::<Event>(text).unwrap());
        }
    }
    assert_eq!(
        heard,
        vec![
            Event::NodeUp { node: node.id },
            lease_event(grant.lease, node.id, LeaseState::Granted)
        ]
    );
}

#[tokio::test]
async fn full_store_refuses_leases_and_loses_none() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        store: StoreKind::Sqlite { most_pages: Some(40) },
        ..options(directory.path())
    };
    let manager = Manager::start(options).await.unwrap();
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let mut granted = Vec::new();
    let error = loop {
        match client.lease(&request(Mode::Warm)).await {
            Ok(grant) => granted.push(grant.lease),
            Err(error) => break error,
        }
        // Make room for the next lease. The records of ended leases fill the pages.
        let lease = granted[granted.len() - 1];
        client.send("DELETE", &format!("/v1/leases/{lease}"), "").await;
        assert!(granted.len() < 2_000, "the limit of pages was never reached");
    };
    assert_eq!(error, Code::StoreFailed);
    let refused = loop {
        let message = node
            .hears(|message| matches!(message, ManagerMessage::End { .. }))
            .await;
        if let ManagerMessage::End { lease, state, .. } = message
            && !granted.contains(&lease)
        {
            break state;
        }
    };
    assert_eq!(
        refused,
        LeaseState::Revoked,
        "the node must not hold a lease that is not stored"
    );
    let shown: Vec<LeaseStatus> = client.get("/v1/leases").await;
    assert!(
        granted
            .iter()
            .all(|lease| shown.iter().any(|status| status.lease == *lease))
    );
    manager.shutdown().await;
}

#[tokio::test]
async fn garbage_is_refused_without_harm() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let long = "x".repeat(70_000);
    for (method, path, body, wanted) in [
        ("POST", "/v1/leases", "{", Code::InvalidRequest),
        ("POST", "/v1/leases", "[]", Code::InvalidRequest),
        ("POST", "/v1/leases", r#"{"workers":-1}"#, Code::InvalidRequest),
        ("POST", "/v1/leases", long.as_str(), Code::PayloadTooLarge),
        ("GET", "/v1/leases/not-an-id", "", Code::InvalidRequest),
        ("GET", "/v1/leases/00000000000000000000000000000000", "", Code::NotFound),
        ("GET", "/v2/anything", "", Code::NotFound),
        ("GET", "/v1/events", "", Code::InvalidRequest),
    ] {
        let (status, answer) = client.send(method, path, body).await;
        if wanted == Code::PayloadTooLarge {
            assert_eq!(code(status, &answer), wanted);
            client = Client::new(&manager).await;
        } else {
            assert_eq!(code(status, &answer), wanted, "{method} {path} {body:.20}: {answer}");
        }
    }
    let (status, answer) = client.send("PUT", "/v1/leases", "").await;
    assert_eq!(status, 405, "{answer}");
    let refused = serde_json::from_str::<ErrorBody>(&answer).unwrap();
    assert_eq!(refused.error.code, Code::InvalidRequest);
    let mut plain = TcpStream::connect(manager.address()).await.unwrap();
    plain.write_all(&[0xff; 4_096]).await.unwrap();
    let mut noise = tls(&manager).await;
    noise.write_all(&[0x80; 4_096]).await.unwrap();
    assert_eq!(client.get::<Health>("/v1/health").await.status, HealthStatus::Ok);
}

#[tokio::test]
async fn node_that_violates_the_protocol_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let books = ledger(2);
    let heartbeat = NodeMessage::Heartbeat {
        free: NOTHING,
        clock_ms: 0,
        harvest: None,
        pools: None,
    };
    for messages in [
        vec![heartbeat],
        vec![registration(1, &[], &books), registration(1, &[], &books)],
    ] {
        let join = manager.join_token(Duration::from_secs(60)).await.unwrap().token;
        let mut socket = websocket(&manager, "/v1/nodes/connect", &join).await.unwrap();
        for message in &messages {
            send(&mut socket, message).await;
        }
        let end = async { while receive(&mut socket).await.is_some() {} };
        tokio::time::timeout(TIMEOUT, end).await.expect("disconnected in time");
    }
}

#[tokio::test]
async fn other_wire_version_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let join = manager.join_token(Duration::from_secs(60)).await.unwrap().token;
    let mut socket = websocket(&manager, "/v1/nodes/connect", &join).await.unwrap();
    let NodeMessage::Register {
        address,
        capacity,
        free,
        leases,
        ..
    } = registration(1, &[], &ledger(2))
    else {
        unreachable!()
    };
    send(
        &mut socket,
        &NodeMessage::Register {
            version: 99,
            address,
            capacity,
            free,
            leases,
            sandboxes: None,
        },
    )
    .await;
    let Some(ManagerMessage::Refused(failure)) = receive(&mut socket).await else {
        panic!("refused")
    };
    assert_eq!(failure.code, Code::VersionMismatch);
    assert!(failure.message.contains("99"), "{failure}");
}

#[tokio::test]
async fn port_in_use_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = Manager::start(Options {
        listen: address,
        ..options(directory.path())
    })
    .await
    .err()
    .unwrap();
    assert_eq!(error.code(), Code::AddressInUse);
    assert!(error.to_string().contains(&address.port().to_string()), "{error}");
}

#[tokio::test]
async fn secrets_are_readable_by_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let _manager = start(&state).await;
    for file in ["connection.json", "signing.p8", "ca.key", "server.key"] {
        let mode = std::fs::metadata(state.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    let connection: Connection =
        serde_json::from_slice(&std::fs::read(state.join("connection.json")).unwrap()).unwrap();
    let store = std::fs::read(state.join("manager.db")).unwrap();
    let secret = connection.token.as_bytes();
    assert!(
        !store.windows(secret.len()).any(|window| window == secret),
        "the store holds only hashes"
    );
}

#[tokio::test]
async fn damaged_key_is_named_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("signing.p8"), b"garbage").unwrap();
    let error = Manager::start(options(directory.path())).await.err().unwrap();
    assert!(
        matches!(&error, Error::Damaged { path, .. } if path.ends_with("signing.p8")),
        "{error}"
    );
    assert_eq!(std::fs::read(directory.path().join("signing.p8")).unwrap(), b"garbage");
}

/// Prints the latency of a grant on this machine: `cargo test -p dayfly-manager -- --ignored --nocapture latency`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; not meaningful on a busy machine"]
async fn latency_of_a_grant() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let mut took = Vec::new();
    for _ in 0..500 {
        let begun = Instant::now();
        let grant = client.lease(&request(Mode::Hot)).await.unwrap();
        took.push(begun.elapsed());
        client.send("DELETE", &format!("/v1/leases/{}", grant.lease), "").await;
    }
    took.sort();
    println!("grant: p50 {:?}, p99 {:?}", took[250], took[495]);
}
