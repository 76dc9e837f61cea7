//! The managers' HTTP API. A site may have several managers; any of them can serve a request.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dayfly_protocol::api::{
    Allowance, AllowanceRequest, Connection, ErrorBody, GangRequest, Grant, LeaseRequest, LeaseStatus, MANAGERS_HEADER,
    ManagerAddress, ManagerStatus, NodeStatus, Reclaimed, RenewRequest,
};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId};
use dayfly_protocol::tasks::MESSAGE_PACK;
use dayfly_protocol::version::{VERSION_HEADER, check_version, own_version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{HeaderValue, Method, Request};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::resolver::Remembering;
use crate::{Error, here};

/// Limit of one request. Longer than a manager waits for its slowest node.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Largest response.
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// Slowest network that is expected; sets the time for large bodies.
const SLOW_BYTES_PER_S: u64 = 1 << 20;
/// Idle connections that are kept.
const IDLE_CONNECTIONS: usize = 12;
/// Limit for connecting to a manager.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// One manager and its kept-alive connections.
#[derive(Debug)]
struct Endpoint {
    agent: Agent,
    address: ManagerAddress,
}

/// A site's managers, and the token that is valid at all of them.
#[derive(Debug)]
pub struct ManagerClient {
    endpoints: RwLock<Vec<Arc<Endpoint>>>,
    /// Index of the manager that responded last.
    now: AtomicUsize,
    /// Version of the list of managers that is known.
    version: RwLock<Option<String>>,
    authorization: String,
    /// W3C `traceparent` of the step that this process belongs to, from its environment.
    traceparent: Option<String>,
}

impl Endpoint {
    fn new(address: ManagerAddress) -> Result<Self, Error> {
        let ca = Certificate::from_pem(address.ca_pem.as_bytes()).map_err(|error| {
            Error::new(
                Code::InvalidRequest,
                format!("the connection file holds no usable CA certificate: {error}"),
            )
        })?;
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::new_with_certs(&[ca]))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(REQUEST_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_age(Duration::from_secs(60))
            // One for each thread that stores long arguments, and some for other requests.
            .max_idle_connections_per_host(IDLE_CONNECTIONS)
            .max_idle_connections(IDLE_CONNECTIONS)
            .build();
        Ok(Self {
            agent: Agent::with_parts(config, here::connector(&address.ca_pem), Remembering::default()),
            address: ManagerAddress {
                manager: address.manager.trim_end_matches('/').to_owned(),
                ..address
            },
        })
    }

    fn failed(&self, error: ureq::Error) -> Error {
        Error::new(
            Code::Unreachable,
            format!(
                "the manager at {} does not answer: {error}. Is it running? `dayfly status` tells",
                self.address.manager
            ),
        )
    }

    /// Sends a request. The outer error means that the manager sent no response.
    fn ask(&self, question: &Question<'_>) -> Result<Answer, Error> {
        let request = Request::builder()
            .method(question.method.clone())
            .uri(format!("{}{}", self.address.manager, question.path))
            .header("authorization", question.authorization)
            .header("content-type", question.format.content_type())
            .header("accept", question.format.content_type())
            .header(VERSION_HEADER, own_version());
        let request = match question.traceparent.and_then(|text| HeaderValue::from_str(text).ok()) {
            Some(traceparent) => request.header("traceparent", traceparent),
            None => request,
        };
        let limit = Some(question.limit + question.longer);
        let no_request = |error| Error::new(Code::InvalidRequest, format!("this is no request: {error}"));
        let response = match &question.body {
            Some(body) => {
                let request = request.body(body.as_ref()).map_err(no_request)?;
                let request = self.agent.configure_request(request).timeout_global(limit).build();
                self.agent.run(request)
            }
            None => {
                let request = request.body(()).map_err(no_request)?;
                let request = self.agent.configure_request(request).timeout_global(limit).build();
                self.agent.run(request)
            }
        };
        let mut response = response.map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        if let Some(theirs) = response.headers().get(VERSION_HEADER) {
            let manager = format!("the manager at {}", self.address.manager);
            let checked = check_version(theirs.to_str().unwrap_or_default(), &manager, "this program");
            if let Err(failure) = checked {
                let said = Err(Error(failure));
                return Ok(Answer { said, version: None });
            }
        }
        let version = response.headers().get(MANAGERS_HEADER);
        let version = version.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let length = response
            .body()
            .content_length()
            .unwrap_or_default()
            .min(question.most_bytes);
        // Reserve the whole length at once: growing the vector could need twice the memory.
        let mut body = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        // One byte more, because reading to the end asks for one more byte than there is.
        let limit = question.most_bytes.saturating_add(1);
        let reader = response.body_mut().with_config().limit(limit).reader();
        std::io::copy(&mut { reader }, &mut body).map_err(|error| self.failed(error.into()))?;
        if (200..300).contains(&status) {
            return Ok(Answer {
                said: Ok(body),
                version,
            });
        }
        let said = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(body) => Err(Error(body.error)),
            Err(_) => Err(Error::new(
                Code::ProtocolViolation,
                format!("{} answered with HTTP status {status}", self.address.manager),
            )),
        };
        Ok(Answer { said, version })
    }
}

