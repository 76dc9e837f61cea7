//! The manager's HTTP API, as a client uses it.

use std::time::Duration;

use mayfly_protocol::api::{
    Allowance, AllowanceRequest, Connection, ErrorBody, Grant, LeaseRequest, LeaseStatus, NodeStatus, Reclaimed,
    RenewRequest,
};
use mayfly_protocol::error::Code;
use mayfly_protocol::ids::{AllowanceId, LeaseId, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::Error;

/// Longer than a manager waits for its slowest node.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A connection to one manager, kept alive between requests.
#[derive(Debug, Clone)]
pub struct ManagerClient {
    agent: Agent,
    base: String,
    authorization: String,
}

impl ManagerClient {
    pub fn new(connection: &Connection) -> Result<Self, Error> {
        let ca = Certificate::from_pem(connection.ca_pem.as_bytes()).map_err(|error| {
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
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_age(Duration::from_secs(60))
            .build();
        Ok(Self {
            agent: config.into(),
            base: connection.manager.trim_end_matches('/').to_owned(),
            authorization: format!("Bearer {}", connection.token),
        })
    }

    pub fn url(&self) -> &str {
        &self.base
    }

    fn failed(&self, error: ureq::Error) -> Error {
        Error::new(
            Code::Unreachable,
            format!(
                "the manager at {} does not answer: {error}. Is it running? `mayfly status` tells",
                self.base
            ),
        )
    }

    fn read<T: DeserializeOwned>(&self, mut response: ureq::http::Response<ureq::Body>) -> Result<T, Error> {
        let status = response.status().as_u16();
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|error| self.failed(error))?;
        if (200..300).contains(&status) {
            return serde_json::from_str(if text.is_empty() { "null" } else { &text }).map_err(|error| {
                Error::new(
                    Code::ProtocolViolation,
                    format!("the manager's answer makes no sense: {error}"),
                )
            });
        }
        match serde_json::from_str::<ErrorBody>(&text) {
            Ok(body) => Err(Error(body.error)),
            Err(_) => Err(Error::new(
                Code::ProtocolViolation,
                format!("{} answered with HTTP status {status}", self.base),
            )),
        }
    }

    /// `GET path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let request = request.header("authorization", &self.authorization);
        self.read(request.call().map_err(|error| self.failed(error))?)
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
        let request = self.agent.post(format!("{}{path}", self.base)).config();
        let request = request.timeout_global(Some(REQUEST_LIMIT + longer)).build();
        let request = request.header("authorization", &self.authorization);
        self.read(request.send_json(body).map_err(|error| self.failed(error))?)
    }

    /// `PUT path` with a JSON body.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        let request = self.agent.put(format!("{}{path}", self.base));
        let request = request.header("authorization", &self.authorization);
        self.read(request.send_json(body).map_err(|error| self.failed(error))?)
    }

    /// `DELETE path`, which may take so much longer than other requests.
    pub fn delete<T: DeserializeOwned>(&self, path: &str, longer: Duration) -> Result<T, Error> {
        let request = self.agent.delete(format!("{}{path}", self.base)).config();
        let request = request.timeout_global(Some(REQUEST_LIMIT + longer)).build();
        let request = request.header("authorization", &self.authorization);
        self.read(request.call().map_err(|error| self.failed(error))?)
    }

    pub fn lease(&self, request: &LeaseRequest) -> Result<Grant, Error> {
        self.post("/v1/leases", request)
    }

    pub fn allow(&self, request: &AllowanceRequest) -> Result<Allowance, Error> {
        self.post("/v1/allowances", request)
    }

    /// News of an allowance: its next list of nodes after `version`, or the same one after `wait`.
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
