//! Requests that another manager owns (`impl Control`): forwarded over TLS with the client's own token. A forwarded
//! request is not forwarded again.

mod proxy;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, Request, State as Shared};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::{ErrorBody, LeaseRequest, LeaseStatus, Mode, NodeStatus};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::IdPattern;
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
use crate::control::{Control, ENDED_LEASES_KEPT_MS};
use crate::extractors::{Caller, MAX_BODY_BYTES, refuse};
use crate::http::Api;

/// Header of a forwarded request.
const FORWARDED: &str = "dayfly-forwarded";
/// Time limit for a connection to another manager.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for its response.
const RESPONSE_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for its part of a list. A late part is omitted.
const LIST_LIMIT: Duration = Duration::from_secs(3);
/// How long a request waits for a new owner of a node whose manager died.
const MOVE_LIMIT: Duration = Duration::from_secs(8);
/// Period of the check for a new owner.
const MOVE_PERIOD: Duration = Duration::from_millis(50);
/// Bytes of a response. The longest list has some 300 bytes for each of 100,000 entries.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Idle connections to one manager.
const MAX_IDLE: usize = 8;

/// Idle connections to other managers.
#[derive(Default)]
pub struct ConnectionPool(Mutex<HashMap<PublicKey, Vec<SendRequest<Body>>>>);

/// The response of another manager.
struct PeerResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A request to another manager.
struct PeerRequest<'a> {
    method: Method,
    path: &'a str,
    authorization: HeaderValue,
    body: Bytes,
    limit: Option<Duration>,
}

impl ConnectionPool {
    fn take(&self, to: PublicKey) -> Option<SendRequest<Body>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.get_mut(&to)?;
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn give(&self, to: PublicKey, sender: SendRequest<Body>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.entry(to).or_default();
        if idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }

    /// Sends a request to another manager. Returns `None` if it cannot be reached or does not respond in time.
    async fn send(&self, peer: &Peer, request: &PeerRequest<'_>) -> Option<PeerResponse> {
        let url = &peer.presence.url;
        let step = telemetry::span!("ask a manager", "otel.kind" = "client", "server.address" = url);
        self.send_traced(peer, request).instrument(step).await
    }

    async fn send_traced(&self, peer: &Peer, request: &PeerRequest<'_>) -> Option<PeerResponse> {
        // An idle connection may have ended. Only a new one shows whether the manager has.
        if let Some(sender) = self.take(peer.key)
            && let Some(response) = self.send_over(sender, peer, request).await
        {
            return Some(response);
        }
        match tokio::time::timeout(CONNECT_LIMIT, open(peer)).await {
            Ok(Ok(sender)) => self.send_over(sender, peer, request).await,
            Ok(Err(why)) => {
                tracing::debug!(manager = peer.presence.url, why, "another manager cannot be reached");
                None
            }
            Err(_) => None,
        }
    }

    async fn send_over(
        &self,
        mut sender: SendRequest<Body>,
        peer: &Peer,
        request: &PeerRequest<'_>,
    ) -> Option<PeerResponse> {
        let exchange = async {
            let host = peer.presence.url.trim_start_matches("https://");
            let mut builder = Request::builder()
                .method(request.method.clone())
                .uri(request.path)
                .header(HOST, host)
                .header(AUTHORIZATION, &request.authorization)
                .header(CONTENT_TYPE, "application/json")
                .header(FORWARDED, "1");
            if let Some(traceparent) = telemetry::traceparent() {
                builder = builder.header(TRACEPARENT, traceparent);
            }
            let forwarded = builder.body(Body::from(request.body.clone())).ok()?;
            let response = sender.send_request(forwarded).await.ok()?;
            let (parts, body) = response.into_parts();
            let body = to_bytes(Body::new(body), MAX_RESPONSE_BYTES).await.ok()?;
            self.give(peer.key, sender);
            Some(PeerResponse {
                status: parts.status,
                headers: parts.headers,
                body,
            })
        };
        match request.limit {
            Some(limit) => tokio::time::timeout(limit, exchange).await.ok().flatten(),
            None => exchange.await,
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
    // Some responses take as long as a running call. Keep-alive detects a peer that died meanwhile.
    rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5)).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5)).map_err(|error| text(&error))?;
    rustix::net::sockopt::set_tcp_keepcnt(&stream, 3).map_err(|error| text(&error))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| text(&error))?;
    let (sender, driver) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    // Ends when the sender is dropped.
    tokio::spawn(driver.with_upgrades());
    Ok(sender)
}

