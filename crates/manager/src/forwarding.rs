//! Asking another manager on a client's behalf: the same request, with the client's own token, over TLS. Whoever is asked so
//! asks nobody else.

mod proxy;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State as Shared};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::{ErrorBody, LeaseRequest, LeaseStatus, Mode, NodeStatus};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey};
use dayfly_store::system::now_ms;
use dayfly_store::{LeaseRecord, Peer};
use dayfly_telemetry::{self as telemetry, TRACEPARENT};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tracing::Instrument;

use crate::cluster::lease_status;
use crate::control::{Control, SHOWN_MS};
use crate::extractors::{MAX_BODY_BYTES, refuse};
use crate::http::Api;

/// On a request that was passed on once.
const FORWARDED: &str = "dayfly-forwarded";
/// Reaching another manager.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// What it may take to answer, as long as any request.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
/// Lists are for people, who would rather see part of them.
const LIST_DEADLINE: Duration = Duration::from_secs(3);
/// A node whose manager died is another's within moments: that long a request about it waits.
const MOVE_PATIENCE: Duration = Duration::from_secs(8);
const MOVE_TICK: Duration = Duration::from_millis(50);
/// An answer that is longer is none of ours: the longest list has some 300 bytes for each of 100,000.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Connections to one manager that are kept for later.
const MAX_KEPT: usize = 8;

/// Connections to other managers that are open and idle.
#[derive(Default)]
pub struct ConnectionPool(Mutex<HashMap<PublicKey, Vec<SendRequest<Body>>>>);

/// What another manager said.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// What is asked of it.
struct Question<'a> {
    method: Method,
    path: &'a str,
    authorization: HeaderValue,
    body: Bytes,
    deadline: Option<Duration>,
}

impl ConnectionPool {
    fn take(&self, to: PublicKey) -> Option<SendRequest<Body>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.get_mut(&to)?;
        while let Some(road) = idle.pop() {
            if road.is_ready() {
                return Some(road);
            }
        }
        None
    }

    fn give(&self, to: PublicKey, road: SendRequest<Body>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.entry(to).or_default();
        if idle.len() < MAX_KEPT {
            idle.push(road);
        }
    }

    /// Asks another manager. None when it cannot be reached, or does not answer.
    async fn ask(&self, peer: &Peer, question: &Question<'_>) -> Option<Answer> {
        let url = &peer.presence.url;
        let step = telemetry::span!("ask a manager", "otel.kind" = "client", "server.address" = url);
        self.ask_it(peer, question).instrument(step).await
    }

    async fn ask_it(&self, peer: &Peer, question: &Question<'_>) -> Option<Answer> {
        // A kept connection may have ended since; a fresh one tells whether its manager has.
        if let Some(road) = self.take(peer.key)
            && let Some(answer) = self.ask_over(road, peer, question).await
        {
            return Some(answer);
        }
        match tokio::time::timeout(CONNECT_DEADLINE, open(peer)).await {
            Ok(Ok(road)) => self.ask_over(road, peer, question).await,
            Ok(Err(why)) => {
                tracing::debug!(manager = peer.presence.url, why, "another manager cannot be reached");
                None
            }
            Err(_) => None,
        }
    }

    async fn ask_over(&self, mut road: SendRequest<Body>, peer: &Peer, question: &Question<'_>) -> Option<Answer> {
        let asking = async {
            let host = peer.presence.url.trim_start_matches("https://");
            let mut request = Request::builder()
                .method(question.method.clone())
                .uri(question.path)
                .header(HOST, host)
                .header(AUTHORIZATION, &question.authorization)
                .header(CONTENT_TYPE, "application/json")
                .header(FORWARDED, "1");
            if let Some(traceparent) = telemetry::traceparent() {
                request = request.header(TRACEPARENT, traceparent);
            }
            let request = request.body(Body::from(question.body.clone())).ok()?;
            let response = road.send_request(request).await.ok()?;
            let (parts, body) = response.into_parts();
            let body = to_bytes(Body::new(body), MAX_ANSWER_BYTES).await.ok()?;
            self.give(peer.key, road);
            Some(Answer {
                status: parts.status,
                headers: parts.headers,
                body,
            })
        };
        match question.deadline {
            Some(deadline) => tokio::time::timeout(deadline, asking).await.ok().flatten(),
            None => asking.await,
        }
    }
}

async fn open(peer: &Peer) -> Result<SendRequest<Body>, String> {
    let presence = &peer.presence;
    let rest = presence.url.strip_prefix("https://").unwrap_or(&presence.url);
    let (host, port) = rest
        .trim_end_matches('/')
        .rsplit_once(':')
        .ok_or("its address has no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port: u16 = port.parse().map_err(|_| "its address has no port")?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(presence.ca_pem.as_bytes()).map_err(|error| text(&error))?;
    roots.add(authority).map_err(|error| text(&error))?;
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| text(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| text(&error))?;
    let stream = TcpStream::connect((host, port)).await.map_err(|error| text(&error))?;
    stream.set_nodelay(true).map_err(|error| text(&error))?;
    // Some answers take as long as a running call: only the kernel tells whether anybody is there still.
    rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5)).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5)).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepcnt(&stream, 3).map_err(|error| text(&error))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| text(&error))?;
    let (road, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    // It ends with the last that asks over it.
    tokio::spawn(connection.with_upgrades());
    Ok(road)
}

