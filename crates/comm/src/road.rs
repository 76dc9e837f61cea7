//! Where connecting ends and communicating begins.

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
    /// A connection through the NATs of both.
    Punched,
    /// A relay passes them on, and cannot read them.
    Relay,
    /// A store keeps them in between, and cannot read them.
    Stored,
    /// Remote memory over libfabric, where a connection was before.
    Fabric,
}

impl Via {
    /// Its name, for people and programs.
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
    /// Both are on one host: descriptors can be passed, and so memory shared.
    Local(UnixStream),
    /// A byte stream; with a session, through which all goes, unless the two trust what lies between them.
    Remote {
        /// Connected, and nothing of the group's messages has been read from it.
        socket: TcpStream,
        /// TLS with the other rank itself, past its handshake.
        session: Option<Box<rustls::Connection>>,
        /// How it came about.
        via: Via,
    },
    /// A byte stream through a store, to and from which this process itself carries what passes a socket of its own.
    Stored {
        /// The socket.
        socket: UnixStream,
        /// TLS with the other rank itself, past its handshake.
        session: Box<rustls::Connection>,
    },
    /// A byte stream to this host's [connector](crate::connector), which carries it to the other rank: a sandbox has no network.
    Carried {
        /// To the connector, in clear.
        socket: UnixStream,
        /// How the bytes travel from there.
        via: Via,
        /// Whether the other rank is on this host after all.
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

/// Ranks of a group that are known to be lost, and why. Whoever watches over them adds; operations look before they wait on.
#[derive(Debug, Default)]
pub struct Lost {
    /// Bumped with every loss, so that looking costs a load.
    count: AtomicU64,
    ranks: Mutex<Vec<(u32, String)>>,
    /// Those whose processes are gone.
    gone: Mutex<Vec<u32>>,
}

impl Lost {
    fn ranks(&self) -> MutexGuard<'_, Vec<(u32, String)>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank is lost; only the first reason counts.
    pub fn add(&self, rank: u32, reason: impl Into<String>) {
        let mut ranks = self.ranks();
        if ranks.iter().all(|(known, _)| *known != rank) {
            ranks.push((rank, reason.into()));
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// A rank is lost, and there is nobody any more who would hear what is said to it.
    pub fn add_gone(&self, rank: u32, reason: impl Into<String>) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(rank);
        self.add(rank, reason);
    }

    /// Whether that is known of this rank.
    pub fn is_gone(&self, rank: u32) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.contains(&rank)
    }

    /// How many are lost.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Which are, in the order in which it was noticed.
    pub fn all(&self) -> Vec<(u32, String)> {
        self.ranks().clone()
    }

    /// The error of an operation that needs this rank, if it is lost.
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
