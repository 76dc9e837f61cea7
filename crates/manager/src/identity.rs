//! The manager's keys: a certificate authority and a server certificate for TLS, and an Ed25519 key for tokens. They
//! are made at the first start and kept in the state directory with mode 0600.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use dayfly_lease::SigningKey;
use dayfly_sandbox::private_file;
use dayfly_store::system::random;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::error::Error;

const DAY_S: i64 = 24 * 3600;
/// Validity of the certificate authority: ten years, longer than that of a machine.
const CA_DAYS: i64 = 3_650;
/// Validity of the server certificate: two years. Common TLS clients accept at most 825 days.
const SERVER_DAYS: i64 = 730;
/// A start within this time before its expiry makes a new server certificate.
const RENEW_DAYS: i64 = 90;

/// Keys and certificates of one manager.
pub struct Identity {
    /// Signs tokens.
    pub signing: SigningKey,
    /// The certificate authority that clients and nodes trust.
    pub ca_pem: String,
    /// TLS configuration of the listener.
    pub tls: Arc<ServerConfig>,
}

/// Contents of a stored server certificate, so that it need not be parsed to check whether it is still suitable.
#[derive(Serialize, Deserialize, PartialEq)]
struct Issued {
    names: Vec<String>,
    until_s: i64,
}

/// Loads the identity from the state directory. Makes the parts that are missing.
pub fn load(state_dir: &Path, names: &[String]) -> Result<Identity, Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .map_err(|source| file(state_dir, source))?;
    let signing = signing_key(&state_dir.join("signing.p8"))?;
    let (ca_pem, ca_key) = authority(state_dir)?;
    let (chain, key) = server(state_dir, names, &ca_key)?;
    Ok(Identity {
        signing,
        tls: tls(state_dir, &chain, &key)?,
        ca_pem,
    })
}

fn signing_key(path: &Path) -> Result<SigningKey, Error> {
    if let Some(der) = read(path)? {
        return SigningKey::from_pkcs8(&der).map_err(|error| damaged(path, error));
    }
    let key = SigningKey::from_seed(random());
    write_private(path, &key.to_pkcs8())?;
    Ok(key)
}

fn authority(state_dir: &Path) -> Result<(String, KeyPair), Error> {
    let (cert_path, key_path) = (state_dir.join("ca.pem"), state_dir.join("ca.key"));
    if let (Some(cert), Some(key)) = (read_text(&cert_path)?, read_text(&key_path)?) {
        return Ok((
            cert,
            KeyPair::from_pem(&key).map_err(|error| damaged(&key_path, error))?,
        ));
    }
    let key = KeyPair::generate().map_err(certificate)?;
    let mut params = authority_params()?;
    let now_s = OffsetDateTime::now_utc().unix_timestamp();
    params.not_before = moment(now_s - DAY_S)?;
    params.not_after = moment(now_s + CA_DAYS * DAY_S)?;
    let cert = params.self_signed(&key).map_err(certificate)?.pem();
    // Write the certificate last: it marks the pair as complete.
    write_private(&key_path, key.serialize_pem().as_bytes())?;
    write_private(&cert_path, cert.as_bytes())?;
    Ok((cert, key))
}

fn authority_params() -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(Vec::new()).map_err(certificate)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "Dayfly certificate authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn server(state_dir: &Path, names: &[String], ca_key: &KeyPair) -> Result<(String, String), Error> {
    let paths = [
        state_dir.join("server.pem"),
        state_dir.join("server.key"),
        state_dir.join("server.json"),
    ];
    let [cert_path, key_path, issued_path] = &paths;
    let mut wanted: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).into();
    wanted.extend(
        names
            .iter()
            .filter(|name| !["localhost", "127.0.0.1", "::1"].contains(&name.as_str()))
            .cloned(),
    );
    let now_s = OffsetDateTime::now_utc().unix_timestamp();
    let kept = read(issued_path)?.and_then(|json| serde_json::from_slice::<Issued>(&json).ok());
    if kept.is_some_and(|kept| kept.names == wanted && kept.until_s > now_s + RENEW_DAYS * DAY_S)
        && let (Some(cert), Some(key)) = (read_text(cert_path)?, read_text(key_path)?)
    {
        return Ok((cert, key));
    }
    let mut params = CertificateParams::new(wanted.clone()).map_err(certificate)?;
    params.distinguished_name.push(DnType::CommonName, "Dayfly manager");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let until_s = now_s + SERVER_DAYS * DAY_S;
    params.not_before = moment(now_s - DAY_S)?;
    params.not_after = moment(until_s)?;
    let key = KeyPair::generate().map_err(certificate)?;
    // Signing needs the authority's name and key, not its certificate.
    let cert = params
        .signed_by(&key, &Issuer::new(authority_params()?, ca_key))
        .map_err(certificate)?
        .pem();
    let issued = serde_json::to_vec(&Issued { names: wanted, until_s }).map_err(|error| damaged(issued_path, error))?;
    write_private(key_path, key.serialize_pem().as_bytes())?;
    write_private(cert_path, cert.as_bytes())?;
    write_private(issued_path, &issued)?;
    Ok((cert, key.serialize_pem()))
}

fn tls(state_dir: &Path, chain: &str, key: &str) -> Result<Arc<ServerConfig>, Error> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| damaged(&state_dir.join("server.pem"), error))?;
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| damaged(&state_dir.join("server.key"), error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| Error::Certificate(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn moment(unix_s: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(unix_s).map_err(|error| Error::Certificate(error.to_string()))
}

fn certificate(error: rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn file(path: &Path, source: std::io::Error) -> Error {
    Error::File {
        path: path.to_path_buf(),
        source,
    }
}

fn damaged(path: &Path, why: impl ToString) -> Error {
    Error::Damaged {
        path: path.to_path_buf(),
        why: why.to_string(),
    }
}

/// Returns the file's contents, or `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file(path, source)),
    }
}

fn read_text(path: &Path) -> Result<Option<String>, Error> {
    read(path)?
        .map(|bytes| String::from_utf8(bytes).map_err(|error| damaged(path, error)))
        .transpose()
}

/// Writes a file with mode 0600, atomically, even if power fails.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    private_file::write(path, bytes).map_err(|source| file(path, source))
}
