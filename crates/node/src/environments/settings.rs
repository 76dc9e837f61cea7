//! Configuration of environment builds.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where systems keep their trusted certificates.
const CERTIFICATE_STORES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Configuration of builds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of `uv`; `None` looks for it.
    pub uv: Option<PathBuf>,
    /// Limit for an index to accept a connection, or to send more bytes.
    pub index_timeout: Duration,
    /// Limit for the build of one environment, including all tries.
    pub limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            uv: None,
            index_timeout: Duration::from_secs(15),
            limit: Duration::from_secs(30 * 60),
        }
    }
}

impl Settings {
    /// Environment variables for `uv`, except those that the node's operator has set.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let timeout = self.index_timeout.as_secs().max(1).to_string();
        let mut variables = vec![
            ("UV_HTTP_TIMEOUT", timeout.clone()),
            ("UV_HTTP_CONNECT_TIMEOUT", timeout),
            // The node retries itself, and reports that meanwhile.
            ("UV_HTTP_RETRIES", "1".into()),
        ];
        if CERTIFICATE_STORES.iter().any(|store| Path::new(store).is_file()) {
            // A site's proxy may have a certificate that only this machine trusts. Older versions of `uv` use the
            // second name.
            variables.extend([("UV_SYSTEM_CERTS", "true".into()), ("UV_NATIVE_TLS", "true".into())]);
        }
        variables.retain(|(name, _)| std::env::var_os(name).is_none());
        variables
    }
}
