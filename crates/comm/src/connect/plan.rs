//! Which ways to another rank are worth trying, and when.
//!
//! Both ranks of a pair make their half of the plan by themselves, from both cards, and begin when they get the world: that is the
//! common moment that opening at once needs. Ways that only one of two has to go are left to the one who is behind a NAT, or has the
//! higher number; the other follows if nothing has come of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use dayfly_rendezvous::messages::{Card, Nat};

use super::hello::Way;

/// When somebody whose NAT gives each connection another port tries again, from another port of its own: the first time, the other's
/// NAT may not have been opened yet.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(700),
];
/// Where the one who is to dial has a head start, it is this.
const HEAD_START: Duration = Duration::from_millis(250);

/// Which ways may be gone at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// Sockets of the host.
    pub local: bool,
    /// One dials the other.
    pub direct: bool,
    /// Both dial, from the ports that their NATs have given them.
    pub punch: bool,
    /// Through the relay.
    pub relay: bool,
    /// How long the others are tried before the relay is.
    pub relay_after: Duration,
    /// Through a store, where both have the same.
    pub stored: bool,
    /// How long the others are tried before the store is.
    pub stored_after: Duration,
    /// Whether somebody else joins for this rank, from a network that it is not to learn about: then only what [may be a rank
    /// elsewhere](may_be_a_rank) is dialled, and a failure does not tell what came of each address.
    pub cautious: bool,
}

impl Ways {
    /// No way at all, for those who name the few that they want.
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

    /// No way but the store.
    pub fn only_stored() -> Self {
        Self {
            stored: true,
            ..Self::none()
        }
    }

    /// Whether there is no way but the store.
    pub fn are_only_stored(&self) -> bool {
        self.stored && !(self.local || self.direct || self.punch || self.relay)
    }
}

impl Default for Ways {
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

/// Ports below are those of services; ranks listen on ports that the system gives them.
const FIRST_PORT: u16 = 1024;

/// Whether an address may be that of a rank on another host. Somebody outside could name any other just to have it dialled: a
/// service of this host that trusts its loopback, or the one at which clouds tell their machines' credentials (169.254.169.254).
pub fn may_be_a_rank(address: &SocketAddr) -> bool {
    let here = match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast()
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local() || ip.is_multicast(),
    };
    !here && address.port() >= FIRST_PORT
}

/// Where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An abstract Unix socket.
    Local(String),
    /// An address.
    Address(SocketAddr),
    /// Whatever the rendezvous gives a ticket to.
    Relay,
    /// What the two store for each other.
    Store,
}

/// One thing to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where to.
    pub target: Target,
    /// How.
    pub way: Way,
    /// How long after the world was told.
    pub after: Duration,
    /// Whether it is dialled from the port that the rendezvous saw.
    pub known_port: bool,
}

/// A rank, as the plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct Party<'a> {
    /// Its number.
    pub rank: u32,
    /// What it says of itself.
    pub card: &'a Card,
}

/// What `me` is to try to reach `peer`.
pub fn plan(me: Party<'_>, peer: Party<'_>, ways: &Ways) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut add = |target, way, after| {
        if matches!(&target, Target::Address(address) if ways.cautious && !may_be_a_rank(address)) {
            return;
        }
        // An address may be both a rank's own and the one that the rendezvous saw.
        if steps.iter().all(|known| known.target != target || known.way != way) {
            steps.push(Step {
                target,
                way,
                after,
                known_port: way == Way::Punch,
            });
        }
    };
    let (mine, theirs) = (me.card, peer.card);
    let dials = me.rank > peer.rank;
    let turn = |first: bool| if first { Duration::ZERO } else { HEAD_START };
    let one_host = mine.host == theirs.host;
    let local = ways.local && one_host && mine.user == theirs.user;
    if let Some(name) = theirs.unix.as_ref().filter(|_| local && mine.unix.is_some() && dials) {
        add(Target::Local(name.clone()), Way::Local, Duration::ZERO);
    }
    // Where sockets of the host do, nothing else is tried before they had their time.
    let begin = if local { HEAD_START } else { Duration::ZERO };
    if one_host {
        let port = theirs.locals.iter().find(|address| address.is_ipv4());
        if let Some(port) = port.filter(|_| ways.direct) {
            let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.port());
            add(Target::Address(loopback), Way::Direct, begin + turn(dials));
        }
    }
    let first = match (mine.is_translated(), theirs.is_translated()) {
        (true, false) => true,
        (false, true) => false,
        _ => dials,
    };
    // Within a host the loopback does; the rest is for what filters it.
    let begin = if one_host { begin + HEAD_START } else { begin };
    if ways.direct {
        let same_family = |address: &SocketAddr| mine.locals.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        // A loopback's address, of a rank beside the rendezvous, leads everybody else to themselves.
        let reachable = |address: &&SocketAddr| same_family(address) && (one_host || !address.ip().is_loopback());
        for address in theirs.locals.iter().filter(reachable) {
            add(Target::Address(*address), Way::Direct, begin + turn(first));
        }
        if theirs.is_translated() && !mine.is_translated() {
            add(Target::Address(theirs.observed), Way::Direct, begin + HEAD_START);
        }
    }
    // Without a NAT there may still be a filter that lets answers in. Behind one and the same, the way inside is the better one.
    let seen = |card: &Card| !card.observed.ip().is_loopback();
    let one_family = mine.observed.is_ipv4() == theirs.observed.is_ipv4();
    let punch = ways.punch && one_family && !one_host && seen(mine) && seen(theirs);
    let both = mine.is_translated() && theirs.is_translated();
    let after = if both && mine.observed.ip() != theirs.observed.ip() {
        Duration::ZERO
    } else {
        begin + HEAD_START * 2
    };
    if punch {
        add(Target::Address(theirs.observed), Way::Punch, after);
    }
    if ways.relay {
        let hopeless = !local && (!ways.direct && !ways.punch || cannot_meet(mine, theirs));
        add(
            Target::Relay,
            Way::Relay,
            if hopeless { Duration::ZERO } else { ways.relay_after },
        );
    }
    if ways.stored && mine.store.is_some() && mine.store == theirs.store {
        let after = if ways.are_only_stored() {
            Duration::ZERO
        } else {
            ways.stored_after
        };
        add(Target::Store, Way::Stored, after);
    }
    let allowed = !ways.cautious || may_be_a_rank(&theirs.observed);
    if punch && allowed && mine.nat == Nat::Dependent && theirs.nat != Nat::Dependent {
        steps.extend(AGAIN.map(|again| Step {
            target: Target::Address(theirs.observed),
            way: Way::Punch,
            after: after + again,
            known_port: false,
        }));
    }
    steps
}

/// Whether neither can know where the other will be seen, and they are not behind one and the same NAT.
fn cannot_meet(mine: &Card, theirs: &Card) -> bool {
    let unknown = |card: &Card| card.nat == Nat::Dependent;
    unknown(mine) && unknown(theirs) && mine.observed.ip() != theirs.observed.ip() && {
        // The one family that needs no NAT.
        let six = |card: &Card| card.locals.iter().any(SocketAddr::is_ipv6);
        !(six(mine) && six(theirs))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
