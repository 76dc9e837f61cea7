//! Delegations, and the part of [`Lease`] that makes them: some workers for a function that calls functions, or for
//! another process.
//!
//! A delegation is a grant of some workers of a lease under a key of its own. Its holder can use those workers until it
//! ends, and delegate a part of them. The holder can neither renew nor release the lease. A delegation travels as text;
//! keep that text as secret as a password.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::SigningKey;
use dayfly_protocol::api::Grant;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::PublicKey;
use dayfly_protocol::node_api::{Request, Response};
use serde::{Deserialize, Serialize};

use crate::client::{Source, parse_seed};
use crate::node::{is_local, unexpected};
use crate::random::fill_random;
use crate::{Client, Error, Lease};

/// A part of a lease, and the key to use it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Delegation {
    /// The workers and the expiry.
    pub grant: Grant,
    /// Seed of the holder's key, in hexadecimal.
    #[serde(rename = "holder_seed")]
    seed: String,
    /// Path of the node's socket inside the sandboxes that it was made for.
    socket: Option<String>,
}

impl std::fmt::Debug for Delegation {
    /// Leaves out the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegation")
            .field("lease", &self.grant.lease)
            .field("workers", &self.grant.workers)
            .field("node", &self.grant.node.name)
            .finish_non_exhaustive()
    }
}

impl Delegation {
    /// Serializes the delegation, including its key.
    pub fn to_text(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::new(Code::Internal, error.to_string()))
    }

    /// Parses the output of [`Delegation::to_text`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let unusable = |error| Error::new(Code::InvalidRequest, format!("this is not a delegation: {error}"));
        serde_json::from_str(text).map_err(unusable)
    }

    /// Opens the delegated workers as a lease, on this host or in a worker of a lease that the delegation was made for.
    pub fn open(&self) -> Result<Lease, Error> {
        let mut grant = self.grant.clone();
        if let Some(socket) = self.socket.as_ref().filter(|socket| Path::new(socket).exists())
            && !is_local(&grant.node)
        {
            grant.node.unix = Some(socket.clone());
        }
        let client = Client::over(Source::Part, None)?;
        let source = Arc::new(Source::Part);
        Lease::new(client, source, grant, self.key()?, false)
    }

    fn key(&self) -> Result<SigningKey, Error> {
        parse_seed(&self.seed)
    }

    /// Whether both have the same key.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.seed == other.seed
    }

    fn holder(&self) -> Result<PublicKey, Error> {
        Ok(self.key()?.public())
    }
}

impl Lease {
    /// Delegates some of this lease's workers for at most `duration`. No channel to them may be open when the
    /// delegation is used; [`crate::Pool::delegate`] ensures that. Isolated workers of the lease `users` see the
    /// node's socket, so they can use it.
    pub fn delegate(
        &self,
        workers: Range<u16>,
        duration: Duration,
        users: Option<&Lease>,
    ) -> Result<Delegation, Error> {
        let mut seed = [0; 32];
        fill_random(&mut seed)?;
        let socket = users.map(Lease::show_node).transpose()?;
        let request = Request::Delegate {
            holder: SigningKey::from_seed(seed).public(),
            first: workers.start,
            workers: workers.end.saturating_sub(workers.start),
            duration_ms: duration.as_millis().min(u128::from(u64::MAX)) as u64,
        };
        match self.inner.with_control(|control| control.ask(&request))? {
            Response::Delegated(grant) => Ok(Delegation {
                grant: *grant,
                seed: hex::encode(seed),
                socket,
            }),
            other => Err(unexpected("a request for a delegation", &other)),
        }
    }

    /// Ends a delegation and all delegations made from it. Their channels end; a running call may go on for some
    /// seconds.
    pub fn take_back(&self, delegation: &Delegation) -> Result<(), Error> {
        let holder = delegation.holder()?;
        let request = Request::RevokeDelegation { holder };
        self.inner.with_control(|control| control.ask(&request)).map(drop)
    }

    /// Shows the node's socket to this lease's workers, and returns its path there.
    fn show_node(&self) -> Result<String, Error> {
        // The holder of a part runs where its lease already shows the socket, or outside a sandbox.
        if matches!(*self.inner.source, Source::Part) {
            return Ok(self.inner.node.unix.clone().unwrap_or_default());
        }
        match self.inner.with_control(|control| control.ask(&Request::NodeSocket))? {
            Response::NodeSocket { path } => Ok(path),
            other => Err(unexpected("a request to show the node", &other)),
        }
    }
}
