//! Keys derived from a group's secret.
//!
//! The secret itself never leaves a rank. HKDF (RFC 5869) derives two keys from it. With the signing key a rank shows
//! the rendezvous in TLS that it belongs to the group; the rendezvous stores only the public key, which admits no one.
//! The HMAC key is used among ranks. The rendezvous never learns it, so it can neither change what a rank states about
//! itself nor intercept a connection.

use dayfly_fabric::tls::Identity;
use dayfly_lease::SigningKey;
use dayfly_protocol::error::{Code, Failure};
use ring::{hkdf, hmac};

/// Minimum length of a secret in bytes; a shorter one could be guessed.
const MIN_SECRET_BYTES: usize = 16;
/// Length of an HMAC in bytes.
pub const MAC_BYTES: usize = 32;

/// The keys of a group.
#[derive(Clone)]
pub struct GroupKeys {
    member: Identity,
    among: hmac::Key,
}

impl std::fmt::Debug for GroupKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupKeys")
            .field("member", &self.member.public)
            .finish_non_exhaustive()
    }
}

struct Bytes(usize);

impl hkdf::KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive(secret: &hkdf::Prk, info: &[&[u8]]) -> Result<[u8; 32], Failure> {
    let mut key = [0; 32];
    secret
        .expand(info, Bytes(key.len()))
        .and_then(|bytes| bytes.fill(&mut key))
        .map_err(|_| Failure::new(Code::Internal, "a key of the group could not be derived"))?;
    Ok(key)
}

/// Random bytes from the system.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Code::Internal, format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}

pub fn new_identity() -> Result<Identity, Failure> {
    Ok(identity(&SigningKey::from_seed(random()?)))
}

fn identity(key: &SigningKey) -> Identity {
    Identity {
        pkcs8: key.to_pkcs8(),
        public: key.public(),
    }
}

/// The server's key pair.
#[cfg(feature = "server")]
pub(crate) fn identity_from(seed: [u8; 32]) -> Identity {
    identity(&SigningKey::from_seed(seed))
}

impl GroupKeys {
    /// Derives the keys of a run of a group. The secret must be random: anyone who can guess it is a member.
    pub fn new(name: &str, run: &str, secret: &[u8]) -> Result<Self, Failure> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "a group's secret has at least {MIN_SECRET_BYTES} random bytes; this one has {}",
                    secret.len()
                ),
            ));
        }
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, b"dayfly group 1").extract(secret);
        let run_name = (name.len() as u64).to_le_bytes();
        let member = derive(&secret, &[b"member", name.as_bytes()])?;
        let among = derive(&secret, &[b"among", &run_name, name.as_bytes(), run.as_bytes()])?;
        Ok(Self {
            member: identity(&SigningKey::from_seed(member)),
            among: hmac::Key::new(hmac::HMAC_SHA256, &among),
        })
    }

    /// The identity that a rank shows the rendezvous. It is equal for all ranks with the secret.
    pub fn member(&self) -> &Identity {
        &self.member
    }

    fn context(&self, label: &[u8], more: &[&[u8]]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.among);
        context.update(label);
        for part in more {
            context.update(part);
        }
        context
    }

    /// Binds a card to its rank, the group's size and the run.
    pub fn seal_card(&self, nonce: &[u8; 16], rank: u32, size: u32, card: &str) -> [u8; MAC_BYTES] {
        let (rank, size) = (rank.to_le_bytes(), size.to_le_bytes());
        tag(self.context(b"card", &[nonce, &rank, &size, card.as_bytes()]))
    }

    /// Proves knowledge of the secret to the other end of a connection, over the hellos of both ends. The proofs of the
    /// lower and the higher rank differ.
    pub fn proof<const N: usize>(&self, of_lower: bool, lower: &[u8; N], higher: &[u8; N]) -> [u8; MAC_BYTES] {
        let label = if of_lower { b"lower" } else { b"upper" };
        tag(self.context(label, &[lower, higher]))
    }

    /// Announces that this connection is the pair's choice.
    pub fn choice<const N: usize>(&self, lower: &[u8; N], higher: &[u8; N]) -> [u8; MAC_BYTES] {
        tag(self.context(b"chose", &[lower, higher]))
    }
}

fn tag(context: hmac::Context) -> [u8; MAC_BYTES] {
    let mut bytes = [0; MAC_BYTES];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

/// Whether two tags are equal, in constant time.
pub fn same_tag(ours: &[u8; MAC_BYTES], theirs: &[u8]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef";

    #[test]
    fn keys_depend_on_the_secret_alone() {
        let keys = GroupKeys::new("job", "1", SECRET).unwrap();
        let again = GroupKeys::new("job", "1", SECRET).unwrap();
        assert_eq!(keys.member().public, again.member().public);
        let card = |keys: &GroupKeys| keys.seal_card(&[1; 16], 2, 4, "card");
        assert!(same_tag(&card(&keys), &card(&again)));
        for other in [
            GroupKeys::new("job", "1", b"0123456789abcdeg").unwrap(),
            GroupKeys::new("jo", "b1", SECRET).unwrap(),
        ] {
            assert_ne!(keys.member().public, other.member().public);
            assert!(!same_tag(&card(&keys), &card(&other)));
        }
    }

    #[test]
    fn runs_share_the_rendezvous_key_only() {
        let first = GroupKeys::new("job", "1", SECRET).unwrap();
        let second = GroupKeys::new("job", "2", SECRET).unwrap();
        assert_eq!(first.member().public, second.member().public);
        assert_ne!(
            first.seal_card(&[1; 16], 2, 4, ""),
            second.seal_card(&[1; 16], 2, 4, "")
        );
    }

    #[test]
    fn card_is_bound_to_rank_size_and_run() {
        let keys = GroupKeys::new("job", "", SECRET).unwrap();
        let card = keys.seal_card(&[1; 16], 2, 4, "card");
        assert_ne!(card, keys.seal_card(&[2; 16], 2, 4, "card"));
        assert_ne!(card, keys.seal_card(&[1; 16], 3, 4, "card"));
        assert_ne!(card, keys.seal_card(&[1; 16], 2, 5, "card"));
        assert_ne!(card, keys.seal_card(&[1; 16], 2, 4, "other"));
    }

    #[test]
    fn short_secret_is_refused() {
        let failure = GroupKeys::new("job", "", b"hunter2").unwrap_err();
        assert_eq!(failure.code, Code::InvalidRequest);
    }
}
