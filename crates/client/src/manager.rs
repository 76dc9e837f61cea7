//! The managers' HTTP API. A site may have several managers; any of them can serve a request.

mod exchange;

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dayfly_protocol::api::{
    Allowance, AllowanceRequest, Connection, GangRequest, Grant, HarvestMode, HarvestSwitch, LeaseChange, LeaseRequest,
    LeaseStatus, ManagerAddress, ManagerStatus, NodeResize, NodeStatus, Reclaimed, RenewRequest,
};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::{AllowanceId, LeaseId, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Method;

use crate::Error;
use exchange::{Format, MAX_RESPONSE_BYTES, ManagerConnection, ManagerRequest, ManagerResponse, REQUEST_LIMIT};

/// Slowest network that is expected; sets the time for large bodies.
const SLOW_BYTES_PER_S: u64 = 1 << 20;

/// A site's managers, and the token that is valid at all of them.
#[derive(Debug)]
pub struct ManagerClient {
    managers: RwLock<Vec<Arc<ManagerConnection>>>,
    /// Index of the manager that responded last.
    now: AtomicUsize,
    /// Version of the list of managers that is known.
    version: RwLock<Option<String>>,
    authorization: String,
    /// W3C `traceparent` of the step that this process belongs to, from its environment.
    traceparent: Option<String>,
}

impl ManagerClient {
    pub fn new(connection: &Connection) -> Result<Self, Error> {
        let first = ManagerConnection::new(ManagerAddress {
            manager: connection.manager.clone(),
            ca_pem: connection.ca_pem.clone(),
        })?;
        let mut managers = vec![Arc::new(first)];
        // A malformed address must not prevent the use of the others.
        let others = connection.others.iter().cloned().map(ManagerConnection::new);
        managers.extend(others.filter_map(Result::ok).map(Arc::new));
        Ok(Self {
            managers: RwLock::new(managers),
            now: AtomicUsize::new(0),
            version: RwLock::default(),
            authorization: format!("Bearer {}", connection.token),
            traceparent: std::env::var("TRACEPARENT").ok(),
        })
    }

    fn managers(&self) -> Vec<Arc<ManagerConnection>> {
        self.managers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn url(&self) -> String {
        let managers = self.managers();
        let now = self.now.load(Ordering::Relaxed) % managers.len();
        managers[now].address.manager.clone()
    }

    fn ask<T: DeserializeOwned>(
        &self,
        format: Format,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        extra_time: Duration,
    ) -> Result<T, Error> {
        let result = self.ask_for(ManagerRequest {
            body: body.map(Cow::Owned),
            extra_time,
            ..self.request(format, method, path)
        })?;
        format.read(&result)
    }

    fn request<'a>(&'a self, format: Format, method: Method, path: &'a str) -> ManagerRequest<'a> {
        ManagerRequest {
            format,
            method,
            path,
            authorization: &self.authorization,
            body: None,
            limit: REQUEST_LIMIT,
            extra_time: Duration::ZERO,
            most_bytes: MAX_RESPONSE_BYTES,
            traceparent: self.traceparent.as_deref(),
        }
    }

    /// `PUT path` with raw bytes.
    pub fn put_bytes<T: DeserializeOwned>(&self, path: &str, bytes: &[u8]) -> Result<T, Error> {
        let result = self.ask_for(ManagerRequest {
            body: Some(Cow::Borrowed(bytes)),
            extra_time: time_for(bytes.len() as u64),
            ..self.request(Format::Bytes, Method::PUT, path)
        })?;
        Format::Bytes.read(&result)
    }

    /// `GET path`; the response has at most `most_bytes` bytes.
    pub fn get_bytes(&self, path: &str, most_bytes: u64) -> Result<Vec<u8>, Error> {
        self.ask_for(ManagerRequest {
            extra_time: time_for(most_bytes),
            most_bytes: most_bytes.max(MAX_RESPONSE_BYTES),
            ..self.request(Format::Bytes, Method::GET, path)
        })
    }

    /// Sends a request to the manager that responded last, and to the others if it is unreachable or cannot write.
    /// Every request can be repeated: a lease whose grant was lost with a dying manager ends unused.
    fn ask_for(&self, request: ManagerRequest<'_>) -> Result<Vec<u8>, Error> {
        let managers = self.managers();
        let first = self.now.load(Ordering::Relaxed);
        let mut failed = None;
        for turn in 0..managers.len() {
            let index = (first + turn) % managers.len();
            let manager = &managers[index];
            match manager.send(&request) {
                Ok(ManagerResponse { result: Err(error), .. }) if error.code() == Code::StoreFailed => {
                    // The first error is the most likely one to help the user.
                    failed.get_or_insert(error);
                }
                Ok(ManagerResponse { result, version }) => {
                    if turn > 0 {
                        self.now.store(index, Ordering::Relaxed);
                    }
                    self.learn(manager, version);
                    return result;
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Code::Unreachable, "there is no manager")))
    }

    /// Reads the list of managers if its version is a new one.
    fn learn(&self, manager: &Arc<ManagerConnection>, version: Option<String>) {
        let Some(version) = version else { return };
        if *self.version.read().unwrap_or_else(PoisonError::into_inner) == Some(version.clone()) {
            return;
        }
        // Store the version first, so that only one thread reads the list.
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = Some(version);
        let request = ManagerRequest {
            traceparent: None,
            ..self.request(Format::Json, Method::GET, "/v1/managers")
        };
        let result = manager.send(&request).and_then(|response| response.result);
        // After a failure the known managers remain; the next change triggers another attempt.
        let Ok(managers) = result.and_then(|result| Format::Json.read::<Vec<ManagerStatus>>(&result)) else {
            return;
        };
        let known = self.managers();
        let mut all = vec![manager.clone()];
        for manager in managers.into_iter().map(|status| status.address) {
            if all.iter().any(|one| one.address.manager == manager.manager) {
                continue;
            }
            match known.iter().find(|one| one.address == manager) {
                Some(one) => all.push(one.clone()),
                None => all.extend(ManagerConnection::new(manager).ok().map(Arc::new)),
            }
        }
        *self.managers.write().unwrap_or_else(PoisonError::into_inner) = all;
        self.now.store(0, Ordering::Relaxed);
    }

    /// `GET path`, in MessagePack. The response may take `extra_time` in addition to the usual limit.
    pub fn get_packed<T: DeserializeOwned>(&self, path: &str, extra_time: Duration) -> Result<T, Error> {
        self.ask(Format::MessagePack, Method::GET, path, None, extra_time)
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
        let body =
            body.map_err(|error| Error::new(Code::InvalidRequest, format!("the request cannot be encoded: {error}")))?;
        let result = self.ask_for(ManagerRequest {
            body: Some(Cow::Owned(body)),
            limit,
            ..self.request(Format::MessagePack, Method::POST, path)
        })?;
        Format::MessagePack.read(&result)
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
        extra_time: Duration,
    ) -> Result<T, Error> {
        self.ask(Format::Json, Method::POST, path, Some(json(body)?), extra_time)
    }

    /// `PUT path` with a JSON body.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.ask(Format::Json, Method::PUT, path, Some(json(body)?), Duration::ZERO)
    }

    /// `DELETE path`. The response may take `extra_time` in addition to the usual limit.
    pub fn delete<T: DeserializeOwned>(&self, path: &str, extra_time: Duration) -> Result<T, Error> {
        self.ask(Format::Json, Method::DELETE, path, None, extra_time)
    }

    /// `POST path` with a JSON body, for the step that `traceparent` names.
    fn post_within<T: DeserializeOwned>(
        &self,
        traceparent: Option<&str>,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let result = self.ask_for(ManagerRequest {
            body: Some(Cow::Owned(json(body)?)),
            traceparent: traceparent.or(self.traceparent.as_deref()),
            ..self.request(Format::Json, Method::POST, path)
        })?;
        Format::Json.read(&result)
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

    pub fn renew(&self, lease: LeaseId, duration: Duration, change: &LeaseChange) -> Result<Grant, Error> {
        self.post(
            &format!("/v1/leases/{lease}/renew"),
            &RenewRequest {
                duration_ms: duration.as_millis() as u64,
                change: *change,
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

    pub fn resize_node(&self, node: NodeId, change: &NodeResize, grace: Duration) -> Result<NodeStatus, Error> {
        let path = format!("/v1/nodes/{node}?grace={}", grace.as_secs_f64());
        self.ask(Format::Json, Method::PATCH, &path, Some(json(change)?), grace)
    }

    pub fn resume_node(&self, node: NodeId) -> Result<NodeStatus, Error> {
        self.put(&format!("/v1/nodes/{node}"), &serde_json::Value::Null)
    }

    pub fn switch_harvest(&self, node: NodeId, mode: HarvestMode) -> Result<NodeStatus, Error> {
        self.put(&format!("/v1/nodes/{node}/harvest"), &HarvestSwitch { mode })
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
    serde_json::to_vec(body)
        .map_err(|error| Error::new(Code::InvalidRequest, format!("the request cannot be encoded: {error}")))
}
