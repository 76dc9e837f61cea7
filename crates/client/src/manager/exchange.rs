//! One request to one manager, and its response.

use std::borrow::Cow;
use std::time::Duration;

use dayfly_protocol::api::{ErrorBody, MANAGERS_HEADER, ManagerAddress};
use dayfly_protocol::error::Code;
use dayfly_protocol::tasks::MESSAGE_PACK;
use dayfly_protocol::version::{VERSION_HEADER, check_version, own_version};
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::{HeaderValue, Method, Request};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::resolver::CachingResolver;
use crate::{Error, local_socket};

/// Limit of one request. Longer than a manager waits for its slowest node.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Largest response.
pub(super) const MAX_RESPONSE_BYTES: u64 = 1 << 30;
/// Idle connections that are kept.
pub(super) const IDLE_CONNECTIONS: usize = 12;
/// Limit for connecting to a manager.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// One manager and its kept-alive connections.
#[derive(Debug)]
pub(super) struct ManagerConnection {
    agent: Agent,
    pub(super) address: ManagerAddress,
}

impl ManagerConnection {
    pub(super) fn new(address: ManagerAddress) -> Result<Self, Error> {
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
            agent: Agent::with_parts(
                config,
                local_socket::connector(&address.ca_pem),
                CachingResolver::default(),
            ),
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
                "the manager at {} does not respond: {error}. Is it running? Run `dayfly status`",
                self.address.manager
            ),
        )
    }

    /// Sends a request. The outer error means that the manager sent no response.
    pub(super) fn send(&self, request: &ManagerRequest<'_>) -> Result<ManagerResponse, Error> {
        let http = Request::builder()
            .method(request.method.clone())
            .uri(format!("{}{}", self.address.manager, request.path))
            .header("authorization", request.authorization)
            .header("content-type", request.format.content_type())
            .header("accept", request.format.content_type())
            .header(VERSION_HEADER, own_version());
        let http = match request.traceparent.and_then(|text| HeaderValue::from_str(text).ok()) {
            Some(traceparent) => http.header("traceparent", traceparent),
            None => http,
        };
        let limit = Some(request.limit + request.extra_time);
        let no_request = |error| Error::new(Code::InvalidRequest, format!("the request cannot be sent: {error}"));
        let response = match &request.body {
            Some(body) => {
                let http = http.body(body.as_ref()).map_err(no_request)?;
                let http = self.agent.configure_request(http).timeout_global(limit).build();
                self.agent.run(http)
            }
            None => {
                let http = http.body(()).map_err(no_request)?;
                let http = self.agent.configure_request(http).timeout_global(limit).build();
                self.agent.run(http)
            }
        };
        let mut response = response.map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        if let Some(theirs) = response.headers().get(VERSION_HEADER) {
            let manager = format!("the manager at {}", self.address.manager);
            let checked = check_version(theirs.to_str().unwrap_or_default(), &manager, "this program");
            if let Err(failure) = checked {
                let result = Err(Error(failure));
                return Ok(ManagerResponse { result, version: None });
            }
        }
        let version = response.headers().get(MANAGERS_HEADER);
        let version = version.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let length = response
            .body()
            .content_length()
            .unwrap_or_default()
            .min(request.most_bytes);
        // Reserve the whole length at once: growing the vector could need twice the memory.
        let mut body = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        // One byte more, because reading to the end asks for one more byte than there is.
        let limit = request.most_bytes.saturating_add(1);
        let reader = response.body_mut().with_config().limit(limit).reader();
        std::io::copy(&mut { reader }, &mut body).map_err(|error| self.failed(error.into()))?;
        if (200..300).contains(&status) {
            return Ok(ManagerResponse {
                result: Ok(body),
                version,
            });
        }
        let result = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(body) => Err(Error(body.error)),
            Err(_) => Err(Error::new(
                Code::ProtocolViolation,
                format!("{} responded with HTTP status {status}", self.address.manager),
            )),
        };
        Ok(ManagerResponse { result, version })
    }
}

/// A manager's response.
pub(super) struct ManagerResponse {
    pub(super) result: Result<Vec<u8>, Error>,
    /// Version of the list of managers, if the site has several.
    pub(super) version: Option<String>,
}

/// Encoding of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
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

    pub(super) fn read<T: DeserializeOwned>(self, body: &[u8]) -> Result<T, Error> {
        let read = match self {
            Self::Json | Self::Bytes => {
                serde_json::from_slice(if body.is_empty() { b"null" } else { body }).map_err(|e| e.to_string())
            }
            Self::MessagePack => rmp_serde::from_slice(body).map_err(|error| error.to_string()),
        };
        read.map_err(|why| {
            Error::new(
                Code::ProtocolViolation,
                format!("the manager's response cannot be decoded: {why}"),
            )
        })
    }
}

/// A request to a manager.
pub(super) struct ManagerRequest<'a> {
    pub(super) format: Format,
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) authorization: &'a str,
    pub(super) body: Option<Cow<'a, [u8]>>,
    /// Time limit of the response, and the addition for large bodies.
    pub(super) limit: Duration,
    pub(super) extra_time: Duration,
    /// Largest response, in bytes.
    pub(super) most_bytes: u64,
    /// W3C `traceparent` of the step that the request belongs to.
    pub(super) traceparent: Option<&'a str>,
}