/// Who asks, for those who ask others on its behalf; none when that has been done.
#[derive(Clone)]
pub struct ClientAuthorization(HeaderValue);

impl ClientAuthorization {
    /// Of whoever sent a request with these headers.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(FORWARDED) {
            return None;
        }
        headers.get(AUTHORIZATION).cloned().map(Self)
    }

    /// Whether there may be anybody to pass a request of its on to. Strangers are told so here, and cost nobody anything.
    fn may_be_passed_on(&self, control: &Control) -> bool {
        let token = self.0.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        control.peers.are_possible() && token.is_some_and(|token| control.authenticate(token.trim()).is_some())
    }
}

/// What a path is about.
enum About {
    Lease(LeaseId),
    Node(NodeId),
}

fn about(path: &str) -> Option<About> {
    let mut parts = path.strip_prefix("/v1/")?.split('/');
    match (parts.next()?, parts.next()?) {
        ("leases", id) => id.parse().ok().map(About::Lease),
        ("nodes", id) => id.parse().ok().map(About::Node),
        _ => None,
    }
}

impl Control {
    /// The manager whose affair it is, if that is another one.
    async fn owner(&self, about: &About) -> Result<Option<PublicKey>, Failure> {
        let node = match about {
            About::Node(node) => *node,
            About::Lease(lease) => {
                let here = self.cluster().leases.get(lease).map(|record| record.node);
                match here {
                    Some(_) => return Ok(None),
                    None => match self.lease_elsewhere(*lease).await? {
                        Some(record) => record.node,
                        None => return Ok(None),
                    },
                }
            }
        };
        Ok(self.cluster().manager_of(node))
    }

