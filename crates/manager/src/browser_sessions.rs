//! Sessions of browsers (`impl Control`): the tokens that their cookies stand for.
//!
//! A cookie is 256 random bits. From them come the key of the session's record and the key that encrypts the token in
//! that record. So the cookie contains no token, and the store contains neither: one is useless without the other. The
//! record is among the bearers, so a session outlives a restart, every manager over one database accepts it, and it is
//! void everywhere once its record is deleted. The token decides about everything else: a session permits nothing that
//! its token does not.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::tenancy::TokenStatus;
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Bearer, BearerKind, RevokedLeases};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

use crate::cluster::millis;
use crate::control::Control;
use crate::token_registry::{TokenHash, Validity};

/// Longest life of a session. A browser asks for the token again after that.
const MAX_SESSION_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Sessions of one tenant. A further one ends the one that expires first.
const MAX_SESSIONS: usize = 1_000;

/// What follows from a cookie.
struct Keys {
    /// Key of the record. No bearer token has it: tokens are hashed otherwise.
    record: TokenHash,
    /// Encrypts one text, once.
    text: [u8; 32],
}

impl Keys {
    fn of(secret: &[u8; 32]) -> Option<Self> {
        let derived = Salt::new(HKDF_SHA256, b"dayfly session of a browser").extract(secret);
        let key = |purpose: &[u8]| {
            let mut key = [0; 32];
            derived.expand(&[purpose], HKDF_SHA256).ok()?.fill(&mut key).ok()?;
            Some(key)
        };
        Some(Self {
            record: key(b"record")?,
            text: key(b"text")?,
        })
    }

    /// Returns the keys of a cookie, or `None` if it has another form.
    fn of_cookie(cookie: &str) -> Option<Self> {
        let mut secret = [0; 32];
        hex::decode_to_slice(cookie, &mut secret).ok()?;
        Self::of(&secret)
    }

    fn cipher(&self) -> Option<(LessSafeKey, Nonce, Aad<TokenHash>)> {
        let key = UnboundKey::new(&AES_256_GCM, &self.text).ok()?;
        // The key is used for this one text.
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        Some((LessSafeKey::new(key), nonce, Aad::from(self.record)))
    }

    fn seal(&self, text: &str) -> Option<String> {
        let (key, nonce, aad) = self.cipher()?;
        let mut bytes = text.as_bytes().to_vec();
        key.seal_in_place_append_tag(nonce, aad, &mut bytes).ok()?;
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    fn open(&self, sealed: &str) -> Option<String> {
        let (key, nonce, aad) = self.cipher()?;
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let length = key.open_in_place(nonce, aad, &mut bytes).ok()?.len();
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
    }
}

impl Control {
    /// Makes a session that stands for this token. Returns the value of its cookie, and how long it lasts.
    pub async fn begin_session(
        self: &Arc<Self>,
        token: &str,
        status: &TokenStatus,
    ) -> Result<(String, Duration), Failure> {
        let failed = || Failure::new(Code::Internal, "a session's token cannot be encrypted; report this");
        let bearer = self.authenticate(token).ok_or_else(|| {
            let text = "the token was revoked or has expired; use another one";
            Failure::new(Code::Unauthorized, text)
        })?;
        let secret = random::<32>();
        let keys = Keys::of(&secret).ok_or_else(failed)?;
        let left = Duration::from_millis(status.expires_at_ms.saturating_sub(now_ms()));
        let life = left.min(MAX_SESSION_LIFE);
        let session = Bearer {
            hash: keys.record,
            kind: BearerKind::Session,
            tenant: bearer.tenant,
            name: keys.seal(token).ok_or_else(failed)?,
            read_only: bearer.read_only,
            node: None,
            expires_at_ms: now_ms().saturating_add(millis(life)),
        };
        for surplus in self.surplus_sessions(bearer.tenant) {
            self.delete_session(surplus).await?;
        }
        self.store().keep(session.clone()).wait().await?;
        self.keep_bearer(session);
        Ok((hex::encode(secret), life))
    }

    /// Returns the token that a session stands for, or `None` if there is no such session.
    pub fn token_of_session(&self, cookie: &str) -> Option<String> {
        let keys = Keys::of_cookie(cookie)?;
        keys.open(&self.session(&keys.record)?.name)
    }

    /// Returns a signal for the end of a session, or `None` if there is no such session.
    pub fn validity_of_session(&self, cookie: &str) -> Option<Validity> {
        let keys = Keys::of_cookie(cookie)?;
        self.session(&keys.record)?;
        self.validity(&keys.record)
    }

    /// Ends a session, if there is such a one.
    pub async fn forget_session(&self, cookie: &str) -> Result<(), Failure> {
        match Keys::of_cookie(cookie).and_then(|keys| self.session(&keys.record)) {
            Some(session) => self.delete_session(session.hash).await,
            None => Ok(()),
        }
    }

    fn session(&self, record: &TokenHash) -> Option<Bearer> {
        let session = self.cluster().tokens().get(record).cloned()?;
        (session.kind == BearerKind::Session && session.expires_at_ms > now_ms()).then_some(session)
    }

    async fn delete_session(&self, record: TokenHash) -> Result<(), Failure> {
        self.store().revoke(record, RevokedLeases::End).wait().await?;
        self.cluster().tokens_mut().remove(&record);
        Ok(())
    }

    /// Returns a tenant's sessions that exceed the limit together with a new one.
    fn surplus_sessions(&self, tenant: TenantId) -> Vec<TokenHash> {
        let cluster = self.cluster();
        let is_own = |bearer: &&Bearer| bearer.kind == BearerKind::Session && bearer.tenant == tenant;
        let own = cluster.tokens().values().filter(is_own);
        let mut own: Vec<(u64, TokenHash)> = own.map(|bearer| (bearer.expires_at_ms, bearer.hash)).collect();
        own.sort_unstable();
        let surplus = (own.len() + 1).saturating_sub(MAX_SESSIONS);
        own.into_iter().take(surplus).map(|(_, hash)| hash).collect()
    }
}

#[cfg(test)]
mod tests {
    use dayfly_store::hash;

    use super::*;

    #[test]
    fn only_its_cookie_opens_a_session() {
        let keys = Keys::of(&[1; 32]).unwrap();
        let sealed = keys.seal("token").unwrap();
        let cookie = hex::encode([1; 32]);
        assert_eq!(Keys::of_cookie(&cookie).unwrap().open(&sealed), Some("token".into()));
        assert_eq!(Keys::of(&[2; 32]).unwrap().open(&sealed), None);
        let mut changed = sealed.clone().into_bytes();
        changed[0] ^= 1;
        assert_eq!(keys.open(std::str::from_utf8(&changed).unwrap()), None);
        assert_eq!(keys.open(""), None);
        assert_eq!(keys.open(&"=".repeat(90)), None);
    }

    #[test]
    fn cookie_is_no_bearer_token() {
        let cookie = hex::encode([1; 32]);
        let keys = Keys::of_cookie(&cookie).unwrap();
        assert_ne!(hash(&cookie), keys.record);
        assert_ne!(keys.record, keys.text);
        for other in ["", "ab", &cookie[1..], &format!("{cookie}0"), "é"] {
            assert!(Keys::of_cookie(other).is_none());
        }
    }
}