/// A manager's response.
struct Answer {
    said: Result<Vec<u8>, Error>,
    /// Version of the list of managers, if the site has several.
    version: Option<String>,
}

/// Encoding of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    MessagePack,
    /// Raw bytes; the response is JSON.
    Bytes,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::MessagePack => MESSAGE_PACK,
            Self::Bytes => "application/octet-stream",
        }
    }

    fn read<T: DeserializeOwned>(self, body: &[u8]) -> Result<T, Error> {
        let read = match self {
            Self::Json | Self::Bytes => {
                serde_json::from_slice(if body.is_empty() { b"null" } else { body }).map_err(|e| e.to_string())
            }
            Self::MessagePack => rmp_serde::from_slice(body).map_err(|error| error.to_string()),
        };
        read.map_err(|why| {
            Error::new(
                Code::ProtocolViolation,
                format!("the manager's answer makes no sense: {why}"),
            )
        })
    }
}

/// A request to a manager.
struct Question<'a> {
    format: Format,
    method: Method,
    path: &'a str,
    authorization: &'a str,
    body: Option<Cow<'a, [u8]>>,
    /// Time limit of the response, and the addition for large bodies.
    limit: Duration,
    longer: Duration,
    /// Largest response, in bytes.
    most_bytes: u64,
    /// W3C `traceparent` of the step that the request belongs to.
    traceparent: Option<&'a str>,
}

