//! Errors of stores.

use dayfly_lease::quota::QuotaError;
use dayfly_protocol::error::{Code, Failure};

use crate::WRITE_DEADLINE;

/// Why the store failed. Nothing of the write was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("the store cannot write because its disk is full; free some space, nothing needs a restart")]
    Full,
    /// Another process has the store open.
    #[error("the store {0} is in use by another manager; stop that one, or choose another state directory")]
    InUse(String),
    /// A later release wrote the store.
    #[error("the store has schema {found} and this release knows {known}; start the release that wrote it")]
    Schema {
        /// Schema version of the store.
        found: i64,
        /// Schema version of this release.
        known: i64,
    },
    /// The database has tables of this program's former name.
    #[error(
        "the database has tables of Mayfly, the former name of Dayfly; to use them, run \
         `ALTER SCHEMA mayfly RENAME TO dayfly` in it"
    )]
    Former,
    /// Any other error of the disk or the database.
    #[error("the store failed: {0}; check its disk, or restore it from a backup")]
    Broken(String),
    /// The store lacks data that it had when it was last used.
    #[error("{0}; restore the newest backup, or start once with `--accept-loss` to go on with what is there")]
    Lost(String),
    /// The store does not respond in time.
    #[error("the store did not respond within {} s; check its disk, and the database if it is one", WRITE_DEADLINE.as_secs())]
    Slow,
    /// The database cannot be reached.
    #[error("the database cannot be reached: {0}; check that it runs, and the address given with `--store`")]
    Unreachable(String),
    /// The database's address cannot be used.
    #[error("the store `{address}` cannot be used: {why}")]
    Address {
        /// The address without its password.
        address: String,
        /// The reason.
        why: String,
    },
    /// Another manager now owns the node.
    #[error("the node belongs to another manager now; try again")]
    Stale,
    /// Another manager now has the tasks.
    #[error("another manager has the tasks now; try again")]
    Moved,
    /// The leases of all managers together would exceed a quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale => Failure::new(Code::StaleEpoch, error.to_string()),
            StoreError::Moved => Failure::new(Code::Unreachable, error.to_string()),
            StoreError::Quota(quota) => quota.into(),
            StoreError::Lost(_) => Failure::new(Code::StoreLost, error.to_string()),
            other => Failure::new(Code::StoreFailed, other.to_string()),
        }
    }
}
