//! What can be chosen about a manager.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dayfly_protocol::api::Sandbox;
use dayfly_storage::StoreUrl;

use crate::oidc;

/// Where the manager keeps what must survive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// `manager.db` in the state directory.
    Sqlite {
        /// Bound on its size in pages of 4 KiB.
        most_pages: Option<u32>,
    },
    /// A PostgreSQL database, which several managers may share.
    Postgres {
        /// `postgresql://USER@HOST/DATABASE`; `sslrootcert=FILE` where it is on another machine.
        url: String,
    },
    /// Nowhere: it forgets everything but its keys when it ends.
    Memory,
}

/// What can be chosen about a manager.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys, certificates, store and `connection.json`; made with mode 0700 when missing.
    pub state_dir: PathBuf,
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// Names and addresses, besides the loopback's, under which clients and nodes reach it. The first one stands in the
    /// URL that it hands out.
    pub names: Vec<String>,
    /// How often nodes send heartbeats; three missed ones make a lost node.
    pub heartbeat: Duration,
    /// Where state is kept.
    pub store: StoreKind,
    /// Start although the store lacks what it had before.
    pub accept_loss: bool,
    /// Where long arguments and answers of tasks are kept; none for `contents` in the state directory.
    pub contents: Option<StoreUrl>,
    /// How many bytes of them each tenant may have.
    pub most_content_bytes: u64,
    /// How long tasks and their outcomes are kept after their end.
    pub keep_results: Duration,
    /// How long entries of the audit log are kept.
    pub keep_audit: Duration,
    /// How many bytes of them are kept.
    pub most_audit_bytes: u64,
    /// How long the leases of a lost node are waited for before they count as lost.
    pub lease_lost_after: Duration,
    /// How long a grant may lie unused.
    pub start_by: Duration,
    /// Longest lease that is granted.
    pub longest_lease: Duration,
    /// Levels of isolation that are granted; the first is for leases that name none. Nodes have their own word on it.
    pub sandboxes: Vec<Sandbox>,
    /// With whom people log in, if the site has somebody.
    pub oidc: Option<oidc::Site>,
}

impl Options {
    /// A manager on the loopback's port 7070 with its state here.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)),
            names: Vec::new(),
            heartbeat: Duration::from_secs(2),
            store: StoreKind::Sqlite { most_pages: None },
            accept_loss: false,
            contents: None,
            most_content_bytes: 256 << 30,
            keep_results: Duration::from_secs(7 * 24 * 3600),
            keep_audit: Duration::from_secs(400 * 24 * 3600),
            most_audit_bytes: 64 << 20,
            lease_lost_after: Duration::from_secs(60),
            start_by: Duration::from_millis(dayfly_lease::state::DEFAULT_START_BY_MS),
            longest_lease: Duration::from_secs(7 * 24 * 3600),
            sandboxes: Sandbox::ALL.to_vec(),
            oidc: None,
        }
    }
}