/// The client's authorization, for requests to other managers.
#[derive(Clone)]
pub struct ClientAuthorization(HeaderValue);

impl ClientAuthorization {
    /// Returns the authorization in these headers, or `None` for a request that was forwarded already.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(FORWARDED) {
            return None;
        }
        headers.get(AUTHORIZATION).cloned().map(Self)
    }

    /// Whether a request may be forwarded: its token is valid, and there may be other managers. Invalid tokens are
    /// refused here.
    fn may_be_forwarded(&self, control: &Control) -> bool {
        let token = self.0.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        control.peers().are_possible() && token.is_some_and(|token| control.authenticate(token.trim()).is_some())
    }
}

/// The subject of a path.
enum Resource {
    Lease(LeaseId),
    Node(NodeId),
}

fn resource_of(path: &str) -> Option<Resource> {
    let mut parts = path.strip_prefix("/v1/")?.split('/');
    match (parts.next()?, parts.next()?) {
        ("leases", id) => id.parse().ok().map(Resource::Lease),
        ("nodes", id) => id.parse().ok().map(Resource::Node),
        _ => None,
    }
}

impl Control {
    /// Returns the manager that owns a lease or node, if that is another one.
    async fn owner_of(&self, resource: &Resource) -> Result<Option<PublicKey>, Failure> {
        let node = match resource {
            Resource::Node(node) => *node,
            Resource::Lease(lease) => {
                let is_own = self.cluster().leases().get(lease).is_some();
                match is_own {
                    true => return Ok(None),
                    false => match self.lease_at_peers(*lease).await? {
                        Some(record) => record.node,
                        None => return Ok(None),
                    },
                }
            }
        };
        Ok(self.cluster().nodes().owner_of(node))
    }

