//! TLS 1.3 between a client and a worker or node, with raw public keys. Each side knows the only key that it accepts
//! from the lease's token, the grant and the node's signed verdict, so no certificates are involved. A side that
//! accepts any key queries the peer's key afterwards.

use std::sync::Arc;

use dayfly_protocol::ids::PublicKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnection};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

/// DER of a SubjectPublicKeyInfo up to the 32 bytes of an Ed25519 key (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], &key.0].concat()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certified(provider: &CryptoProvider, pkcs8: &[u8], public: &PublicKey) -> Result<Arc<CertifiedKey>, Error> {
    let key = provider
        .key_provider
        .load_private_key(PrivatePkcs8KeyDer::from(pkcs8.to_vec()).into())?;
    Ok(Arc::new(CertifiedKey::new(
        vec![CertificateDer::from(spki(public))],
        key,
    )))
}

/// Accepts exactly one key, or any peer that proves possession of the key that it presents.
#[derive(Debug)]
struct Accepted {
    only: Option<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl Accepted {
    fn new(only: Option<&PublicKey>, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            only: only.map(spki),
            provider: provider.clone(),
        }
    }

    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        let accepted = match &self.only {
            Some(spki) => presented.as_ref() == spki,
            None => key_in(presented).is_some(),
        };
        if accepted {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    /// Verifies with the key that passed [`Self::check`].
    fn verify(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(presented.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.provider.signature_verification_algorithms)
    }
}

/// Extracts the Ed25519 key from a SubjectPublicKeyInfo.
fn key_in(presented: &CertificateDer<'_>) -> Option<PublicKey> {
    let key = presented.as_ref().strip_prefix(&SPKI_PREFIX)?;
    Some(PublicKey(key.try_into().ok()?))
}

/// Returns the peer's key after the handshake, from its certificates as rustls returns them.
pub fn presented(certificates: Option<&[CertificateDer<'_>]>) -> Option<PublicKey> {
    key_in(certificates?.first()?)
}

impl ServerCertVerifier for Accepted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("raw public keys need TLS 1.3".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Accepted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("raw public keys need TLS 1.3".into()))
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A key pair of one side.
#[derive(Clone)]
pub struct Identity {
    /// PKCS#8 DER of the private key.
    pub pkcs8: Vec<u8>,
    /// The public key.
    pub public: PublicKey,
}

/// Returns the configuration of a client that accepts only `peer`, or any server if it is `None`.
fn client_config(identity: &Identity, peer: Option<&PublicKey>) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let own = certified(&provider, &identity.pkcs8, &identity.public)?;
    let only = Accepted::new(peer, &provider);
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(only))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    Ok(Arc::new(config))
}

/// Returns the configuration of a worker or node that accepts only the client with the key `holder`.
pub fn server_config(identity: &Identity, holder: &PublicKey) -> Result<Arc<ServerConfig>, Error> {
    config_of_server(identity, Some(holder))
}

/// Returns the configuration of a server that accepts any key. [`presented`] returns the key afterwards.
pub fn server_config_for_all(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    config_of_server(identity, None)
}

fn config_of_server(identity: &Identity, client: Option<&PublicKey>) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let own = certified(&provider, &identity.pkcs8, &identity.public)?;
    let only = Accepted::new(client, &provider);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(only))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    // Disable session resumption: a connection has one handshake.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the client's half of a session with the worker or node that has the key `peer`.
pub fn client(identity: &Identity, peer: &PublicKey) -> Result<ClientConnection, Error> {
    client_session(identity, Some(peer))
}

/// Returns the client's half of a session with any server. [`presented`] returns the server's key afterwards.
pub fn client_of_any(identity: &Identity) -> Result<ClientConnection, Error> {
    client_session(identity, None)
}

fn client_session(identity: &Identity, peer: Option<&PublicKey>) -> Result<ClientConnection, Error> {
    // A raw key has no name. This placeholder cannot be mistaken for a real one.
    let name = ServerName::try_from("worker.dayfly.invalid").map_err(|_| Error::General("name".into()))?;
    ClientConnection::new(client_config(identity, peer)?, name)
}

/// Returns the worker's half of a session with the client that has the key `holder`.
pub fn worker(identity: &Identity, holder: &PublicKey) -> Result<ServerConnection, Error> {
    ServerConnection::new(server_config(identity, holder)?)
}

impl Identity {
    /// Parses a PKCS#8 Ed25519 private key.
    pub fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, Error> {
        let key = provider()
            .key_provider
            .load_private_key(PrivatePkcs8KeyDer::from(pkcs8.clone()).into())?;
        let malformed = || Error::General("not an Ed25519 private key in PKCS#8".into());
        let spki = key.public_key().ok_or_else(malformed)?;
        let public = spki.as_ref().strip_prefix(&SPKI_PREFIX).ok_or_else(malformed)?;
        Ok(Self {
            public: PublicKey(public.try_into().map_err(|_| malformed())?),
            pkcs8,
        })
    }
}
