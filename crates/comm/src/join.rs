//! Joining a group: from a name and a secret to connections with all other ranks.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::tls::Identity;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use dayfly_rendezvous::client::Contact;
use dayfly_rendezvous::keys::{GroupKeys, new_identity, random, same_tag};
use dayfly_rendezvous::messages::{
    Card, FromRank, Join, MAX_ADDRESSES, MAX_FROM_RANK, MAX_MISSING, Nat, Sealed, Seat, ToRank, VERSION,
};
use dayfly_storage::StoreUrl;
use serde::{Deserialize, Serialize};

use crate::connect::listeners::{Listeners, listen};
use crate::connect::plan::Ways;
use crate::connect::{self, Lazily, Places, Setting, Trust, host};
use crate::membership::{self, Membership};
use crate::road::{Lost, Road};
use crate::stored::Stored;
use crate::switchboard::Switchboard;

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
    /// Ways to other ranks that may be tried. `store` and `channel` determine the ways through a store.
    pub ways: Ways,
    /// Digest of all settings that must be equal on all ranks, such as [`crate::table::Tables::digest`]. Ranks with
    /// different digests do not join.
    pub alike: u64,
    /// The store for pairs without another way; equal on all ranks.
    pub store: Option<StoreUrl>,
    /// Channel between the ranks; equal on all ranks.
    pub channel: Channel,
    /// Whether two ranks connect when one first needs the other, instead of all at once; equal on all ranks. Ranks in a
    /// sandbox without a network always connect at once, since their node connects for them.
    pub lazily: bool,
    /// Time limit of the join; with `lazily`, also of connecting a pair.
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
            ways: Ways::default(),
            alike: 0,
            store: None,
            channel: Channel::Direct,
            lazily: false,
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
    /// A road to each rank, `None` for this one. Sockets are blocking.
    pub roads: Vec<Option<Road>>,
    /// Source of roads on demand; `None` if all ranks are connected.
    pub board: Option<Arc<Switchboard>>,
    /// Whether all pairs exchange through the store, even within a host.
    pub only_stored: bool,
    /// For each rank the lowest rank on the same host, as the ranks state it.
    pub hosts: Vec<u32>,
    /// How long connecting took, since the rendezvous sent the addresses.
    pub connecting: Duration,
    /// Lost ranks; updated while the membership lasts.
    pub lost: Arc<Lost>,
    /// Keep it while the group is used.
    pub membership: Membership,
}

/// Upper bound of `patience`.
pub(crate) const LONGEST_PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Limit for reaching the rendezvous, if another process waits for it.
const REACH_PATIENCE: Duration = Duration::from_secs(10);

/// Joins a group. Returns when all ranks have arrived and this one is connected with each (or, with `lazily`, can be),
/// or an error. Takes at most `patience`.
pub fn join(options: &JoinOptions) -> Result<Joined, Failure> {
    let lost = Arc::new(Lost::default());
    let (met, contact) = meet(options, &lost, None)?;
    if options.lazily {
        return connect_lazily(options, met, contact, lost);
    }
    let Formed {
        seat,
        roads,
        hosts,
        stored,
        connecting,
        contact,
    } = connect_all(met, contact)?;
    Ok(Joined {
        rank: seat.rank,
        size: seat.size,
        roads,
        board: None,
        only_stored: options.channel == Channel::Stored,
        hosts,
        connecting,
        membership: Membership::keep(contact, lost.clone(), stored)?,
        lost,
    })
}

/// A rank that is connected with all others, and whose place in the group has no keeper yet.
pub(crate) struct Formed {
    pub seat: Seat,
    pub roads: Vec<Option<Road>>,
    pub hosts: Vec<u32>,
    pub stored: Option<Arc<Stored>>,
    pub connecting: Duration,
    pub contact: Contact,
}

/// Joins a group for another process and connects with all ranks. Gives up when the other end of `asker` is closed.
pub(crate) fn form(options: &JoinOptions, asker: OwnedFd) -> Result<Formed, Failure> {
    let (met, contact) = meet(options, &Arc::new(Lost::default()), Some(asker))?;
    let mut formed = connect_all(met, contact)?;
    formed.contact.act_for(None);
    Ok(formed)
}

