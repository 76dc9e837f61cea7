//! The bearer tokens that are valid now, and a signal for everything that was opened with one.
//!
//! The connections of a token end when its entry is removed, for whatever reason: revocation, expiry, a new token of
//! the same name, or a change at another manager. No other code has to close them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::pending;

use dayfly_store::{Bearer, BearerKind};
use futures_util::FutureExt;
use tokio::sync::watch;

/// Prefix of the names of tokens for tenants of another manager. They are removed when they have expired.
pub const GUEST: &str = "guest ";
/// Recent replacements that are remembered for requests that began with a replaced token. Such a request takes seconds,
/// and each replacement a synced write.
const MAX_REPLACEMENTS: usize = 4_096;

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// Every valid token, by its hash.
#[derive(Default)]
pub struct TokenRegistry {
    by_hash: HashMap<TokenHash, Entry>,
    /// Replaced or removed tokens, each with the token that its leases end with instead, in the order of the changes.
    replacements: VecDeque<(TokenHash, Option<TokenHash>)>,
}

struct Entry {
    bearer: Bearer,
    /// Closed when the entry is dropped.
    alive: watch::Sender<()>,
}

/// A signal that lives as long as a token is valid, and the session of a browser that uses it.
#[derive(Debug, Clone)]
pub struct Validity {
    token: watch::Receiver<()>,
    session: Option<watch::Receiver<()>>,
}

impl Validity {
    /// Returns a signal that also ends with a session.
    pub fn within(self, session: Self) -> Self {
        Self {
            session: Some(session.token),
            ..self
        }
    }

    /// Returns when the token was revoked, was replaced or has expired, or when the session has ended. Cancel safe.
    pub async fn ended(&mut self) {
        let session = self
            .session
            .as_mut()
            .map_or_else(|| pending().boxed(), |session| closed(session).boxed());
        tokio::select! {
            () = closed(&mut self.token) => (),
            () = session => (),
        }
    }
}

/// Returns once the sender is dropped. Nothing is ever sent.
async fn closed(alive: &mut watch::Receiver<()>) {
    while alive.changed().await.is_ok() {}
}

impl TokenRegistry {
    /// Returns a registry of these tokens.
    pub fn of(bearers: Vec<Bearer>) -> Self {
        let mut all = Self::default();
        bearers.into_iter().for_each(|bearer| all.insert(bearer));
        all
    }

    /// Returns the token with this hash.
    pub fn get(&self, hash: &TokenHash) -> Option<&Bearer> {
        self.by_hash.get(hash).map(|entry| &entry.bearer)
    }

    /// Returns a signal for the end of this token, or `None` if it is not valid.
    pub fn validity(&self, hash: &TokenHash) -> Option<Validity> {
        self.by_hash.get(hash).map(|entry| Validity {
            token: entry.alive.subscribe(),
            session: None,
        })
    }

    /// Iterates over all tokens.
    pub fn values(&self) -> impl Iterator<Item = &Bearer> {
        self.by_hash.values().map(|entry| &entry.bearer)
    }

    /// Adds a token. As in the store, a client's or an endpoint's replaces its tenant's earlier one of the same name,
    /// and a node's replaces the node's earlier one. Returns the hashes of the replaced tokens.
    pub fn keep(&mut self, bearer: Bearer) -> Vec<TokenHash> {
        let is_replaced = |other: &Bearer| match bearer.kind {
            BearerKind::Client(_) | BearerKind::Endpoint => {
                other.kind.is_same_kind(bearer.kind) && (other.tenant, &other.name) == (bearer.tenant, &bearer.name)
            }
            BearerKind::Node => other.kind == BearerKind::Node && other.node == bearer.node,
            BearerKind::Join | BearerKind::Session => false,
        };
        let replaced = self
            .values()
            .filter(|other| other.hash != bearer.hash && is_replaced(other));
        let replaced: Vec<TokenHash> = replaced.map(|other| other.hash).collect();
        for hash in &replaced {
            self.remove(hash);
        }
        self.insert(bearer);
        replaced
    }

    /// Removes a token. Everything that was opened with it ends.
    pub fn remove(&mut self, hash: &TokenHash) -> Option<Bearer> {
        self.by_hash.remove(hash).map(|entry| entry.bearer)
    }