    /// Returns a stored lease of another manager.
    async fn lease_at_peers(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, Failure> {
        Ok(self.store().others(Some(lease), 0).wait().await?.into_iter().next())
    }

    /// Returns the leases of all managers that the caller sees and whose ids match. A lease that this manager owns comes
    /// after its record in the store.
    pub async fn leases_matching(&self, caller: &Caller, given: &IdPattern) -> Result<Vec<LeaseRecord>, Failure> {
        let mut seen = self.leases_at_peers().await?;
        seen.extend(self.cluster().leases().values().cloned());
        seen.retain(|record| caller.sees(record.tenant) && given.matches(&record.lease.0));
        Ok(seen)
    }

    /// Returns the managers that may grant a request, those with most free resources first.
    fn peers_by_room(&self, request: &LeaseRequest) -> Vec<Peer> {
        let mut peers = self.peers().all_alive();
        if let Some(owner) = request.node.map(|node| self.cluster().nodes().owner_of(node)) {
            peers.retain(|peer| Some(peer.key) == owner);
        }
        peers.sort_by_key(|peer| {
            let free = &peer.presence.free;
            let room = match request.mode {
                Mode::Hot => (free.cores.into(), MilliCores::ZERO),
                Mode::Warm => (free.workers, MilliCores::ZERO),
                Mode::Auto => (free.cores.into(), free.workers),
            };
            std::cmp::Reverse(room)
        });
        peers
    }

    /// Requests a lease, or all leases of a gang, from the other managers in turn. Returns this manager's own failure,
    /// `own`, if none has room.
    pub async fn place_at_peers<T: DeserializeOwned>(
        &self,
        client: &ClientAuthorization,
        path: &str,
        body: &impl Serialize,
        request: &LeaseRequest,
        own: Failure,
    ) -> Result<T, Failure> {
        let body = Bytes::from(serde_json::to_vec(body).unwrap_or_default());
        let mut refused = own;
        for peer in self.peers_by_room(request) {
            let forwarded = PeerRequest {
                method: Method::POST,
                path,
                authorization: client.0.clone(),
                body: body.clone(),
                limit: Some(RESPONSE_LIMIT),
            };
            // If it dies meanwhile, it may have granted a lease whose token is lost. That lease ends unused.
            let Some(response) = self.peers().connections().send(&peer, &forwarded).await else {
                continue;
            };
            if response.status.is_success()
                && let Ok(grant) = serde_json::from_slice(&response.body)
            {
                return Ok(grant);
            }
            if let Ok(ErrorBody { error }) = serde_json::from_slice(&response.body) {
                match error.code {
                    Code::QuotaExceeded | Code::PythonMismatch | Code::InvalidRequest => return Err(error),
                    // Prefer `NoCapacity`: a wait may help, while other nodes may only be too small.
                    Code::NoCapacity if refused.code != Code::NoCapacity => refused = error,
                    _ => {}
                }
            }
        }
        Err(refused)
    }

    async fn list<T: DeserializeOwned>(&self, client: &ClientAuthorization, path: &str) -> Vec<T> {
        let lists = self.peer_responses::<Vec<T>>(client, path).await;
        lists.into_iter().flatten().collect()
    }

    /// Returns what the other managers respond at a path. Late responses and errors are omitted.
    pub async fn peer_responses<T: DeserializeOwned>(&self, client: &ClientAuthorization, path: &str) -> Vec<T> {
        let requests = self.peers().all_alive().into_iter().map(|peer| async move {
            let forwarded = PeerRequest {
                method: Method::GET,
                path,
                authorization: client.0.clone(),
                body: Bytes::new(),
                limit: Some(LIST_LIMIT),
            };
            let response = self.peers().connections().send(&peer, &forwarded).await;
            response.and_then(|response| serde_json::from_slice(&response.body).ok())
        });
        let responses = futures_util::future::join_all(requests).await;
        responses.into_iter().flatten().collect()
    }

    /// Lists every node of the site. Nodes of managers that do not respond are listed as known last.
    pub async fn all_nodes(&self, client: Option<ClientAuthorization>) -> Vec<NodeStatus> {
        let now = std::time::Instant::now();
        let mut nodes = self.cluster().node_statuses(now);
        let Some(client) = client.filter(|_| self.peers().are_possible()) else {
            return nodes;
        };
        let others = self.list::<NodeStatus>(&client, "/v1/nodes").await;
        // Two managers may list a node that is moving.
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

    /// Returns leases on other managers' nodes that are live or ended recently.
    pub async fn leases_at_peers(&self) -> Result<Vec<LeaseRecord>, Failure> {
        if !self.peers().are_possible() {
            return Ok(Vec::new());
        }
        Ok(self
            .store()
            .others(None, now_ms().saturating_sub(ENDED_LEASES_KEPT_MS))
            .wait()
            .await?)
    }
}

/// Forwards a request about a lease or a node to the manager that owns it, unless this one does.
pub async fn to_owner(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    let client = ClientAuthorization::of(request.headers()).filter(|client| client.may_be_forwarded(&control));
    let request = match client {
        Some(_) => with_full_lease_id(&control, request).await,
        None => request,
    };
    let forwarded = match (client, resource_of(request.uri().path())) {
        (Some(client), Some(resource)) => forward(&control, client, &resource, request).await,
        _ => Forwarded::Local(request),
    };
    match forwarded {
        Forwarded::Done(response) => response,
        Forwarded::Local(request) => next.run(request).await,
    }
}

/// Writes the full id of a lease in place of an abbreviated one: the owner of a lease is found by its full id. A path that
/// names no lease of the caller stays: the handler explains what is wrong with it.
async fn with_full_lease_id(control: &Api, request: Request) -> Request {
    let Some((given, rest)) = abbreviated_lease(request.uri()) else {
        return request;
    };
    let (mut parts, body) = request.into_parts();
    if let Ok(caller) = Caller::from_request_parts(&mut parts, control).await
        && let Ok(seen) = control.leases_matching(&caller, &given).await
        && let Ok(lease) = given.resolve(seen.iter().map(|record| record.lease).collect(), "lease")
        && let Ok(uri) = format!("/v1/leases/{lease}{rest}").parse()
    {
        parts.uri = uri;
    }
    Request::from_parts(parts, body)
}

/// The abbreviated id of a lease in a path, and what follows it.
fn abbreviated_lease(uri: &Uri) -> Option<(IdPattern, String)> {
    let rest = uri.path_and_query()?.as_str().strip_prefix("/v1/leases/")?;
    let (given, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let given: IdPattern = given.parse().ok()?;
    given.full_id::<LeaseId>().is_none().then(|| (given, rest.to_owned()))
}

/// Forwards a request about tasks to the manager that owns the tasks, unless this one does.
pub async fn to_task_owner(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    // The path of a hook contains its own token.
    let is_hook = request.uri().path().starts_with("/v1/hooks/") && !request.headers().contains_key(FORWARDED);
    let client = ClientAuthorization::of(request.headers()).filter(|client| client.may_be_forwarded(&control));
    if client.is_none() && !(is_hook && control.peers().are_possible()) {
        return next.run(request).await;
    }
    match proxy::forward_to_task_owner(&control, request).await {
        Forwarded::Done(response) => response,
        Forwarded::Local(request) => next.run(request).await,
    }
}

enum Forwarded {
    /// The response of another manager, or the error.
    Done(Response),
    /// The request, which this manager must process.
    Local(Request),
}

async fn forward(control: &Api, client: ClientAuthorization, resource: &Resource, request: Request) -> Forwarded {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        let text = format!("the body has more than {MAX_BODY_BYTES} bytes");
        return Forwarded::Done(refuse(Code::PayloadTooLarge, text).into_response());
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // A request that waits for running calls has its own time limit.
    let waits = path.contains("/revoke")
        || (matches!(parts.method, Method::DELETE | Method::PATCH) && path.starts_with("/v1/nodes/"));
    let forwarded = PeerRequest {
        method: parts.method.clone(),
        path,
        authorization: client.0,
        body: body.clone(),
        limit: (!waits).then_some(RESPONSE_LIMIT),
    };
    let until = tokio::time::Instant::now() + MOVE_LIMIT;
    loop {
        let owner = match control.owner_of(resource).await {
            Ok(Some(owner)) => owner,
            Ok(None) => return Forwarded::Local(Request::from_parts(parts, Body::from(body))),
            Err(failure) => return Forwarded::Done(crate::extractors::Refusal::from(failure).into_response()),
        };
        if let Some(peer) = control.peers().alive(owner)
            && let Some(answer) = control.peers().connections().send(&peer, &forwarded).await
        {
            let mut response = (answer.status, answer.body).into_response();
            for name in [CONTENT_TYPE, axum::http::header::WWW_AUTHENTICATE] {
                if let Some(value) = answer.headers.get(&name) {
                    response.headers_mut().insert(name, value.clone());
                }
            }
            return Forwarded::Done(response);
        }
        if tokio::time::Instant::now() >= until {
            let text = "the manager that owns it does not respond, and no other has taken its place yet; try again";
            return Forwarded::Done(refuse(Code::Unreachable, text).into_response());
        }
        tokio::time::sleep(MOVE_PERIOD).await;
    }
}

/// Merges the statuses of leases in memory with those in the store, which may be older. The newest leases are first.
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