/// A rank that has met all others.
struct Met {
    keys: GroupKeys,
    identity: Identity,
    run: [u8; 16],
    seat: Seat,
    cards: Vec<Card>,
    hosts: Vec<u32>,
    ways: Ways,
    trust: Trust,
    lazily: bool,
    listeners: Listeners,
    stored: Option<Arc<Stored>>,
    told: Instant,
    deadline: Instant,
}

impl Met {
    fn setting(&self, contact: &Contact, patience: Duration) -> Setting<'_> {
        Setting {
            keys: &self.keys,
            identity: &self.identity,
            run: self.run,
            rank: self.seat.rank,
            cards: &self.cards,
            ways: self.ways,
            trust: self.trust,
            port: contact.local().port(),
            patience,
            lazily: self.lazily,
        }
    }

    fn places(&self) -> Places<'_> {
        Places {
            listeners: &self.listeners,
            stored: self.stored.as_deref(),
        }
    }
}

fn meet(options: &JoinOptions, lost: &Arc<Lost>, asker: Option<OwnedFd>) -> Result<(Met, Contact), Failure> {
    let deadline = Instant::now() + options.patience.min(LONGEST_PATIENCE);
    if options.channel == Channel::Stored && options.store.is_none() {
        let text = "the channel `stored` needs a store: name one, such as s3://bucket/prefix or redis://host:port";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let keys = GroupKeys::new(&options.name, &options.run, &options.secret)?;
    let by = match asker {
        Some(_) => deadline.min(Instant::now() + REACH_PATIENCE),
        None => deadline,
    };
    let mut contact = Contact::open(&options.rendezvous, options.server_key.as_ref(), &keys, by)?;
    contact.act_for(asker);
    match enter(options, keys, &mut contact, lost, deadline) {
        Ok(met) => Ok((met, contact)),
        Err(failure) => Err(leave(contact, failure)),
    }
}

/// Sends the others the reason why this rank does not join.
fn leave(contact: Contact, failure: Failure) -> Failure {
    contact.leave(Some(format!("it could not join: {}", failure.message)));
    failure
}

fn connect_all(met: Met, mut contact: Contact) -> Result<Formed, Failure> {
    let left = met.deadline.saturating_duration_since(Instant::now());
    let connected = connect::connect(&met.setting(&contact, left), met.places(), &mut contact);
    match connected {
        Ok(roads) => Ok(Formed {
            connecting: met.told.elapsed(),
            seat: met.seat,
            roads,
            hosts: met.hosts,
            stored: met.stored,
            contact,
        }),
        Err(failure) => Err(leave(contact, failure)),
    }
}

/// Starts a thread that connects the rank on demand.
fn connect_lazily(options: &JoinOptions, met: Met, mut contact: Contact, lost: Arc<Lost>) -> Result<Joined, Failure> {
    let board = Arc::new(Switchboard::new()?);
    let patience = options.patience.min(LONGEST_PATIENCE);
    let (rank, size, hosts) = (met.seat.rank, met.seat.size, met.hosts.clone());
    let (connecting, stored) = (met.told.elapsed(), met.stored.clone());
    let (its_board, its_lost) = (board.clone(), lost.clone());
    let membership = Membership::attended(move |stop| {
        let (board, lost) = (&*its_board, &*its_lost);
        let attended = connect::attend(
            &met.setting(&contact, patience),
            met.places(),
            &mut contact,
            Lazily { board, lost, stop },
        );
        match attended {
            Ok(()) => contact.leave(None),
            Err(failure) => {
                // No more connections are made; the rank stays in the group with its existing ones.
                board.fail(failure);
                membership::attend(contact, lost, stop);
            }
        }
    })?;
    Ok(Joined {
        rank,
        size,
        roads: (0..size).map(|_| None).collect(),
        board: Some(board),
        only_stored: options.channel == Channel::Stored,
        hosts,
        connecting,
        lost,
        membership: membership.with_store(stored),
    })
}

fn enter(
    options: &JoinOptions,
    keys: GroupKeys,
    contact: &mut Contact,
    lost: &Arc<Lost>,
    deadline: Instant,
) -> Result<Met, Failure> {
    contact.say(&FromRank::Join(Join {
        version: VERSION,
        name: options.name.clone(),
        run: options.run.clone(),
        size: options.size,
        rank: options.rank,
    }))?;
    let (seat, observed, probe, heartbeat_ms) = match contact.wait(deadline)? {
        Some(ToRank::Seat {
            seat,
            observed,
            probe,
            heartbeat_ms,
        }) => (seat, observed, probe, heartbeat_ms),
        Some(other) => return Err(unexpected(&other)),
        None => {
            return Err(Failure::new(
                Code::TimedOut,
                format!("the rendezvous at {} did not answer", options.rendezvous),
            ));
        }
    };
    contact.keep_alive(Duration::from_millis(heartbeat_ms.max(1)));
    let run = <[u8; 16]>::try_from(hex::decode(&seat.nonce).unwrap_or_default());
    let run = run.map_err(|_| broken("it gave the run no name"))?;
    if seat.size != options.size || seat.rank >= seat.size || options.rank.is_some_and(|rank| rank != seat.rank) {
        return Err(broken("it gave this rank another place than it wanted"));
    }
    let identity = new_identity()?;
    let socket_name = format!("dayfly-{}-{}-{}", seat.nonce, seat.rank, hex::encode(random::<8>()?));
    let listeners = listen(contact.local(), &socket_name, options.ways.local)?;
    let mut card = introduce(&identity, contact, &listeners, &socket_name, observed, probe, deadline)?;
    card.store = options
        .store
        .as_ref()
        .map(|place| format!("{place} ({})", options.channel.name()));
    card.alike = options.alike;
    let text = serde_json::to_string(&card).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    if text.len() > MAX_FROM_RANK / 2 {
        return Err(Failure::new(
            Code::Internal,
            "what this rank says of itself is too long",
        ));
    }
    let mac = hex::encode(keys.seal_card(&run, seat.rank, seat.size, &text));
    contact.say(&FromRank::Card(Sealed { card: text, mac }))?;
    let cards = await_world(options, contact, &seat, deadline)?;
    let told = Instant::now();
    let cards = open_cards(&keys, &run, &seat, &cards)?;
    if let Some(other) = cards.iter().position(|card| card.alike != options.alike) {
        return Err(Failure::new(
            Code::Mismatch,
            format!(
                "rank {other} was told of other algorithms or another fabric than rank {}, or to connect otherwise: give all ranks the same tables and fabric, and connect all lazily or none",
                seat.rank
            ),
        ));
    }
    let hosts = hosts(&cards);
    one_store(&cards, seat.rank)?;
    let ways = match (options.channel, &options.store) {
        (Channel::Stored, _) => Ways::only_stored(),
        (Channel::Direct, store) => Ways {
            stored: store.is_some(),
            ..options.ways
        },
    };
    let new = |place: &StoreUrl| Stored::new(place.clone(), &options.name, &run, seat.rank, seat.size, lost.clone());
    let stored = options.store.as_ref().map(new).map(Arc::new);
    Ok(Met {
        keys,
        identity,
        run,
        seat,
        cards,
        hosts,
        ways,
        trust: options.trust,
        lazily: options.lazily,
        listeners,
        stored,
        told,
        deadline,
    })
}

/// Builds the card by which the others find this rank.
fn introduce(
    identity: &Identity,
    contact: &mut Contact,
    listeners: &Listeners,
    socket_name: &str,
    observed: SocketAddr,
    probe: u16,
    deadline: Instant,
) -> Result<Card, Failure> {
    let addresses = host::addresses();
    let local = contact.local();
    let own = observed.ip() == local.ip().to_canonical() || addresses.contains(&observed.ip());
    let nat = if own && observed.port() == local.port() {
        Nat::None
    } else {
        match contact.probe(probe, deadline)? {
            Ok(again) if again == observed => Nat::Independent,
            Ok(_) => Nat::Dependent,
            Err(_) => Nat::Unknown,
        }
    };
    let mut locals = Vec::new();
    for listener in listeners.tcp.iter().filter_map(|listener| listener.local_addr().ok()) {
        let same_family = addresses.iter().filter(|ip| ip.is_ipv4() == listener.is_ipv4());
        locals.extend(same_family.map(|ip| SocketAddr::new(*ip, listener.port())));
        // A host may have only a loopback address, which helps ranks on the same host.
        let loopback = SocketAddr::new(local.ip(), listener.port());
        if local.ip().is_loopback() && local.is_ipv4() == listener.is_ipv4() {
            locals.push(loopback);
        }
    }
    locals.truncate(MAX_ADDRESSES);
    Ok(Card {
        key: identity.public,
        host: host::identity(),
        user: rustix::process::geteuid().as_raw(),
        unix: listeners.unix.as_ref().map(|_| socket_name.to_owned()),
        locals,
        observed,
        nat,
        alike: 0,
        store: None,
    })
}

fn await_world(
    options: &JoinOptions,
    contact: &mut Contact,
    seat: &Seat,
    deadline: Instant,
) -> Result<Vec<Sealed>, Failure> {
    let mut absent = (Vec::new(), 0);
    loop {
        match contact.wait(deadline)? {
            Some(ToRank::World { cards }) => return Ok(cards),
            Some(ToRank::Pong { missing, missing_count }) => absent = (missing, missing_count),
            Some(ToRank::Lost { rank, reason }) => return Err(connect::lost(rank, &reason)),
            Some(other) => return Err(unexpected(&other)),
            None => {
                let (missing, count) = absent;
                let names: Vec<String> = missing.iter().take(MAX_MISSING).map(u32::to_string).collect();
                let more = if count as usize > names.len() {
                    " and others"
                } else {
                    ""
                };
                let who = match names.len() {
                    0 => "some had not shown their addresses yet".to_owned(),
                    _ => format!("{count} did not come: {}{more}", names.join(", ")),
                };
                return Err(Failure::new(
                    Code::TimedOut,
                    format!(
                        "of the {} ranks of group `{}`, {who}; this is rank {}, which waited {:.1} s: start all ranks, or wait longer",
                        seat.size,
                        options.name,
                        seat.rank,
                        options.patience.as_secs_f64(),
                    ),
                ));
            }
        }
    }
}

/// Opens the cards. Rejects a card that its rank did not write.
fn open_cards(keys: &GroupKeys, run: &[u8; 16], seat: &Seat, sealed: &[Sealed]) -> Result<Vec<Card>, Failure> {
    if sealed.len() != seat.size as usize {
        return Err(broken("it told of too few ranks or too many"));
    }
    let open = |(sealed, rank): (&Sealed, u32)| {
        let expected = keys.seal_card(run, rank, seat.size, &sealed.card);
        let sound = hex::decode(&sealed.mac).is_ok_and(|mac| same_tag(&expected, &mac));
        if !sound {
            return Err(Failure::new(
                Code::Unauthorized,
                format!(
                    "what is said of rank {rank} was not said by a rank with the group's secret: do all have the same secret?"
                ),
            ));
        }
        let card = serde_json::from_str::<Card>(&sealed.card);
        let card = card.ok().filter(|card| card.locals.len() <= MAX_ADDRESSES);
        card.ok_or_else(|| broken(&format!("what rank {rank} says of itself is not understood")))
    };
    sealed.iter().zip(0u32..).map(open).collect()
}

/// Returns an error unless all ranks have the same store, or none.
fn one_store(cards: &[Card], me: u32) -> Result<(), Failure> {
    let shown = |card: &Card| card.store.clone().unwrap_or_else(|| "no store".into());
    let ours = cards.get(me as usize).map(shown).unwrap_or_default();
    match cards.iter().zip(0u32..).find(|(card, _)| shown(card) != ours) {
        None => Ok(()),
        Some((card, rank)) => Err(Failure::new(
            Code::Mismatch,
            format!(
                "rank {rank} exchanges through {} and rank {me} through {ours}; give all ranks the same store and channel",
                shown(card)
            ),
        )),
    }
}

fn hosts(cards: &[Card]) -> Vec<u32> {
    let mut first = std::collections::HashMap::new();
    cards
        .iter()
        .zip(0u32..)
        .map(|(card, rank)| *first.entry(card.host.as_str()).or_insert(rank))
        .collect()
}

fn broken(what: &str) -> Failure {
    Failure::new(
        Code::ProtocolViolation,
        format!("the rendezvous is none of ours: {what}"),
    )
}

fn unexpected(message: &ToRank) -> Failure {
    match message {
        ToRank::Lost { rank, reason } => connect::lost(*rank, reason),
        other => {
            let text = format!("{other:?}");
            broken(&format!(
                "it said {} out of turn",
                text.chars().take(60).collect::<String>()
            ))
        }
    }
}
