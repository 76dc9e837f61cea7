//! Ed25519 keys, which sign tokens, hellos and verdicts and authenticate peers in TLS.

use std::fmt;

use dayfly_protocol::ids::{KeyId, PublicKey};
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signature, Signer, VerifyingKey};
use sha2::{Digest, Sha256};

/// DER of a PKCS#8 version 1 `PrivateKeyInfo` up to the seed (RFC 8410, section 7). Version 1, which omits the public
/// key, is readable by every TLS library.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// DER of a `SubjectPublicKeyInfo` up to the key (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Bytes of a public key in TLS.
pub const SPKI_BYTES: usize = SPKI_PREFIX.len() + 32;
/// Bytes of a private key in PKCS#8.
pub const PKCS8_BYTES: usize = PKCS8_PREFIX.len() + 32;

/// Bytes do not encode the expected key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not PKCS#8 of an Ed25519 key.
    #[error("not an Ed25519 private key in PKCS#8; make a new one or restore the file")]
    Pkcs8,
    /// Not the SubjectPublicKeyInfo of an Ed25519 key.
    #[error("not an Ed25519 public key in SubjectPublicKeyInfo form; raw public keys must be Ed25519")]
    Spki,
}

/// A private key. Its bytes are erased from memory when it is dropped, and never printed.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Derives the key from 32 random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// Returns the secret bytes. Store them with mode 0600.
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Parses DER written by [`SigningKey::to_pkcs8`] or another tool.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        ed25519_dalek::SigningKey::from_pkcs8_der(der)
            .map(Self)
            .map_err(|_| KeyError::Pkcs8)
    }

    /// Returns PKCS#8 in DER, for TLS libraries.
    pub fn to_pkcs8(&self) -> Vec<u8> {
        [&PKCS8_PREFIX[..], &self.0.to_bytes()].concat()
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Returns the id of the public key.
    pub fn id(&self) -> KeyId {
        key_id(&self.public())
    }

    /// Returns the Ed25519 signature of `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.id())
    }
}

/// First eight bytes of the SHA-256 of a public key.
pub fn key_id(key: &PublicKey) -> KeyId {
    let digest = Sha256::digest(key.0);
    let mut id = [0; 8];
    id.copy_from_slice(&digest[..8]);
    KeyId(id)
}

/// Whether `key` signed exactly these bytes. Rejects malleable signatures and keys of small order.
pub fn verify(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> bool {
    VerifyingKey::from_bytes(&key.0).is_ok_and(|verifying| {
        verifying
            .verify_strict(message, &Signature::from_bytes(signature))
            .is_ok()
    })
}

/// Returns a public key as DER, as TLS sends it in place of a certificate (RFC 7250).
pub fn to_spki(key: &PublicKey) -> [u8; SPKI_BYTES] {
    let mut der = [0; SPKI_BYTES];
    der[..SPKI_PREFIX.len()].copy_from_slice(&SPKI_PREFIX);
    der[SPKI_PREFIX.len()..].copy_from_slice(&key.0);
    der
}

/// Parses the DER of [`to_spki`].
pub fn from_spki(der: &[u8]) -> Result<PublicKey, KeyError> {
    let key = der.strip_prefix(&SPKI_PREFIX[..]).ok_or(KeyError::Spki)?;
    Ok(PublicKey(key.try_into().map_err(|_| KeyError::Spki)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_pkcs8_encoding_and_decoding() {
        let key = SigningKey::from_seed([7; 32]);
        assert_eq!(key.to_pkcs8().len(), PKCS8_BYTES);
        assert_eq!(SigningKey::from_pkcs8(&key.to_pkcs8()).unwrap().seed(), key.seed());
    }

    #[test]
    fn public_key_survives_spki_encoding_and_decoding() {
        let key = SigningKey::from_seed([8; 32]).public();
        assert_eq!(from_spki(&to_spki(&key)), Ok(key));
        assert_eq!(from_spki(&to_spki(&key)[..43]), Err(KeyError::Spki));
        assert_eq!(from_spki(&[0; 44]), Err(KeyError::Spki));
    }

    #[test]
    fn garbage_is_refused_as_a_private_key() {
        assert_eq!(SigningKey::from_pkcs8(b"garbage").unwrap_err(), KeyError::Pkcs8);
        assert_eq!(SigningKey::from_pkcs8(&[]).unwrap_err(), KeyError::Pkcs8);
    }

    #[test]
    fn debug_output_shows_the_id_without_the_key() {
        let key = SigningKey::from_seed([9; 32]);
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", key.id()));
    }

    #[test]
    fn key_of_small_order_verifies_nothing() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert!(!verify(&PublicKey(identity), b"anything", &[0; 64]));
    }
}
