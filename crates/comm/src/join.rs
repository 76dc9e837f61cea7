//! Joining a group: from a name and a secret to connections with all other ranks.

mod meeting;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::tls::Identity;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::keys::GroupKeys;
use dayfly_rendezvous::messages::{Card, Seat};
use dayfly_storage::StoreUrl;
use serde::{Deserialize, Serialize};

use crate::connect::listeners::Listeners;
use crate::connect::plan::RouteOptions;
use crate::connect::{self, ConnectSettings, LazyConnect, Trust};
use crate::connect_queue::ConnectQueue;
use crate::membership::{self, Membership};
use crate::store_route::StoreRoute;
use crate::{LostRanks, PeerConnection};

/// Channel between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// The best connection between two ranks; the store, if there is one, for pairs without any.
    #[default]
    Direct,
    /// Only the store, even within a host.
    Stored,
}

impl Channel {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Stored => "stored",
        }
    }

    /// Parses the name. Returns [`Code::InvalidRequest`] for an unknown one.
    pub fn from_name(name: &str) -> Result<Self, Failure> {
        let known = [Self::Direct, Self::Stored]
            .into_iter()
            .find(|known| known.name() == name);
        known.ok_or_else(|| {
            Failure::new(
                Code::InvalidRequest,
                format!("there is no channel `{name}`: `direct` or `stored`"),
            )
        })
    }
}

/// The group, and how to join it.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// Address of the rendezvous, as `host:port`.
    pub rendezvous: String,
    /// Public key of the rendezvous, if it is known. Without it, an impostor can keep the ranks apart and see who they
    /// are. It can neither join the group nor read its messages.
    pub server_key: Option<PublicKey>,
    /// Name of the group.
    pub name: String,
    /// Run of the group. Ranks of different runs do not meet.
    pub run: String,
    /// The group's shared secret: at least 16 random bytes.
    pub secret: Vec<u8>,
    /// This rank; `None` takes any free one.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub size: u32,
    /// Which networks need no encryption.
    pub trust: Trust,
    /// Routes to other ranks that may be tried. `store` and `channel` determine the routes through a store.
    pub routes: RouteOptions,
    /// Digest of all settings that must be equal on all ranks, such as [`crate::table::Tables::digest`]. Ranks with
    /// different digests do not join.
    pub settings_digest: u64,
    /// The store for pairs without another route; equal on all ranks.
    pub store: Option<StoreUrl>,
    /// Channel between the ranks; equal on all ranks.
    pub channel: Channel,
    /// Whether two ranks connect when one first needs the other, instead of all at once; equal on all ranks. Ranks in a
    /// sandbox without a network always connect at once, since their node connects for them.
    pub lazy_connect: bool,
    /// Time limit of the join; with `lazy_connect`, also of connecting a pair.
    pub patience: Duration,
}

impl JoinOptions {
    /// Options with default values for all other fields.
    pub fn new(rendezvous: impl Into<String>, name: impl Into<String>, secret: impl Into<Vec<u8>>, size: u32) -> Self {
        Self {
            rendezvous: rendezvous.into(),
            server_key: None,
            name: name.into(),
            run: String::new(),
            secret: secret.into(),
            rank: None,
            size,
            trust: Trust::Nobody,
            routes: RouteOptions::default(),
            settings_digest: 0,
            store: None,
            channel: Channel::Direct,
            lazy_connect: false,
            patience: Duration::from_secs(30),
        }
    }
}

/// A rank that is connected with all others, or connects on demand.
#[derive(Debug)]
pub struct Joined {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// A connection to each rank, `None` for this one. Sockets are blocking.
    pub connections: Vec<Option<PeerConnection>>,
    /// Source of connections on demand; `None` if all ranks are connected.
    pub queue: Option<Arc<ConnectQueue>>,
    /// Whether all pairs exchange through the store, even within a host.
    pub only_stored: bool,
    /// For each rank the lowest rank on the same host, as the ranks state it.
    pub hosts: Vec<u32>,
    /// How long connecting took, since the rendezvous sent the addresses.
    pub connecting: Duration,
    /// Lost ranks; updated while the membership lasts.
    pub lost: Arc<LostRanks>,
    /// Keep it while the group is used.
    pub membership: Membership,
}