impl ManagerClient {
    pub fn new(connection: &Connection) -> Result<Self, Error> {
        let first = Endpoint::new(ManagerAddress {
            manager: connection.manager.clone(),
            ca_pem: connection.ca_pem.clone(),
        })?;
        let mut endpoints = vec![Arc::new(first)];
        // A malformed address must not prevent the use of the others.
        let others = connection.others.iter().cloned().map(Endpoint::new);
        endpoints.extend(others.filter_map(Result::ok).map(Arc::new));
        Ok(Self {
            endpoints: RwLock::new(endpoints),
            now: AtomicUsize::new(0),
            version: RwLock::default(),
            authorization: format!("Bearer {}", connection.token),
            traceparent: std::env::var("TRACEPARENT").ok(),
        })
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn url(&self) -> String {
        let endpoints = self.endpoints();
        let now = self.now.load(Ordering::Relaxed) % endpoints.len();
        endpoints[now].address.manager.clone()
    }

    fn ask<T: DeserializeOwned>(
        &self,
        format: Format,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        longer: Duration,
    ) -> Result<T, Error> {
        let said = self.ask_for(Question {
            body: body.map(Cow::Owned),
            longer,
            ..self.question(format, method, path)
        })?;
        format.read(&said)
    }

    fn question<'a>(&'a self, format: Format, method: Method, path: &'a str) -> Question<'a> {
        Question {
            format,
            method,
            path,
            authorization: &self.authorization,
            body: None,
            limit: REQUEST_LIMIT,
            longer: Duration::ZERO,
            most_bytes: MAX_ANSWER_BYTES,
            traceparent: self.traceparent.as_deref(),
        }
    }

    /// `PUT path` with raw bytes.
    pub fn put_bytes<T: DeserializeOwned>(&self, path: &str, bytes: &[u8]) -> Result<T, Error> {
        let said = self.ask_for(Question {
            body: Some(Cow::Borrowed(bytes)),
            longer: time_for(bytes.len() as u64),
            ..self.question(Format::Bytes, Method::PUT, path)
        })?;
        Format::Bytes.read(&said)
    }

    /// `GET path`; the response has at most `most_bytes` bytes.
    pub fn get_bytes(&self, path: &str, most_bytes: u64) -> Result<Vec<u8>, Error> {
        self.ask_for(Question {
            longer: time_for(most_bytes),
            most_bytes: most_bytes.max(MAX_ANSWER_BYTES),
            ..self.question(Format::Bytes, Method::GET, path)
        })
    }

    /// Sends a request to the manager that responded last, and to the others if it is unreachable or cannot write.
    /// Every request can be repeated: a lease whose grant was lost with a dying manager ends unused.
    fn ask_for(&self, question: Question<'_>) -> Result<Vec<u8>, Error> {
        let endpoints = self.endpoints();
        let first = self.now.load(Ordering::Relaxed);
        let mut failed = None;
        for turn in 0..endpoints.len() {
            let index = (first + turn) % endpoints.len();
            let endpoint = &endpoints[index];
            match endpoint.ask(&question) {
                Ok(Answer { said: Err(error), .. }) if error.code() == Code::StoreFailed => {
                    // The first error is the most likely one to help the user.
                    failed.get_or_insert(error);
                }
                Ok(Answer { said, version }) => {
                    if turn > 0 {
                        self.now.store(index, Ordering::Relaxed);
                    }
                    self.learn(endpoint, version);
                    return said;
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Code::Unreachable, "there is no manager")))
    }

    /// Reads the list of managers if its version is a new one.
    fn learn(&self, endpoint: &Arc<Endpoint>, version: Option<String>) {
        let Some(version) = version else { return };
        if *self.version.read().unwrap_or_else(PoisonError::into_inner) == Some(version.clone()) {
            return;
        }
        // Store the version first, so that only one thread reads the list.
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = Some(version);
        let question = Question {
            traceparent: None,
            ..self.question(Format::Json, Method::GET, "/v1/managers")
        };
        let said = endpoint.ask(&question).and_then(|answer| answer.said);
        // After a failure the known managers remain; the next change triggers another attempt.
        let Ok(managers) = said.and_then(|said| Format::Json.read::<Vec<ManagerStatus>>(&said)) else {
            return;
        };
        let known = self.endpoints();
        let mut all = vec![endpoint.clone()];
        for manager in managers.into_iter().map(|status| status.address) {
            if all.iter().any(|one| one.address.manager == manager.manager) {
                continue;
            }
            match known.iter().find(|one| one.address == manager) {
                Some(one) => all.push(one.clone()),
                None => all.extend(Endpoint::new(manager).ok().map(Arc::new)),
            }
        }
        *self.endpoints.write().unwrap_or_else(PoisonError::into_inner) = all;
        self.now.store(0, Ordering::Relaxed);
    }

    /// `GET path`, in MessagePack. The response may take `longer` in addition to the usual limit.
    pub fn get_packed<T: DeserializeOwned>(&self, path: &str, longer: Duration) -> Result<T, Error> {
        self.ask(Format::MessagePack, Method::GET, path, None, longer)
    }

    /// `POST path`, in MessagePack both ways.
    pub fn post_packed<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.post_packed_within(REQUEST_LIMIT, path, body)
    }

