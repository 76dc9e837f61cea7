//! One connection to the database: its address, its encryption, and the settings of its session.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row, RowStream, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::faults::{Fault, fault};
use super::schema;
use crate::StoreError;

/// Time limit for connecting and setting up a session.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// A connection on which nothing is acknowledged for this long counts as lost.
const SILENT: Duration = Duration::from_secs(5);

/// Settings of every session. A manager that stops in the middle of a transaction must not hold its locks for long.
const SESSION: &str = "SET search_path = dayfly; SET statement_timeout = '8s'; SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '5s'; SET client_min_messages = warning";

/// Address of the database.
#[derive(Clone)]
pub struct Address {
    config: Config,
    tls: Option<MakeRustlsConnect>,
}

impl Address {
    /// Parses `postgresql://...`. Clear text is allowed only for Unix sockets and the loopback interface. For other
    /// hosts, `sslrootcert=FILE` names the certificate authority of the server.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        // An error message must not contain the password.
        let unusable = |why: String| StoreError::Address {
            address: without_password(url),
            why,
        };
        let (url, root) = take_parameter(url, "sslrootcert");
        let mut config: Config = url
            .parse()
            .map_err(|error: Error| unusable(format!("{error}; give postgresql://USER@HOST/DATABASE")))?;
        if config.get_hosts().is_empty() {
            return Err(unusable(
                "it names no host; give postgresql://USER@HOST/DATABASE".into(),
            ));
        }
        config
            .application_name("dayfly")
            .connect_timeout(CONNECT_DEADLINE)
            .tcp_user_timeout(SILENT)
            .keepalives_idle(SILENT)
            // Of several servers, choose the one that accepts writes.
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        let is_remote = config.get_hosts().iter().any(is_remote);
        if !is_remote && config.get_ssl_mode() != SslMode::Require {
            config.ssl_mode(SslMode::Disable);
            return Ok(Self { config, tls: None });
        }
        let root = root.ok_or_else(|| {
            unusable(
                "passwords and tokens would travel in clear; add sslrootcert=FILE with the authority that vouches for the \
                 server, such as /etc/ssl/certs/ca-certificates.crt"
                    .into(),
            )
        })?;
        config.ssl_mode(SslMode::Require);
        Ok(Self {
            config,
            tls: Some(tls(Path::new(&root)).map_err(unusable)?),
        })
    }

    /// Returns the address for display, without the password.
    pub fn describe(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        format!(
            "{} at {}",
            self.config.get_dbname().unwrap_or("the database"),
            hosts.join(",")
        )
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "(not a URL)".into();
    };
    let (authority, _) = rest.split_once('?').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

fn is_remote(host: &Host) -> bool {
    match host {
        Host::Unix(_) => false,
        Host::Tcp(name) => {
            let is_loopback = |ip: std::net::IpAddr| ip.is_loopback();
            name != "localhost" && !name.parse().is_ok_and(is_loopback)
        }
    }
}

/// Returns the URL without the parameter, and the parameter's value.
fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.into(), None);
    };
    let mut taken = None;
    let rest: Vec<&str> = query
        .split('&')
        .filter(|part| match part.split_once('=') {
            Some((key, value)) if key == name => {
                taken = Some(percent_decoded(value));
                false
            }
            _ => !part.is_empty(),
        })
        .collect();
    let query = if rest.is_empty() {
        String::new()
    } else {
        format!("?{}", rest.join("&"))
    };
    (format!("{base}{query}"), taken)
}

