//! Meeting the other ranks at the rendezvous: a place in the group, and the cards of all ranks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::tls::Identity;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::keys::{GroupKeys, new_identity, random, same_tag};
use dayfly_rendezvous::messages::{
    Card, FromRank, Join, MAX_ADDRESSES, MAX_FROM_RANK, MAX_MISSING, Nat, Sealed, Seat, ToRank, VERSION,
};
use dayfly_storage::StoreUrl;

use super::{Channel, JoinOptions, RankSetup};
use crate::LostRanks;
use crate::connect::listeners::{Listeners, listen};
use crate::connect::plan::RouteOptions;
use crate::connect::{self, host};
use crate::store_route::StoreRoute;

/// Takes a place in the group, sends this rank's card and returns when all cards have arrived.
pub(super) fn enter(
    options: &JoinOptions,
    keys: GroupKeys,
    rendezvous: &mut RendezvousClient,
    lost: &Arc<LostRanks>,
    deadline: Instant,
) -> Result<RankSetup, Failure> {
    rendezvous.send(&FromRank::Join(Join {
        version: VERSION,
        name: options.name.clone(),
        run: options.run.clone(),
        size: options.size,
        rank: options.rank,
    }))?;
    let (seat, observed, probe, heartbeat_ms) = match rendezvous.wait(deadline)? {
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
                format!("the rendezvous at {} did not respond in time", options.rendezvous),
            ));
        }
    };
    rendezvous.keep_alive(Duration::from_millis(heartbeat_ms.max(1)));
    let run = <[u8; 16]>::try_from(hex::decode(&seat.nonce).unwrap_or_default());
    let run = run.map_err(|_| broken("it sent no name of the run"))?;
    if seat.size != options.size || seat.rank >= seat.size || options.rank.is_some_and(|rank| rank != seat.rank) {
        return Err(broken("it assigned another rank than was requested"));
    }
    let identity = new_identity()?;
    let socket_name = format!("dayfly-{}-{}-{}", seat.nonce, seat.rank, hex::encode(random::<8>()?));
    let listeners = listen(rendezvous.local(), &socket_name, options.routes.local)?;
    let mut card = introduce(
        &identity,
        rendezvous,
        &listeners,
        &socket_name,
        observed,
        probe,
        deadline,
    )?;
    card.store = options
        .store
        .as_ref()
        .map(|place| format!("{place} ({})", options.channel.name()));
    card.settings_digest = options.settings_digest;
    let text = serde_json::to_string(&card).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    if text.len() > MAX_FROM_RANK / 2 {
        return Err(Failure::new(Code::Internal, "this rank's card is too long"));
    }
    let mac = hex::encode(keys.seal_card(&run, seat.rank, seat.size, &text));
    rendezvous.send(&FromRank::Card(Sealed { card: text, mac }))?;
    let cards = await_world(options, rendezvous, &seat, deadline)?;
    let met_at = Instant::now();
    let cards = open_cards(&keys, &run, &seat, &cards)?;
    if let Some(other) = cards
        .iter()
        .position(|card| card.settings_digest != options.settings_digest)
    {
        return Err(Failure::new(
            Code::Mismatch,
            format!(
                "rank {other} has other algorithms, another fabric or another way of connecting than rank {}: give all ranks the same tables and fabric, and connect all lazily or none",
                seat.rank
            ),
        ));
    }
    let hosts = hosts(&cards);
    one_store(&cards, seat.rank)?;
    let routes = match (options.channel, &options.store) {
        (Channel::Stored, _) => RouteOptions::only_stored(),
        (Channel::Direct, store) => RouteOptions {
            stored: store.is_some(),
            ..options.routes
        },
    };
    let new =
        |place: &StoreUrl| StoreRoute::new(place.clone(), &options.name, &run, seat.rank, seat.size, lost.clone());
    let stored = options.store.as_ref().map(new).map(Arc::new);
    Ok(RankSetup {
        keys,
        identity,
        run,
        seat,
        cards,
        hosts,
        routes,
        trust: options.trust,
        lazy_connect: options.lazy_connect,
        listeners,
        stored,
        met_at,
        deadline,
    })
}

/// Builds the card by which the others find this rank.
fn introduce(
    identity: &Identity,
    rendezvous: &mut RendezvousClient,
    listeners: &Listeners,
    socket_name: &str,
    observed: SocketAddr,
    probe: u16,
    deadline: Instant,
) -> Result<Card, Failure> {
    let addresses = host::addresses();
    let local = rendezvous.local();
    let own = observed.ip() == local.ip().to_canonical() || addresses.contains(&observed.ip());
    let nat = if own && observed.port() == local.port() {
        Nat::None
    } else {
        match rendezvous.probe(probe, deadline)? {
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
        settings_digest: 0,
        store: None,
    })
}

fn await_world(
    options: &JoinOptions,
    rendezvous: &mut RendezvousClient,
    seat: &Seat,
    deadline: Instant,
) -> Result<Vec<Sealed>, Failure> {
    let mut absent = (Vec::new(), 0);
    loop {
        match rendezvous.wait(deadline)? {
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
        return Err(broken("it sent too few cards or too many"));
    }
    let open = |(sealed, rank): (&Sealed, u32)| {
        let expected = keys.seal_card(run, rank, seat.size, &sealed.card);
        let sound = hex::decode(&sealed.mac).is_ok_and(|mac| same_tag(&expected, &mac));
        if !sound {
            return Err(Failure::new(
                Code::Unauthorized,
                format!(
                    "the card of rank {rank} was not made with this group's secret; give all ranks the same secret"
                ),
            ));
        }
        let card = serde_json::from_str::<Card>(&sealed.card);
        let card = card.ok().filter(|card| card.locals.len() <= MAX_ADDRESSES);
        card.ok_or_else(|| broken(&format!("the card of rank {rank} is malformed")))
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
        format!("the rendezvous broke the protocol: {what}"),
    )
}

fn unexpected(message: &ToRank) -> Failure {
    match message {
        ToRank::Lost { rank, reason } => connect::lost(*rank, reason),
        other => {
            let text = format!("{other:?}");
            broken(&format!(
                "it sent {} out of turn",
                text.chars().take(60).collect::<String>()
            ))
        }
    }
}