    /// As [`ManagerClient::post_packed`], with `limit` for each manager.
    pub fn post_packed_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = rmp_serde::to_vec_named(body);
        let body = body.map_err(|error| Error::new(Code::InvalidRequest, format!("this is no request: {error}")))?;
        let said = self.ask_for(Question {
            body: Some(Cow::Owned(body)),
            limit,
            ..self.question(Format::MessagePack, Method::POST, path)
        })?;
        Format::MessagePack.read(&said)
    }

    /// `GET path`, which returns JSON.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.ask(Format::Json, Method::GET, path, None, Duration::ZERO)
    }

    /// `POST path` with a JSON body.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.post_patiently(path, body, Duration::ZERO)
    }

    fn post_patiently<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        longer: Duration,
    ) -> Result<T, Error> {
        self.ask(Format::Json, Method::POST, path, Some(json(body)?), longer)
    }

    /// `PUT path` with a JSON body.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.ask(Format::Json, Method::PUT, path, Some(json(body)?), Duration::ZERO)
    }

    /// `DELETE path`. The response may take `longer` in addition to the usual limit.
    pub fn delete<T: DeserializeOwned>(&self, path: &str, longer: Duration) -> Result<T, Error> {
        self.ask(Format::Json, Method::DELETE, path, None, longer)
    }

    /// `POST path` with a JSON body, for the step that `traceparent` names.
    fn post_within<T: DeserializeOwned>(
        &self,
        traceparent: Option<&str>,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let said = self.ask_for(Question {
            body: Some(Cow::Owned(json(body)?)),
            traceparent: traceparent.or(self.traceparent.as_deref()),
            ..self.question(Format::Json, Method::POST, path)
        })?;
        Format::Json.read(&said)
    }

    pub fn lease(&self, request: &LeaseRequest, traceparent: Option<&str>) -> Result<Grant, Error> {
        self.post_within(traceparent, "/v1/leases", request)
    }

    pub fn gang(&self, request: &GangRequest, traceparent: Option<&str>) -> Result<Vec<Grant>, Error> {
        self.post_within(traceparent, "/v1/gangs", request)
    }

    pub fn allow(&self, request: &AllowanceRequest) -> Result<Allowance, Error> {
        self.post("/v1/allowances", request)
    }

    /// The first list of an allowance's nodes after `version`, or the same list when `wait` is over.
    pub fn allowance(&self, allowance: AllowanceId, version: u64, wait: Duration) -> Result<Allowance, Error> {
        let wait_ms = wait.as_millis();
        self.get(&format!("/v1/allowances/{allowance}?after={version}&wait_ms={wait_ms}"))
    }

    pub fn disallow(&self, allowance: AllowanceId) -> Result<(), Error> {
        self.delete::<serde_json::Value>(&format!("/v1/allowances/{allowance}"), Duration::ZERO)
            .map(drop)
    }

    pub fn renew(&self, lease: LeaseId, duration: Duration) -> Result<Grant, Error> {
        self.post(
            &format!("/v1/leases/{lease}/renew"),
            &RenewRequest {
                duration_ms: duration.as_millis() as u64,
            },
        )
    }

    pub fn release(&self, lease: LeaseId) -> Result<(), Error> {
        self.delete::<serde_json::Value>(&format!("/v1/leases/{lease}"), Duration::ZERO)
            .map(drop)
    }

    pub fn revoke(&self, lease: LeaseId, grace: Duration) -> Result<LeaseStatus, Error> {
        let path = format!("/v1/leases/{lease}/revoke?grace={}", grace.as_secs_f64());
        self.post_patiently(&path, &serde_json::Value::Null, grace)
    }

    pub fn reclaim_node(&self, node: NodeId, grace: Duration) -> Result<Reclaimed, Error> {
        self.delete(&format!("/v1/nodes/{node}?grace={}", grace.as_secs_f64()), grace)
    }

    pub fn resume_node(&self, node: NodeId) -> Result<NodeStatus, Error> {
        self.put(&format!("/v1/nodes/{node}"), &serde_json::Value::Null)
    }

    pub fn nodes(&self) -> Result<Vec<NodeStatus>, Error> {
        self.get("/v1/nodes")
    }

    pub fn leases(&self) -> Result<Vec<LeaseStatus>, Error> {
        self.get("/v1/leases")
    }
}

/// Additional time for a body of `bytes` on a slow network.
fn time_for(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOW_BYTES_PER_S)
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|error| Error::new(Code::InvalidRequest, format!("this is no request: {error}")))
}
