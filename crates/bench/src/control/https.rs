//! HTTP over TLS to one manager, with persistent connections.

use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::api::Connection;
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::Error;

/// An encrypted connection.
pub type Tls = TlsStream<TcpStream>;

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Address of the manager, and its certificate.
pub struct Site {
    authority: String,
    token: String,
    connector: TlsConnector,
    name: ServerName<'static>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Subject(format!("the request to the manager failed: {error}"))
}

impl Site {
    /// Reads them from a connection file.
    pub fn new(connection: &Connection) -> Result<Self, Error> {
        let mut roots = rustls::RootCertStore::empty();
        let ca = rustls::pki_types::CertificateDer::from_pem_slice(connection.ca_pem.as_bytes()).map_err(failed)?;
        roots.add(ca).map_err(failed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let authority = connection.manager.trim_start_matches("https://").to_owned();
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        Ok(Self {
            name: ServerName::try_from(host.to_owned()).map_err(failed)?,
            authority,
            token: connection.token.clone(),
            connector: TlsConnector::from(Arc::new(config)),
        })
    }

    /// `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Tls, Error> {
        let stream = TcpStream::connect(&self.authority).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        self.connector.connect(self.name.clone(), stream).await.map_err(failed)
    }

    /// Opens a connection for requests.
    pub async fn requests(self: &Arc<Self>) -> Result<Requests, Error> {
        let stream = TokioIo::new(self.connect().await?);
        let (sender, connection) = http1::handshake(stream).await.map_err(failed)?;
        tokio::spawn(connection);
        Ok(Requests {
            site: Arc::clone(self),
            sender,
        })
    }
}

/// A connection that sends one request at a time.
pub struct Requests {
    site: Arc<Site>,
    sender: http1::SendRequest<String>,
}

impl Requests {
    /// Sends a request. Returns the status and body of the response.
    pub async fn send(&mut self, method: Method, path: &str, body: String) -> Result<(u16, Vec<u8>), Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.site.authority)
            .header("authorization", format!("Bearer {}", self.site.token))
            .header("content-type", "application/json")
            .body(body)
            .map_err(failed)?;
        let asked = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status().as_u16();
            let mut body = std::pin::pin!(response.into_body());
            let mut bytes = Vec::new();
            while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
                let data: Option<Bytes> = frame?.into_data().ok();
                bytes.extend_from_slice(&data.unwrap_or_default());
            }
            Ok::<_, hyper::Error>((status, bytes))
        };
        let response = tokio::time::timeout(TIMEOUT, asked).await.map_err(failed)?;
        response.map_err(failed)
    }
}
