//! Plans which routes to another rank to try, and when.
//!
//! Both ranks of a pair compute their half of the plan from both cards. They begin when they receive the world, which
//! is the common moment that simultaneous open needs. If one dialling rank suffices, it is the one behind a NAT, or the
//! one with the higher number. The other follows later if that fails.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use dayfly_rendezvous::messages::{Card, Nat};

use crate::Route;

/// When a rank whose NAT maps each connection to another port dials again from a new port: at the first time, the other
/// NAT may not be open yet.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(700),
];
/// Head start of the rank that dials first.
const HEAD_START: Duration = Duration::from_millis(250);

/// Routes that may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteOptions {
    /// Sockets of the host.
    pub local: bool,
    /// One rank dials the other.
    pub direct: bool,
    /// Both ranks dial, from the ports that their NATs have mapped.
    pub punch: bool,
    /// Through the relay.
    pub relay: bool,
    /// How long the other routes are tried before the relay.
    pub relay_after: Duration,
    /// Through a store, if both ranks have the same one.
    pub stored: bool,
    /// How long the other routes are tried before the store.
    pub stored_after: Duration,
    /// Whether another process joins for this rank, from a network that the rank must not explore. Then only addresses
    /// that [may belong to a rank](may_be_a_rank) are dialled, and an error does not name the result of each address.
    pub cautious: bool,
}

impl RouteOptions {
    /// No route, as a base for struct updates.
    pub fn none() -> Self {
        Self {
            local: false,
            direct: false,
            punch: false,
            relay: false,
            stored: false,
            ..Self::default()
        }
    }

    /// Only the store.
    pub fn only_stored() -> Self {
        Self {
            stored: true,
            ..Self::none()
        }
    }

    /// Whether the store is the only route.
    pub fn are_only_stored(&self) -> bool {
        self.stored && !(self.local || self.direct || self.punch || self.relay)
    }
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            local: true,
            direct: true,
            punch: true,
            relay: true,
            relay_after: Duration::from_secs(1),
            stored: false,
            stored_after: Duration::from_secs(3),
            cautious: false,
        }
    }
}

/// Lower ports belong to services; ranks listen on ports that the system chooses.
const FIRST_PORT: u16 = 1024;

/// Whether an address may belong to a rank on another host. An outsider could name any other address to have it
/// dialled: a service on this host's loopback, or a cloud's metadata service (169.254.169.254).
pub fn may_be_a_rank(address: &SocketAddr) -> bool {
    let here = match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast()
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local() || ip.is_multicast(),
    };
    !here && address.port() >= FIRST_PORT
}

/// Target of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An abstract Unix socket.
    Local(String),
    /// An address.
    Address(SocketAddr),
    /// The peer of a ticket that the rendezvous gives.
    Relay,
    /// The store.
    Store,
}

/// One attempt to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub target: Target,
    pub route: Route,
    /// Delay since the rank received the world.
    pub after: Duration,
    /// Whether to dial from the port that the rendezvous observed.
    pub known_port: bool,
}

/// A rank of a pair.
#[derive(Debug, Clone, Copy)]
pub struct Party<'a> {
    /// Its number.
    pub rank: u32,
    /// Its card.
    pub card: &'a Card,
}

/// The steps of `me` to reach `peer`.
pub fn plan(me: Party<'_>, peer: Party<'_>, routes: &RouteOptions) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |target, route, after| {
        if matches!(&target, Target::Address(address) if routes.cautious && !may_be_a_rank(address)) {
            return;
        }
        // An address may be both a rank's own and the one that the rendezvous observed.
        if steps.iter().all(|known| known.target != target || known.route != route) {
            steps.push(Step {
                target,
                route,
                after,
                known_port: route == Route::Punched,
            });
        }
    };
    let (mine, theirs) = (me.card, peer.card);
    let dials = me.rank > peer.rank;
    let turn = |first: bool| if first { Duration::ZERO } else { HEAD_START };
    let one_host = mine.host == theirs.host;
    let local = routes.local && one_host && mine.user == theirs.user;
    if let Some(name) = theirs.unix.as_ref().filter(|_| local && mine.unix.is_some() && dials) {
        add(Target::Local(name.clone()), Route::Local, Duration::ZERO);
    }
    // If sockets of the host may work, give them a head start.
    let begin = if local { HEAD_START } else { Duration::ZERO };
    if one_host {
        let port = theirs.locals.iter().find(|address| address.is_ipv4());
        if let Some(port) = port.filter(|_| routes.direct) {
            let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.port());
            add(Target::Address(loopback), Route::Direct, begin + turn(dials));
        }
    }
    let first = match (mine.is_translated(), theirs.is_translated()) {
        (true, false) => true,
        (false, true) => false,
        _ => dials,
    };
    // Within a host the loopback comes first; other addresses help if it is filtered.
    let begin = if one_host { begin + HEAD_START } else { begin };
    if routes.direct {
        let same_family = |address: &SocketAddr| mine.locals.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        // A loopback address, from a rank beside the rendezvous, would lead every other host to itself.
        let reachable = |address: &&SocketAddr| same_family(address) && (one_host || !address.ip().is_loopback());
        for address in theirs.locals.iter().filter(reachable) {
            add(Target::Address(*address), Route::Direct, begin + turn(first));
        }
        if theirs.is_translated() && !mine.is_translated() {
            add(Target::Address(theirs.observed), Route::Direct, begin + HEAD_START);
        }
    }
    // Without a NAT a stateful filter may still exist. Behind the same NAT, the inner address is the better route.
    let seen = |card: &Card| !card.observed.ip().is_loopback();
    let one_family = mine.observed.is_ipv4() == theirs.observed.is_ipv4();
    let punch = routes.punch && one_family && !one_host && seen(mine) && seen(theirs);
    let both = mine.is_translated() && theirs.is_translated();
    let after = if both && mine.observed.ip() != theirs.observed.ip() {
        Duration::ZERO
    } else {
        begin + HEAD_START * 2
    };
    if punch {
        add(Target::Address(theirs.observed), Route::Punched, after);
    }
    if routes.relay {
        let hopeless = !local && (!routes.direct && !routes.punch || cannot_meet(mine, theirs));
        add(
            Target::Relay,
            Route::Relay,
            if hopeless { Duration::ZERO } else { routes.relay_after },
        );
    }
    if routes.stored && mine.store.is_some() && mine.store == theirs.store {
        let after = if routes.are_only_stored() {
            Duration::ZERO
        } else {
            routes.stored_after
        };
        add(Target::Store, Route::Stored, after);
    }
    let allowed = !routes.cautious || may_be_a_rank(&theirs.observed);
    if punch && allowed && mine.nat == Nat::Dependent && theirs.nat != Nat::Dependent {
        steps.extend(AGAIN.map(|again| Step {
            target: Target::Address(theirs.observed),
            route: Route::Punched,
            after: after + again,
            known_port: false,
        }));
    }
    steps
}

/// Whether neither rank knows the port that the other will be seen at, and both are behind different NATs.
fn cannot_meet(mine: &Card, theirs: &Card) -> bool {
    let unknown = |card: &Card| card.nat == Nat::Dependent;
    unknown(mine) && unknown(theirs) && mine.observed.ip() != theirs.observed.ip() && {
        // IPv6 needs no NAT.
        let six = |card: &Card| card.locals.iter().any(SocketAddr::is_ipv6);
        !(six(mine) && six(theirs))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