    /// A lease that is not in memory here.
    pub async fn lease_elsewhere(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, Failure> {
        Ok(self.store.others(Some(lease), 0).wait().await?.into_iter().next())
    }

    /// Asks those that have more free than others first.
    fn by_room(&self, request: &LeaseRequest) -> Vec<Peer> {
        let mut peers = self.peers.all_alive();
        if let Some(owner) = request.node.map(|node| self.cluster().manager_of(node)) {
            peers.retain(|peer| Some(peer.key) == owner);
        }
        peers.sort_by_key(|peer| {
            let free = &peer.presence.free;
            let room = match request.mode {
                Mode::Hot => (free.cores, 0),
                Mode::Warm => (free.workers, 0),
                Mode::Auto => (free.cores, free.workers),
            };
            std::cmp::Reverse(room)
        });
        peers
    }

    /// A lease, or all of a gang's, on another manager's nodes. What this manager said of its own stands when none has room.
    pub async fn place_elsewhere<T: DeserializeOwned>(
        &self,
        asker: &ClientAuthorization,
        path: &str,
        body: &impl Serialize,
        request: &LeaseRequest,
        here: Failure,
    ) -> Result<T, Failure> {
        let body = Bytes::from(serde_json::to_vec(body).unwrap_or_default());
        let mut refused = here;
        for peer in self.by_room(request) {
            let question = Question {
                method: Method::POST,
                path,
                authorization: asker.0.clone(),
                body: body.clone(),
                deadline: Some(ANSWER_DEADLINE),
            };
            // One that dies while it is asked may have granted: nobody has that token, and the lease ends unused.
            let Some(answer) = self.peers.connections.ask(&peer, &question).await else {
                continue;
            };
            if answer.status.is_success()
                && let Ok(grant) = serde_json::from_slice(&answer.body)
            {
                return Ok(grant);
            }
            if let Ok(ErrorBody { error }) = serde_json::from_slice(&answer.body) {
                match error.code {
                    Code::QuotaExceeded | Code::PythonMismatch | Code::InvalidRequest => return Err(error),
                    // There may be room some day: that says more than that these nodes are too small.
                    Code::NoCapacity if refused.code != Code::NoCapacity => refused = error,
                    _ => {}
                }
            }
        }
        Err(refused)
    }

    async fn list<T: DeserializeOwned>(&self, asker: &ClientAuthorization, path: &str) -> Vec<T> {
        let asked = self.peers.all_alive().into_iter().map(|peer| async move {
            let question = Question {
                method: Method::GET,
                path,
                authorization: asker.0.clone(),
                body: Bytes::new(),
                deadline: Some(LIST_DEADLINE),
            };
            let answer = self.peers.connections.ask(&peer, &question).await;
            let list = answer.and_then(|answer| serde_json::from_slice::<Vec<T>>(&answer.body).ok());
            list.unwrap_or_default()
        });
        futures_util::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    /// Every node of the site; those of managers that do not answer as they were known last.
    pub async fn all_nodes(&self, asker: Option<ClientAuthorization>) -> Vec<NodeStatus> {
        let now = std::time::Instant::now();
        let mut nodes = self.cluster().node_statuses(now);
        let Some(asker) = asker.filter(|_| self.peers.are_possible()) else {
            return nodes;
        };
        let others = self.list::<NodeStatus>(&asker, "/v1/nodes").await;
        // One that moves just now may be told of by two.
        let mut known: std::collections::HashSet<NodeId> = nodes.iter().map(|node| node.address.id).collect();
        nodes.extend(others.into_iter().filter(|node| known.insert(node.address.id)));
        nodes.extend(
            self.cluster()
                .foreign_statuses(now)
                .into_iter()
                .filter(|node| known.insert(node.address.id)),
        );
        nodes.sort_by(|a, b| (&a.address.name, a.address.id).cmp(&(&b.address.name, b.address.id)));
        nodes
    }

    /// Leases on other managers' nodes that live, or ended lately.
    pub async fn leases_elsewhere(&self) -> Result<Vec<LeaseRecord>, Failure> {
        if !self.peers.are_possible() {
            return Ok(Vec::new());
        }
        Ok(self
            .store
            .others(None, now_ms().saturating_sub(SHOWN_MS))
            .wait()
            .await?)
    }
}

/// Lets the manager that owns a lease's or a node's affairs answer; that may be this one.
pub async fn to_owner(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let asker = ClientAuthorization::of(request.headers()).filter(|asker| asker.may_be_passed_on(&control));
    let passed = match (asker, about(request.uri().path())) {
        (Some(asker), Some(about)) => pass_on(&control, asker, &about, request).await,
        _ => Passed::Mine(request),
    };
    match passed {
        Passed::Answered(response) => response,
        Passed::Mine(request) => next.run(request).await,
    }
}

/// Lets the manager that has the tasks answer; that may be this one.
pub async fn to_task_owner(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    // The address of a hook is a token by itself.
    let is_hook = request.uri().path().starts_with("/v1/hooks/") && !request.headers().contains_key(FORWARDED);
    let asker = ClientAuthorization::of(request.headers()).filter(|asker| asker.may_be_passed_on(&control));
    if asker.is_none() && !(is_hook && control.peers.are_possible()) {
        return next.run(request).await;
    }
    match proxy::forward_to_task_owner(&control, request).await {
        Passed::Answered(response) => response,
        Passed::Mine(request) => next.run(request).await,
    }
}

enum Passed {
    Answered(Response),
    Mine(Request),
}

async fn pass_on(control: &Api, asker: ClientAuthorization, about: &About, request: Request) -> Passed {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        let text = format!("the body has more than {MAX_BODY_BYTES} bytes");
        return Passed::Answered(refuse(Code::PayloadTooLarge, text).into_response());
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // What waits for running calls has a deadline of its own.
    let waits = path.contains("/revoke") || (parts.method == Method::DELETE && path.starts_with("/v1/nodes/"));
    let question = Question {
        method: parts.method.clone(),
        path,
        authorization: asker.0,
        body: body.clone(),
        deadline: (!waits).then_some(ANSWER_DEADLINE),
    };
    let until = tokio::time::Instant::now() + MOVE_PATIENCE;
    loop {
        let owner = match control.owner(about).await {
            Ok(Some(owner)) => owner,
            Ok(None) => return Passed::Mine(Request::from_parts(parts, Body::from(body))),
            Err(failure) => return Passed::Answered(crate::extractors::Refusal::from(failure).into_response()),
        };
        if let Some(peer) = control.peers.alive(owner)
            && let Some(answer) = control.peers.connections.ask(&peer, &question).await
        {
            let mut response = (answer.status, answer.body).into_response();
            for name in [CONTENT_TYPE, axum::http::header::WWW_AUTHENTICATE] {
                if let Some(value) = answer.headers.get(&name) {
                    response.headers_mut().insert(name, value.clone());
                }
            }
            return Passed::Answered(response);
        }
        if tokio::time::Instant::now() >= until {
            let text = "the manager that owns it does not answer, and no other has taken its place yet; try again";
            return Passed::Answered(refuse(Code::Unreachable, text).into_response());
        }
        tokio::time::sleep(MOVE_TICK).await;
    }
}

/// Leases for people: those in memory are newer than those in the store.
pub fn merged(own: Vec<LeaseStatus>, others: &[LeaseRecord]) -> Vec<LeaseStatus> {
    let known: std::collections::HashSet<LeaseId> = own.iter().map(|status| status.lease).collect();
    let others = others
        .iter()
        .filter(|record| !known.contains(&record.lease))
        .map(lease_status);
    let mut all: Vec<LeaseStatus> = others.chain(own.iter().cloned()).collect();
    all.sort_by_key(|status| (std::cmp::Reverse(status.granted_at_ms), status.lease));
    all
}
