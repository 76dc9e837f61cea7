//! The keys whose tokens a node accepts.

use std::sync::{PoisonError, RwLock};

use dayfly_protocol::ids::PublicKey;

/// The node's own key, and those of its manager.
#[derive(Debug)]
pub(crate) struct TrustedKeys {
    own: PublicKey,
    all: RwLock<Vec<PublicKey>>,
}

impl TrustedKeys {
    /// Accepts the node's own key only.
    pub fn new(own: PublicKey) -> Self {
        Self {
            own,
            all: RwLock::new(vec![own]),
        }
    }

    /// All keys.
    pub fn all(&self) -> Vec<PublicKey> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the manager's keys.
    pub fn set_manager_keys(&self, mut keys: Vec<PublicKey>) {
        keys.push(self.own);
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Whether a manager has sent its keys.
    pub fn has_manager_keys(&self) -> bool {
        self.all.read().unwrap_or_else(PoisonError::into_inner).len() > 1
    }
}
