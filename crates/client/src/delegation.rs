//! Parts of a lease for others: a function that calls functions, or another process.
//!
//! A delegation is a grant of some workers of a lease under a key of its own. Whoever has it can use those workers for its time, and
//! delegate a part of that; it can neither renew nor release the lease. It travels as text, and is as good as a password.

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
use crate::embedded::getrandom_into;
use crate::node::{is_local, unexpected};
use crate::{Client, Error, Lease};

/// A part of a lease, for whoever holds this.
#[derive(Clone, Serialize, Deserialize)]
pub struct Delegation {
    /// Its workers, and until when.
    pub grant: Grant,
    /// Seed of the key that may use them, in hexadecimal.
    #[serde(rename = "holder_seed")]
    seed: String,
    /// Where workers for whom it was made find the node's socket.
    socket: Option<String>,
}

impl std::fmt::Debug for Delegation {
    /// Without what would let its reader use it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegation")
            .field("lease", &self.grant.lease)
            .field("workers", &self.grant.workers)
            .field("node", &self.grant.node.name)
            .finish_non_exhaustive()
    }
}

impl Delegation {
    /// As text, for somebody else.
    pub fn to_text(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::new(Code::Internal, error.to_string()))
    }

    /// Reads [`Delegation::to_text`].
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let unusable = |error| Error::new(Code::InvalidRequest, format!("this is no delegation: {error}"));
        serde_json::from_str(text).map_err(unusable)
    }

    /// The workers of this part, as a lease of its own: here, or in a worker for whose lease it was made.
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

    /// Whether both are one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.seed == other.seed
    }

    fn holder(&self) -> Result<PublicKey, Error> {
        Ok(self.key()?.public())
    }
}

impl Lease {
    /// Delegates some of this lease's workers for `duration` at most, to whoever gets the delegation. No channel may be open to
    /// them when it is used; [`crate::Pool::delegate`] sees to that. Isolated workers of `users` find the node, and so can use it.
    pub fn delegate(
        &self,
        workers: Range<u16>,
        duration: Duration,
        users: Option<&Lease>,
    ) -> Result<Delegation, Error> {
        let mut seed = [0; 32];
        getrandom_into(&mut seed)?;
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
            other => Err(unexpected("a delegation", &other)),
        }
    }

    /// Takes back what was delegated of this lease, with all that came of it. Its channels end; a call that runs may go on for some
    /// seconds.
    pub fn take_back(&self, delegation: &Delegation) -> Result<(), Error> {
        let holder = delegation.holder()?;
        let request = Request::TakeBack { holder };
        self.inner.with_control(|control| control.ask(&request)).map(drop)
    }

    /// Lets this lease's workers reach their node, and answers where they find it.
    fn show_node(&self) -> Result<String, Error> {
        // Whoever has a part of a lease runs where that lease's node is to be seen already, or needs no sandbox's door.
        if matches!(*self.inner.source, Source::Part) {
            return Ok(self.inner.node.unix.clone().unwrap_or_default());
        }
        match self.inner.with_control(|control| control.ask(&Request::ShowNode))? {
            Response::Shown { path } => Ok(path),
            other => Err(unexpected("the wish to show the node", &other)),
        }
    }
}