/// Upper bound of `patience`.
pub(crate) const MAX_PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Limit for reaching the rendezvous, if another process waits for it.
const REACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Joins a group. Returns when all ranks have arrived and this one is connected with each (or, with `lazy_connect`, can
/// be), or an error. Takes at most `patience`.
pub fn join(options: &JoinOptions) -> Result<Joined, Failure> {
    let lost = Arc::new(LostRanks::default());
    let (setup, rendezvous) = meet(options, &lost, None)?;
    if options.lazy_connect {
        return connect_lazily(options, setup, rendezvous, lost);
    }
    let ConnectedRank {
        seat,
        connections,
        hosts,
        stored,
        connecting,
        rendezvous,
    } = connect_all(setup, rendezvous)?;
    Ok(Joined {
        rank: seat.rank,
        size: seat.size,
        connections,
        queue: None,
        only_stored: options.channel == Channel::Stored,
        hosts,
        connecting,
        membership: Membership::keep(rendezvous, lost.clone(), stored)?,
        lost,
    })
}

/// A rank that is connected with all others. Nothing keeps its rendezvous connection alive yet.
pub(crate) struct ConnectedRank {
    pub seat: Seat,
    pub connections: Vec<Option<PeerConnection>>,
    pub hosts: Vec<u32>,
    pub stored: Option<Arc<StoreRoute>>,
    pub connecting: Duration,
    pub rendezvous: RendezvousClient,
}

/// Joins a group for another process and connects with all ranks. Gives up when the other end of `requester` is closed.
pub(crate) fn form(options: &JoinOptions, requester: OwnedFd) -> Result<ConnectedRank, Failure> {
    let (setup, rendezvous) = meet(options, &Arc::new(LostRanks::default()), Some(requester))?;
    let mut connected = connect_all(setup, rendezvous)?;
    connected.rendezvous.act_on_behalf_of(None);
    Ok(connected)
}

/// What a rank knows once it has met all others.
struct RankSetup {
    keys: GroupKeys,
    identity: Identity,
    run: [u8; 16],
    seat: Seat,
    cards: Vec<Card>,
    hosts: Vec<u32>,
    routes: RouteOptions,
    trust: Trust,
    lazy_connect: bool,
    listeners: Listeners,
    stored: Option<Arc<StoreRoute>>,
    /// When the rendezvous sent the cards.
    met_at: Instant,
    deadline: Instant,
}

impl RankSetup {
    fn settings(&self, rendezvous: &RendezvousClient, patience: Duration) -> ConnectSettings<'_> {
        ConnectSettings {
            keys: &self.keys,
            identity: &self.identity,
            run: self.run,
            rank: self.seat.rank,
            cards: &self.cards,
            routes: self.routes,
            trust: self.trust,
            port: rendezvous.local().port(),
            patience,
            lazy_connect: self.lazy_connect,
            listeners: &self.listeners,
            stored: self.stored.as_deref(),
        }
    }
}

fn meet(
    options: &JoinOptions,
    lost: &Arc<LostRanks>,
    requester: Option<OwnedFd>,
) -> Result<(RankSetup, RendezvousClient), Failure> {
    let deadline = Instant::now() + options.patience.min(MAX_PATIENCE);
    if options.channel == Channel::Stored && options.store.is_none() {
        let text = "the channel `stored` needs a store: name one, such as s3://bucket/prefix or redis://host:port";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let keys = GroupKeys::new(&options.name, &options.run, &options.secret)?;
    let by = match requester {
        Some(_) => deadline.min(Instant::now() + REACH_TIMEOUT),
        None => deadline,
    };
    let mut rendezvous = RendezvousClient::open(&options.rendezvous, options.server_key.as_ref(), &keys, by)?;
    rendezvous.act_on_behalf_of(requester);
    match meeting::enter(options, keys, &mut rendezvous, lost, deadline) {
        Ok(setup) => Ok((setup, rendezvous)),
        Err(failure) => Err(leave(rendezvous, failure)),
    }
}

/// Sends the others the reason why this rank does not join.
fn leave(rendezvous: RendezvousClient, failure: Failure) -> Failure {
    rendezvous.leave(Some(format!("it could not join: {}", failure.message)));
    failure
}

fn connect_all(setup: RankSetup, mut rendezvous: RendezvousClient) -> Result<ConnectedRank, Failure> {
    let left = setup.deadline.saturating_duration_since(Instant::now());
    let connected = connect::connect(&setup.settings(&rendezvous, left), &mut rendezvous);
    match connected {
        Ok(connections) => Ok(ConnectedRank {
            connecting: setup.met_at.elapsed(),
            seat: setup.seat,
            connections,
            hosts: setup.hosts,
            stored: setup.stored,
            rendezvous,
        }),
        Err(failure) => Err(leave(rendezvous, failure)),
    }
}

/// Starts a thread that connects the rank on demand.
fn connect_lazily(
    options: &JoinOptions,
    setup: RankSetup,
    mut rendezvous: RendezvousClient,
    lost: Arc<LostRanks>,
) -> Result<Joined, Failure> {
    let queue = Arc::new(ConnectQueue::new()?);
    let patience = options.patience.min(MAX_PATIENCE);
    let (rank, size, hosts) = (setup.seat.rank, setup.seat.size, setup.hosts.clone());
    let (connecting, stored) = (setup.met_at.elapsed(), setup.stored.clone());
    let (its_queue, its_lost) = (queue.clone(), lost.clone());
    let membership = Membership::start(move |stop| {
        let (queue, lost) = (&*its_queue, &*its_lost);
        let result = connect::connect_on_demand(
            &setup.settings(&rendezvous, patience),
            &mut rendezvous,
            LazyConnect { queue, lost, stop },
        );
        match result {
            Ok(()) => rendezvous.leave(None),
            Err(failure) => {
                // No more connections are made; the rank stays in the group with its existing ones.
                queue.fail(failure);
                membership::keep_alive(rendezvous, lost, stop);
            }
        }
    })?;
    Ok(Joined {
        rank,
        size,
        connections: (0..size).map(|_| None).collect(),
        queue: Some(queue),
        only_stored: options.channel == Channel::Stored,
        hosts,
        connecting,
        lost,
        membership: membership.with_store(stored),
    })
}
