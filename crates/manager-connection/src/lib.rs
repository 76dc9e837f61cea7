//! The connection from a daemon to its manager, which the daemon reopens whenever it is lost. Nodes and endpoints need
//! no inbound access.

use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::api::{ErrorBody, ManagerAddress};
use dayfly_protocol::version::{VERSION_HEADER, check_version, own_version};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Milliseconds without an acknowledgement after which the manager's host counts as lost.
const SILENT_MS: u32 = 10_000;
/// First wait between two attempts to connect. Waits double up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(10);

/// A WebSocket to a manager.
pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Why a connection to a manager failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager's address is malformed.
    #[error("`{0}` is not a manager's address; give https://HOST:PORT")]
    Address(String),
    /// The certificate authority is not a PEM certificate.
    #[error("the certificate authority given for the manager is not a PEM certificate")]
    Authority,
    /// The manager does not accept the bearer token.
    #[error("the manager does not accept the credential")]
    Unauthorized,
    /// The manager refused the request.
    #[error("the manager refused: {0}")]
    Refused(String),
    /// The manager cannot be reached.
    #[error("the manager cannot be reached: {0}")]
    Unreachable(#[from] std::io::Error),
    /// The connection failed, or the manager violated the protocol.
    #[error("the connection broke: {0}")]
    Broken(#[from] tungstenite::Error),
    /// TLS cannot be configured.
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Splits `https://host:port` into host and port.
fn host_and_port(url: &str) -> Result<(&str, u16), Error> {
    let wrong = || Error::Address(url.into());
    let rest = url.strip_prefix("https://").ok_or_else(wrong)?.trim_end_matches('/');
    let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host, port.parse().map_err(|_| wrong())?))
}

/// Opens a WebSocket at `path` of a manager. `most_bytes` limits the size of a message.
pub async fn connect(to: &ManagerAddress, path: &str, bearer: &str, most_bytes: usize) -> Result<Socket, Error> {
    let (host, port) = host_and_port(&to.manager)?;
    let authority = CertificateDer::from_pem_slice(to.ca_pem.as_bytes()).map_err(|_| Error::Authority)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority).map_err(|_| Error::Authority)?;
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_string()).map_err(|_| Error::Address(to.manager.clone()))?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    // A host that does not acknowledge data counts as lost, and another manager may be reachable.
    rustix::net::sockopt::set_tcp_user_timeout(&stream, SILENT_MS).map_err(std::io::Error::from)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let address = format!(
        "wss{}{path}",
        to.manager.trim_end_matches('/').trim_start_matches("https")
    );
    let mut request = address.into_client_request()?;
    let bearer = HeaderValue::from_str(&format!("Bearer {bearer}")).map_err(|_| Error::Unauthorized)?;
    request.headers_mut().insert("authorization", bearer);
    if let Ok(version) = HeaderValue::from_str(&own_version()) {
        request.headers_mut().insert(VERSION_HEADER, version);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(most_bytes))
        .max_frame_size(Some(most_bytes));
    match tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await {
        Ok((socket, response)) => {
            if let Some(theirs) = response.headers().get(VERSION_HEADER) {
                let manager = format!("the manager at {}", to.manager);
                check_version(theirs.to_str().unwrap_or_default(), &manager, "this daemon")
                    .map_err(|failure| Error::Refused(failure.to_string()))?;
            }
            Ok(socket)
        }
        Err(tungstenite::Error::Http(response)) if response.status().as_u16() == 401 => Err(Error::Unauthorized),
        Err(tungstenite::Error::Http(response)) => {
            let body = response.body().as_deref().unwrap_or_default();
            if let Ok(told) = serde_json::from_slice::<ErrorBody>(body) {
                return Err(Error::Refused(told.error.to_string()));
            }
            Err(Error::Refused(match String::from_utf8_lossy(body).trim() {
                "" => response.status().to_string(),
                text => text.to_owned(),
            }))
        }
        Err(error) => Err(error.into()),
    }
}

/// The waits between attempts to connect. Each is twice the previous one, up to a bound, and has a random part, so that
/// not all daemons reconnect to a restarted manager at the same time.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST_WAIT)
    }
}

impl Backoff {
    /// Returns the time to wait before the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        let mut byte = [0];
        // Without randomness, do not spread the waits.
        let _ = getrandom::fill(&mut byte);
        let wait = self.0 + self.0 * u32::from(byte[0]) / 512;
        self.0 = (self.0 * 2).min(LAST_WAIT);
        wait
    }

    /// Resets the wait after a successful attempt.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_address_without_host_or_port_is_refused() {
        assert_eq!(host_and_port("https://a.b:1").expect("an address"), ("a.b", 1));
        assert_eq!(host_and_port("https://[::1]:7070/").expect("an address"), ("::1", 7070));
        for wrong in ["a.b:1", "https://a.b", "https://a.b:x", "http://a.b:1"] {
            assert!(matches!(host_and_port(wrong), Err(Error::Address(_))), "{wrong}");
        }
    }

    #[test]
    fn waits_double_to_a_bound_until_reset() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..12).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] < FIRST_WAIT * 2 && waits[11] >= LAST_WAIT && waits[11] < LAST_WAIT * 2);
        backoff.reset();
        assert!(backoff.next_wait() < FIRST_WAIT * 2);
    }
}
