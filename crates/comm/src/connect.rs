//! Connects a rank with all others of its group at once.
//!
//! One loop over non-blocking sockets accepts, dials the steps of each pair's [plan](mod@plan), and drives every
//! [attempt] until each pair has a connection or the deadline has passed. [`connect_on_demand`] runs the same loop
//! while the rank belongs to the group, and connects each pair when one of the two needs the other.

pub mod attempt;
mod connect_loop;
pub mod hello;
pub mod host;
pub mod listeners;
pub mod plan;
pub mod socket;

use std::io;
use std::time::Duration;

use dayfly_fabric::tls::Identity;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::keys::GroupKeys;
use dayfly_rendezvous::messages::Card;

use self::connect_loop::ConnectLoop;
pub use self::connect_loop::{LazyConnect, connect_on_demand};
use self::listeners::Listeners;
use self::plan::RouteOptions;
use crate::PeerConnection;
use crate::store_route::StoreRoute;

/// Which networks need no encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Encrypt everything that leaves a host.
    #[default]
    Nobody,
    /// The network between the hosts is trusted. Ranks still authenticate each other.
    Fabric,
}

/// What a rank needs to connect with the others.
pub struct ConnectSettings<'a> {
    /// Keys of the group.
    pub keys: &'a GroupKeys,
    /// Identity of this rank.
    pub identity: &'a Identity,
    /// Random name of the run.
    pub run: [u8; 16],
    /// This rank.
    pub rank: u32,
    /// Cards of all ranks.
    pub cards: &'a [Card],
    /// Routes that may be tried.
    pub routes: RouteOptions,
    /// Which networks need no encryption.
    pub trust: Trust,
    /// The local port that the NAT, if there is one, has mapped.
    pub port: u16,
    /// Time limit for connecting: for all pairs together, or for each pair since it was requested.
    pub patience: Duration,
    /// Whether other ranks connect on demand.
    pub lazy_connect: bool,
    /// Sockets at which other ranks reach this one.
    pub listeners: &'a Listeners,
    /// The store for pairs without another route.
    pub stored: Option<&'a StoreRoute>,
}

/// Connects to all other ranks. Returns a connection for each rank, `None` for this one.
pub fn connect(
    settings: &ConnectSettings<'_>,
    rendezvous: &mut RendezvousClient,
) -> Result<Vec<Option<PeerConnection>>, Failure> {
    ConnectLoop::new(settings, rendezvous, None)?.connect_all()
}

fn failed(what: &str, error: impl Into<io::Error>) -> Failure {
    let error: io::Error = error.into();
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    Failure::new(Code::Internal, format!("{what}: {error}{advice}"))
}

/// The error when a rank is lost while the group forms.
pub(crate) fn lost(rank: u32, reason: &str) -> Failure {
    Failure::new(
        Code::RankLost,
        format!("rank {rank} was lost while the group formed: {reason}; start all ranks again"),
    )
}
