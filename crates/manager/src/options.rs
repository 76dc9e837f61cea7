//! Options of a manager.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dayfly_protocol::api::Sandbox;
use dayfly_storage::StoreUrl;

use crate::oidc;

/// Where the durable state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// `manager.db` in the state directory.
    Sqlite {
        /// Maximum of its size, in pages of 4 KiB.
        most_pages: Option<u32>,
    },
    /// A PostgreSQL database, which several managers may share.
    Postgres {
        /// `postgresql://USER@HOST/DATABASE`, with `sslrootcert=FILE` for a database on another machine.
        url: String,
    },
    /// In memory: everything but the keys is lost when the manager ends.
    Memory,
}

/// Options of a manager.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory for keys, certificates, the store and `connection.json`. Made with mode 0700 if it is missing.
    pub state_dir: PathBuf,
    /// Address to listen on. Port 0 chooses a free one.
    pub listen: SocketAddr,
    /// Names and addresses of this manager, besides those of the loopback. The first one is in its URL.
    pub names: Vec<String>,
    /// Period of the nodes' heartbeats. A node is lost when three are missing.
    pub heartbeat: Duration,
    /// Where the durable state is.
    pub store: StoreKind,
    /// Start although the store lacks data that it had before.
    pub accept_loss: bool,
    /// Where long arguments and results of tasks are. Default: `contents` in the state directory.
    pub contents: Option<StoreUrl>,
    /// Bytes of them for each tenant.
    pub most_content_bytes: u64,
    /// How long tasks and their outcomes are kept after their end.
    pub keep_results: Duration,
    /// How long entries of the audit log are kept.
    pub keep_audit: Duration,
    /// How many bytes of entries of the audit log are kept.
    pub most_audit_bytes: u64,
    /// Time after which the leases of a lost node count as lost.
    pub lease_lost_after: Duration,
    /// Time in which a granted lease must be used.
    pub start_by: Duration,
    /// Longest lease.
    pub longest_lease: Duration,
    /// Permitted levels of isolation. The first is the default. Nodes may permit fewer.
    pub sandboxes: Vec<Sandbox>,
    /// The identity provider for logins.
    pub oidc: Option<oidc::Site>,
}

impl Options {
    /// Returns the default options: port 7070 of the loopback, with the state in this directory.
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
