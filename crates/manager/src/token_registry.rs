//! The bearer tokens that are good now, and a signal for everything that one of them opened.
//!
//! A token's connections end with its entry here, however the entry goes: by revocation, by expiry, by a new token of the same
//! name, or because another manager says so. Nobody has to remember to close them.

use std::collections::HashMap;

use dayfly_store::{Bearer, BearerKind};
use tokio::sync::watch;

use crate::control::GUEST;

/// Every bearer that is good, by the SHA-256 of its token.
#[derive(Default)]
pub struct TokenRegistry(HashMap<[u8; 32], Known>);

struct Known {
    bearer: Bearer,
    /// Closed when the entry is dropped.
    alive: watch::Sender<()>,
}

/// Lives as long as a bearer is good.
#[derive(Debug, Clone)]
pub struct Validity(watch::Receiver<()>);

impl Validity {
    /// Returns when the bearer was revoked, was replaced or has expired. Safe to give up and call again.
    pub async fn ended(&mut self) {
        // Nothing is ever sent: the only news is that the sender is gone.
        while self.0.changed().await.is_ok() {}
    }
}

impl TokenRegistry {
    /// Those that a store remembers.
    pub fn of(bearers: Vec<Bearer>) -> Self {
        let mut all = Self::default();
        bearers.into_iter().for_each(|bearer| all.insert(bearer));
        all
    }

    /// The bearer with this hash.
    pub fn get(&self, hash: &[u8; 32]) -> Option<&Bearer> {
        self.0.get(hash).map(|known| &known.bearer)
    }

    /// A signal that this bearer is good no longer; none if that is so already.
    pub fn validity(&self, hash: &[u8; 32]) -> Option<Validity> {
        self.0.get(hash).map(|known| Validity(known.alive.subscribe()))
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = &Bearer> {
        self.0.values().map(|known| &known.bearer)
    }

    /// Keeps a bearer; a client's or an endpoint's replaces its tenant's earlier one of the same name and a node's its earlier
    /// one, as in the store. Returns the hashes of those that it replaced.
    pub fn keep(&mut self, bearer: Bearer) -> Vec<[u8; 32]> {
        let is_replaced = |other: &Bearer| match bearer.kind {
            BearerKind::Client(_) | BearerKind::Endpoint => {
                other.kind.is_same_kind(bearer.kind) && (other.tenant, &other.name) == (bearer.tenant, &bearer.name)
            }
            BearerKind::Node => other.kind == BearerKind::Node && other.node == bearer.node,
            BearerKind::Join => false,
        };
        let replaced = self
            .values()
            .filter(|other| other.hash != bearer.hash && is_replaced(other));
        let replaced: Vec<[u8; 32]> = replaced.map(|other| other.hash).collect();
        for hash in &replaced {
            self.remove(hash);
        }
        self.insert(bearer);
        replaced
    }

    /// Forgets a bearer: what it opened ends.
    pub fn remove(&mut self, hash: &[u8; 32]) -> Option<Bearer> {
        self.0.remove(hash).map(|known| known.bearer)
    }

    /// Forgets all that are not to be kept.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Bearer) -> bool) {
        self.0.retain(|_, known| is_kept(&known.bearer));
    }

    /// These are all that the store has. Those that no store has stay.
    pub fn replace_stored(&mut self, stored: Vec<Bearer>) {
        let hashes: std::collections::HashSet<[u8; 32]> = stored.iter().map(|bearer| bearer.hash).collect();
        self.retain(|bearer| !is_stored(bearer) || hashes.contains(&bearer.hash));
        stored.into_iter().for_each(|bearer| self.insert(bearer));
    }

    /// What a bearer that is here already has opened goes on.
    fn insert(&mut self, bearer: Bearer) {
        match self.0.get_mut(&bearer.hash) {
            Some(known) => known.bearer = bearer,
            None => {
                let alive = watch::channel(()).0;
                self.0.insert(bearer.hash, Known { bearer, alive });
            }
        }
    }
}

/// Whether the store has this bearer: dispatchers beside the manager and guests have tokens that end with its process.
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
    async fn what_a_bearer_opened_ends_with_it_alone() {
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
    async fn bearer_that_is_kept_again_goes_on() {
        let mut all = TokenRegistry::of(vec![client(1, "laptop"), client(2, "")]);
        let mut opened = [1, 2].map(|hash| all.validity(&[hash; 32]).unwrap());
        assert!(all.keep(client(1, "laptop")).is_empty());
        all.replace_stored(vec![client(1, "laptop")]);
        assert!(!has_ended(&mut opened[0]).await);
        assert!(!has_ended(&mut opened[1]).await, "no store knows a dispatcher's");
        all.replace_stored(Vec::new());
        assert!(has_ended(&mut opened[0]).await);
    }
}
