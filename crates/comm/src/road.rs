//! Roads: the authenticated connections that connecting passes to communicating.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

/// How the bytes between two ranks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Within a host.
    Local,
    /// A connection that one of the two dialled.
    Direct,
    /// A connection through both NATs.
    Punched,
    /// Through a relay, which cannot read the bytes.
    Relay,
    /// Through a store, which cannot read the bytes.
    Stored,
    /// Remote memory over libfabric, in place of a connection.
    Fabric,
}

impl Via {
    /// The name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Direct => "direct",
            Self::Punched => "punched",
            Self::Relay => "relay",
            Self::Stored => "stored",
            Self::Fabric => "fabric",
        }
    }
}

/// An authenticated connection between two ranks of a group.
#[derive(Debug)]
pub enum Road {
    /// Both ranks are on one host: the socket can pass descriptors, and so shared memory.
    Local(UnixStream),
    /// A byte stream; through the TLS session if there is one, in clear over a trusted network.
    Remote {
        /// Connected; no bytes of the group's messages were read from it.
        socket: TcpStream,
        /// TLS session with the other rank, after its handshake.
        session: Option<Box<rustls::Connection>>,
        /// How the connection came about.
        via: Via,
    },
    /// A byte stream through a store. This process carries the bytes between the store and a local socket.
    Stored {
        /// The local socket.
        socket: UnixStream,
        /// TLS session with the other rank, after its handshake.
        session: Box<rustls::Connection>,
    },
    /// A byte stream to this host's [connector](crate::connector), which carries it to the other rank, since a sandbox
    /// has no network.
    Carried {
        /// To the connector, in clear.
        socket: UnixStream,
        /// How the bytes travel from there.
        via: Via,
        /// Whether the other rank is on this host.
        near: bool,
    },
}

impl Road {
    /// How its bytes travel.
    pub fn via(&self) -> Via {
        match self {
            Self::Local(_) => Via::Local,
            Self::Remote { via, .. } | Self::Carried { via, .. } => *via,
            Self::Stored { .. } => Via::Stored,
        }
    }
}

/// Lost ranks of a group, with reasons. The watching thread adds them; operations check before they wait.
#[derive(Debug, Default)]
pub struct Lost {
    /// Incremented with every loss, so that a check costs one load.
    count: AtomicU64,
    ranks: Mutex<Vec<(u32, String)>>,
    /// Ranks whose processes are gone.
    gone: Mutex<Vec<u32>>,
}

impl Lost {
    fn ranks(&self) -> MutexGuard<'_, Vec<(u32, String)>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a rank as lost. Only the first reason is kept.
    pub fn add(&self, rank: u32, reason: impl Into<String>) {
        let mut ranks = self.ranks();
        if ranks.iter().all(|(known, _)| *known != rank) {
            ranks.push((rank, reason.into()));
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Marks a rank as lost whose process is gone, so that it receives no more messages.
    pub fn add_gone(&self, rank: u32, reason: impl Into<String>) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(rank);
        self.add(rank, reason);
    }

    /// Whether this rank's process is gone.
    pub fn is_gone(&self, rank: u32) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.contains(&rank)
    }

    /// Number of lost ranks.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The lost ranks, in the order of their detection.
    pub fn all(&self) -> Vec<(u32, String)> {
        self.ranks().clone()
    }

    /// Returns the error of an operation that needs this rank, if the rank is lost.
    pub fn check(&self, rank: u32) -> Result<(), Failure> {
        if self.count() == 0 {
            return Ok(());
        }
        match self.ranks().iter().find(|(lost, _)| *lost == rank) {
            Some((_, reason)) => Err(Failure::new(
                Code::RankLost,
                format!("rank {rank} is lost: {reason}; go on without it (shrink), or run again"),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_rank_is_named_with_the_first_reason() {
        let lost = Lost::default();
        assert!(lost.check(3).is_ok());
        lost.add(3, "its process ended");
        lost.add(3, "its connection broke");
        assert_eq!(lost.count(), 1);
        let failure = lost.check(3).unwrap_err();
        assert_eq!(failure.code, Code::RankLost);
        assert!(
            failure.message.contains("rank 3 is lost: its process ended"),
            "{failure}"
        );
        assert!(lost.check(2).is_ok());
    }
}