    /// Removes all tokens except those that `is_kept` accepts.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Bearer) -> bool) {
        self.by_hash.retain(|_, entry| is_kept(&entry.bearer));
    }

    /// Replaces the tokens that are in the store with these. Others remain.
    pub fn replace_stored(&mut self, stored: Vec<Bearer>) {
        let hashes: HashSet<TokenHash> = stored.iter().map(|bearer| bearer.hash).collect();
        self.retain(|bearer| !is_stored(bearer) || hashes.contains(&bearer.hash));
        stored.into_iter().for_each(|bearer| self.insert(bearer));
    }

    /// Keeps what was opened with a token that is known already.
    fn insert(&mut self, bearer: Bearer) {
        match self.by_hash.get_mut(&bearer.hash) {
            Some(entry) => entry.bearer = bearer,
            None => {
                let alive = watch::channel(()).0;
                self.by_hash.insert(bearer.hash, Entry { bearer, alive });
            }
        }
    }

    /// Records that leases of one token end with another one, or with none.
    pub fn record_replacement(&mut self, from: TokenHash, to: Option<TokenHash>) {
        self.replacements.push_back((from, to));
        if self.replacements.len() > MAX_REPLACEMENTS {
            self.replacements.pop_front();
        }
    }

    /// Returns the token that a lease is bound to if it is granted or renewed now with this one: the one that replaced
    /// it meanwhile, or none if it was revoked without its leases.
    pub fn current(&self, bearer: Option<TokenHash>) -> Option<TokenHash> {
        let mut hash = bearer?;
        if self.get(&hash).is_some() {
            return Some(hash);
        }
        for (from, to) in &self.replacements {
            if *from == hash {
                hash = (*to)?;
            }
        }
        Some(hash)
    }

    /// Whether leases of this token must end.
    pub fn is_invalid(&self, bearer: Option<TokenHash>) -> bool {
        bearer.is_some_and(|hash| self.get(&hash).is_none())
    }
}

/// Whether a token is in the store. Tokens of dispatchers in this process and of guests are not: they end with the
/// process.
pub fn is_stored(bearer: &Bearer) -> bool {
    !matches!(bearer.kind, BearerKind::Client(_)) || !(bearer.name.is_empty() || bearer.name.starts_with(GUEST))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dayfly_protocol::ids::TenantId;
    use dayfly_protocol::tenancy::Role;

    use super::*;

    fn client(hash: u8, name: &str) -> Bearer {
        Bearer {
            hash: [hash; 32],
            kind: BearerKind::Client(Role::User),
            tenant: TenantId([1; 16]),
            name: name.into(),
            read_only: false,
            node: None,
            expires_at_ms: 1,
        }
    }

    async fn has_ended(validity: &mut Validity) -> bool {
        tokio::time::timeout(Duration::ZERO, validity.ended()).await.is_ok()
    }

    #[tokio::test]
    async fn validity_ends_with_its_own_token_only() {
        let mut all = TokenRegistry::of(vec![client(1, "laptop"), client(2, "cluster"), client(3, "phone")]);
        let mut opened = [1, 2, 3].map(|hash| all.validity(&[hash; 32]).unwrap());
        assert!(!has_ended(&mut opened[0]).await);
        assert_eq!(all.keep(client(4, "laptop")), [[1; 32]]);
        all.retain(|bearer| bearer.name != "cluster");
        assert!(has_ended(&mut opened[0]).await);
        assert!(has_ended(&mut opened[1]).await);
        assert!(!has_ended(&mut opened[2]).await);
        assert!(all.validity(&[1; 32]).is_none());
    }

    #[tokio::test]
    async fn token_that_is_added_again_stays_valid() {
        let mut all = TokenRegistry::of(vec![client(1, "laptop"), client(2, "")]);
        let mut opened = [1, 2].map(|hash| all.validity(&[hash; 32]).unwrap());
        assert!(all.keep(client(1, "laptop")).is_empty());
        all.replace_stored(vec![client(1, "laptop")]);
        assert!(!has_ended(&mut opened[0]).await);
        assert!(
            !has_ended(&mut opened[1]).await,
            "the store does not have a dispatcher's"
        );
        all.replace_stored(Vec::new());
        assert!(has_ended(&mut opened[0]).await);
    }
}