/// Decodes percent-encoding.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let mut byte = [0];
        match after.get(..2).map(|digits| hex::decode_to_slice(digits, &mut byte)) {
            Some(Ok(())) if *first == b'%' => {
                bytes.push(byte[0]);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tls(root: &Path) -> Result<MakeRustlsConnect, String> {
    let unusable = |error: String| format!("{} holds no certificate authority: {error}", root.display());
    let mut roots = rustls::RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(root).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        // A system's bundle may contain certificates that rustls rejects. The others suffice.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(unusable("it is empty".into()));
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// An open session. Each statement is prepared once.
pub struct Session {
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
}

/// Receives the notifications of the other managers.
pub type Notifications = mpsc::UnboundedSender<String>;

impl Session {
    /// Opens a session, after which the tables have this release's schema.
    pub async fn open(address: &Address, notifications: Option<Notifications>) -> Result<Self, Fault> {
        let opening = async {
            let client = match &address.tls {
                None => {
                    let (client, connection) = address.config.connect(NoTls).await.map_err(|error| fault(&error))?;
                    drive(connection, notifications);
                    client
                }
                Some(tls) => {
                    let connected = address.config.connect(tls.clone()).await;
                    let (client, connection) = connected.map_err(|error| fault(&error))?;
                    drive(connection, notifications);
                    client
                }
            };
            schema::bring_up_to_date(&client).await?;
            client.batch_execute(SESSION).await.map_err(|error| fault(&error))?;
            Ok(Self {
                client,
                prepared: Mutex::default(),
            })
        };
        match tokio::time::timeout(CONNECT_DEADLINE * 2, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Fault::Lost("it does not respond".into())),
        }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns a prepared statement.
    pub async fn statement(&self, sql: &'static str) -> Result<Statement, Error> {
        let known = self.prepared().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared().insert(sql, statement.clone());
        Ok(statement)
    }

    fn prepared(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        // Ignore poisoning: there is only one insertion at a time, so the map is consistent.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rows of a statement.
    pub async fn query(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let statement = self.statement(sql).await?;
        self.client.query(&statement, params).await
    }

    /// Returns the rows of a statement without parameters as a stream.
    pub async fn stream(&self, sql: &'static str) -> Result<RowStream, Error> {
        let statement = self.statement(sql).await?;
        let none: [&(dyn ToSql + Sync); 0] = [];
        self.client.query_raw(&statement, none).await
    }

    /// Returns the number of rows that a statement changed.
    pub async fn execute(&self, sql: &'static str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        let statement = self.statement(sql).await?;
        self.client.execute(&statement, params).await
    }

    /// Executes statements without parameters.
    pub async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }
}

/// Drives a connection until it ends.
fn drive<S, T>(mut connection: Connection<S, T>, notifications: Option<Notifications>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    if let Some(notifications) = &notifications {
                        // The receiver may be closed. The connection then ends with its client.
                        let _ = notifications.send(notification.payload().to_owned());
                    }
                }
                Ok(_) => {}
                // The caller gets the error, and the next query opens another connection.
                Err(error) => {
                    tracing::debug!(%error, "a connection to the database ended");
                    return;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_text_is_refused_beyond_the_loopback() {
        for near in [
            "postgresql://a@localhost/dayfly",
            "postgresql://a@127.0.0.1:5433/dayfly",
            "postgresql://a@[::1]/dayfly",
            "postgresql:///dayfly?host=/run/postgresql",
        ] {
            assert!(
                Address::parse(near).is_ok_and(|address| address.tls.is_none()),
                "{near}"
            );
        }
        for far in [
            "postgresql://a:secret@db.example.org/dayfly",
            "postgresql://a:secret@10.0.0.7/dayfly?sslmode=disable",
        ] {
            let error = Address::parse(far).err().expect("no authority is named").to_string();
            assert!(error.contains("sslrootcert") && !error.contains("secret"), "{error}");
        }
        let error = Address::parse("postgresql://a:secret@h/dayfly?sslrootcert=/no%20such").err();
        let error = error.expect("no such file").to_string();
        assert!(error.contains("/no such") && !error.contains("secret"), "{error}");
        for nonsense in ["", "dayfly", "postgresql://", "postgresql://h/d?nonsense=1"] {
            assert!(
                matches!(Address::parse(nonsense), Err(StoreError::Address { .. })),
                "{nonsense}"
            );
        }
    }

    #[test]
    fn parameter_is_removed_from_address() {
        let (url, taken) = take_parameter("postgresql://h/d?a=1&sslrootcert=/x%2Fy&b=2", "sslrootcert");
        assert_eq!(
            (url.as_str(), taken.as_deref()),
            ("postgresql://h/d?a=1&b=2", Some("/x/y"))
        );
        assert_eq!(
            take_parameter("postgresql://h/d", "a"),
            ("postgresql://h/d".into(), None)
        );
    }
}
