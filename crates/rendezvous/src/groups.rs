//! The groups and their ranks. Pure: no I/O, no clock, no randomness; the server supplies all three.
//!
//! A group exists from its first rank to its last. It forms until all ranks have sent their cards. It accepts no ranks
//! after that, or after its first loss. A named run is remembered for a while after its end, so that a late rank does
//! not wait for ranks that are gone.

use std::collections::{BTreeMap, HashMap, VecDeque};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;

use crate::messages::{
    Join, MAX_MISSING, MAX_PUBLISHED, MAX_SERVICE, Sealed, Seat, ServiceAction, ServiceRequest, ToRank, VERSION,
};

/// Number of a connection. The server uses each number once.
pub type ConnectionId = u64;

/// Ranks of the largest group.
const MAX_RANKS: u32 = 1 << 16;
/// Longest name of a group or of a run, in bytes.
const MAX_NAME: usize = 200;
/// Longest reason that is passed on, in characters.
const MAX_REASON: usize = 500;
/// Most groups at a time.
const MAX_GROUPS: usize = 100_000;
/// Most services of a group.
const MAX_SERVICES: usize = 1024;
/// Most finished runs that are remembered.
const MAX_FINISHED: usize = 10_000;

/// A message to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The receivers.
    pub to: Vec<ConnectionId>,
    /// The message.
    pub message: ToRank,
}

/// Name of the group, and of the run.
type Key = (String, String);

#[derive(Debug)]
struct Member {
    conn: ConnectionId,
    card: Option<Sealed>,
}

#[derive(Debug)]
struct Group {
    verifier: PublicKey,
    nonce: [u8; 16],
    size: u32,
    /// Ranks that are present. A lost rank has no entry.
    members: BTreeMap<u32, Member>,
    cards: u32,
    formed: bool,
    lost: Option<(u32, String)>,
}

impl Group {
    fn conns(&self) -> Vec<ConnectionId> {
        self.members.values().map(|member| member.conn).collect()
    }

    fn missing(&self) -> impl Iterator<Item = u32> {
        (0..self.size).filter(|rank| !self.members.contains_key(rank))
    }
}

/// A group, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSummary {
    /// Name of the group.
    pub name: String,
    /// The run; may be empty.
    pub run: String,
    /// Number of ranks.
    pub size: u32,
    /// Ranks that are present, in order.
    pub ranks: Vec<u32>,
    /// Whether all ranks have met.
    pub is_formed: bool,
    /// The first lost rank, and why it was lost.
    pub lost: Option<(u32, String)>,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    groups: HashMap<Key, Group>,
    /// For each name its owner's key, and its number of groups.
    names: HashMap<String, (PublicKey, usize)>,
    /// For each name of groups the texts of services.
    services: HashMap<String, HashMap<String, String>>,
    seats: HashMap<ConnectionId, (Key, u32)>,
    finished: HashMap<Key, PublicKey>,
    finished_order: VecDeque<Key>,
}

fn refused<T>(code: Code, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(code, text))
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect()
}

fn check_version(version: u32) -> Result<(), Failure> {
    if version != VERSION {
        let text = format!(
            "the rendezvous uses version {VERSION} and the rank version {version}; use the same release of Dayfly on both"
        );
        return refused(Code::VersionMismatch, text);
    }
    Ok(())
}

fn check(join: &Join) -> Result<(), Failure> {
    check_version(join.version)?;
    for (what, text) in [("name", &join.name), ("run", &join.run)] {
        if text.len() > MAX_NAME || text.chars().any(char::is_control) {
            let text = format!("a group's {what} has at most {MAX_NAME} bytes and no control characters");
            return refused(Code::InvalidRequest, text);
        }
    }
    if join.name.is_empty() {
        return refused(Code::InvalidRequest, "the group's name is empty; give it a name");
    }
    if join.size == 0 || join.size > MAX_RANKS {
        let text = format!("a group has 1 to {MAX_RANKS} ranks, not {}", join.size);
        return refused(Code::InvalidRequest, text);
    }
    if let Some(rank) = join.rank.filter(|rank| *rank >= join.size) {
        let text = format!(
            "there is no rank {rank} in a group of {} ranks; ranks are numbered from 0",
            join.size
        );
        return refused(Code::InvalidRequest, text);
    }
    Ok(())
}

impl Groups {
    /// Adds a rank to a group. `verifier` is the key that it showed; `nonce` is random and names the run if this rank
    /// is the first.
    pub fn join(
        &mut self,
        conn: ConnectionId,
        verifier: PublicKey,
        join: &Join,
        nonce: [u8; 16],
    ) -> Result<Seat, Failure> {
        check(join)?;
        if self.seats.contains_key(&conn) {
            return refused(Code::ProtocolViolation, "this connection has joined a group already");
        }
        let key = (join.name.clone(), join.run.clone());
        let owner = self.names.get(&join.name).map(|(owner, _)| owner);
        if owner
            .or_else(|| self.finished.get(&key))
            .is_some_and(|owner| *owner != verifier)
        {
            let text = format!(
                "group `{}` already exists with another secret; give this rank the group's secret, or use another name",
                join.name
            );
            return refused(Code::Unauthorized, text);
        }
        if self.finished.contains_key(&key) {
            let text = format!(
                "run `{}` of group `{}` has ended, and this rank is late or left over from it; start a new run",
                join.run, join.name
            );
            return refused(Code::InvalidRequest, text);
        }
        if !self.groups.contains_key(&key) {
            self.create(&key, verifier, join.size, nonce)?;
        }
        let Some(group) = self.groups.get_mut(&key) else {
            return refused(Code::Internal, "the group no longer exists; report this");
        };
        if let Some((rank, reason)) = &group.lost {
            let text = format!(
                "group `{}` has already lost rank {rank}: {reason}; wait until its other ranks have ended, then start all ranks again",
                join.name
            );
            return refused(Code::RankLost, text);
        }
        if group.size != join.size {
            let text = format!(
                "group `{}` has {} ranks, but this rank was started for a group of {}; give all ranks the same number",
                join.name, group.size, join.size
            );
            return refused(Code::Mismatch, text);
        }
        if group.formed {
            let text = format!(
                "group `{}` has all its {} ranks; this rank is surplus or left over from an earlier run",
                join.name, group.size
            );
            return refused(Code::InvalidRequest, text);
        }
        let rank = match join.rank {
            Some(rank) if group.members.contains_key(&rank) => {
                let text = format!(
                    "rank {rank} of group `{}` has already joined; start each rank once",
                    join.name
                );
                return refused(Code::InvalidRequest, text);
            }
            Some(rank) => rank,
            None => match group.missing().next() {
                Some(rank) => rank,
                None => {
                    return refused(
                        Code::InvalidRequest,
                        format!("all ranks of group `{}` have already joined", join.name),
                    );
                }
            },
        };
        group.members.insert(rank, Member { conn, card: None });
        let seat = Seat {
            rank,
            size: group.size,
            nonce: hex::encode(group.nonce),
        };
        self.seats.insert(conn, (key, rank));
        Ok(seat)
    }

    fn create(&mut self, key: &Key, verifier: PublicKey, size: u32, nonce: [u8; 16]) -> Result<(), Failure> {
        if self.groups.len() >= MAX_GROUPS {
            let text = format!("this rendezvous has its maximum of {MAX_GROUPS} groups; wait, or use another one");
            return refused(Code::NoCapacity, text);
        }
        self.names.entry(key.0.clone()).or_insert((verifier, 0)).1 += 1;
        let group = Group {
            verifier,
            nonce,
            size,
            members: BTreeMap::new(),
            cards: 0,
            formed: false,
            lost: None,
        };
        self.groups.insert(key.clone(), group);
        Ok(())
    }

    fn group_of(&mut self, conn: ConnectionId) -> Result<(&mut Group, u32), Failure> {
        let found = self.seats.get(&conn);
        match found.and_then(|(key, rank)| self.groups.get_mut(key).map(|group| (group, *rank))) {
            Some(found) => Ok(found),
            None => refused(Code::ProtocolViolation, "this connection has joined no group"),
        }
    }

    /// Records a rank's card. With the last card, all ranks get all cards.
    pub fn card(&mut self, conn: ConnectionId, card: Sealed) -> Result<Vec<Delivery>, Failure> {
        let (group, rank) = self.group_of(conn)?;
        match group.members.get_mut(&rank) {
            Some(member) if member.card.is_none() && !group.formed => member.card = Some(card),
            _ => return refused(Code::ProtocolViolation, "a rank has one card"),
        }
        group.cards += 1;
        if group.cards < group.size || group.lost.is_some() {
            return Ok(Vec::new());
        }
        group.formed = true;
        // The cards are not needed here any more.
        let cards = group
            .members
            .values_mut()
            .filter_map(|member| member.card.take())
            .collect();
        Ok(vec![Delivery {
            to: group.conns(),
            message: ToRank::World { cards },
        }])
    }

    /// Ranks that have not arrived: the first of them, and their number.
    pub fn missing(&mut self, conn: ConnectionId) -> Result<(Vec<u32>, u32), Failure> {
        let (group, _) = self.group_of(conn)?;
        if group.formed {
            return Ok((Vec::new(), 0));
        }
        let count = group.size - u32::try_from(group.members.len()).unwrap_or(group.size);
        Ok((group.missing().take(MAX_MISSING).collect(), count))
    }

    /// The pair that a rank wants relayed: the run's random name, and both ranks.
    pub fn pair(&mut self, conn: ConnectionId, to: u32) -> Result<([u8; 16], u32, u32), Failure> {
        let (group, rank) = self.group_of(conn)?;
        if !group.formed || to >= group.size || to == rank {
            return refused(
                Code::ProtocolViolation,
                format!("rank {rank} cannot be relayed to rank {to}"),
            );
        }
        Ok((group.nonce, rank, to))
    }

    /// Handles a call: both ranks are informed at the same time, as simultaneous open requires.
    pub fn call(&mut self, conn: ConnectionId, to: u32) -> Result<Vec<Delivery>, Failure> {
        let (group, rank) = self.group_of(conn)?;
        if !group.formed || to >= group.size || to == rank {
            return refused(Code::ProtocolViolation, format!("rank {rank} cannot call rank {to}"));
        }
        let delivery = |to, message| Delivery { to: vec![to], message };
        Ok(match group.members.get(&to) {
            Some(other) => vec![
                delivery(other.conn, ToRank::Called { rank }),
                delivery(conn, ToRank::Called { rank: to }),
            ],
            // The loss of a rank was reported to all.
            None => vec![delivery(conn, ToRank::Left { rank: to })],
        })
    }

    /// Handles the end or the silence of a connection: its rank is lost, and all others of its group are informed.
    pub fn lose(&mut self, conn: ConnectionId, reason: &str) -> Vec<Delivery> {
        let Some((key, rank)) = self.seats.remove(&conn) else {
            return Vec::new();
        };
        let Some(group) = self.groups.get_mut(&key) else {
            return Vec::new();
        };
        group.members.remove(&rank);
        let reason = cut(reason);
        let first = group.lost.is_none();
        group.lost.get_or_insert_with(|| (rank, reason.clone()));
        if !first && !group.formed {
            // The others know that the group will not form, and leave for that reason.
            self.forget_if_empty(&key);
            return Vec::new();
        }
        let delivery = Delivery {
            to: group.conns(),
            message: ToRank::Lost { rank, reason },
        };
        self.forget_if_empty(&key);
        if delivery.to.is_empty() {
            Vec::new()
        } else {
            vec![delivery]
        }
    }

    /// A rank leaves in an orderly way. Its last messages may still be in flight, so connected ranks are not informed.
    /// Ranks that wait for it are.
    pub fn leave(&mut self, conn: ConnectionId, reason: Option<&str>) -> Vec<Delivery> {
        if let Some(reason) = reason {
            return self.lose(conn, reason);
        }
        if matches!(self.group_of(conn), Ok((group, _)) if !group.formed) {
            return self.lose(conn, "it left before all ranks had joined");
        }
        if let Some((key, rank)) = self.seats.remove(&conn)
            && let Some(group) = self.groups.get_mut(&key)
        {
            group.members.remove(&rank);
            self.forget_if_empty(&key);
        }
        Vec::new()
    }

    fn forget_if_empty(&mut self, key: &Key) {
        if self.groups.get(key).is_none_or(|group| !group.members.is_empty()) {
            return;
        }
        let Some(group) = self.groups.remove(key) else {
            return;
        };
        if let Some((_, count)) = self.names.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.names.remove(&key.0);
                self.services.remove(&key.0);
            }
        }
        // An unnamed run may be followed by another one.
        if !key.1.is_empty() {
            self.finished.insert(key.clone(), group.verifier);
            self.finished_order.push_back(key.clone());
            if self.finished_order.len() > MAX_FINISHED
                && let Some(oldest) = self.finished_order.pop_front()
            {
                self.finished.remove(&oldest);
            }
        }
    }

    /// Handles a request about the name of a service, of a client that showed this key.
    pub fn service(&mut self, verifier: PublicKey, request: ServiceRequest) -> Result<Option<String>, Failure> {
        let ServiceRequest {
            version,
            group,
            service,
            action,
        } = request;
        check_version(version)?;
        if service.is_empty() || service.len() > MAX_SERVICE {
            let text = format!("the name of a service has between 1 and {MAX_SERVICE} bytes");
            return refused(Code::InvalidRequest, text);
        }
        match self.names.get(&group) {
            Some((owner, _)) if *owner == verifier => {}
            // The same for both, so that others do not learn which groups there are.
            _ => {
                let text =
                    "services belong to a group that has ranks, and to those with its secret; that group has ended";
                return refused(Code::NotFound, text);
            }
        }
        match action {
            ServiceAction::LookUp => Ok(self.services.get(&group).and_then(|of| of.get(&service)).cloned()),
            ServiceAction::Withdraw => Ok(self.services.get_mut(&group).and_then(|of| of.remove(&service))),
            ServiceAction::Publish { text } => {
                let of = self.services.entry(group).or_default();
                if let Some(earlier) = of.get(&service) {
                    return Ok(Some(earlier.clone()));
                }
                if text.len() > MAX_PUBLISHED || of.len() >= MAX_SERVICES {
                    let text = format!("a group publishes at most {MAX_SERVICES} texts of {MAX_PUBLISHED} bytes each");
                    return refused(Code::TooLarge, text);
                }
                of.insert(service, text);
                Ok(None)
            }
        }
    }

    /// Describes groups whose names begin so, in the order of their names; at most `most`.
    pub fn list(&self, prefix: &str, most: usize) -> Vec<GroupSummary> {
        let named = self.groups.keys().filter(|(name, _)| name.starts_with(prefix));
        let mut keys: Vec<&Key> = named.collect();
        keys.sort();
        let described = keys.into_iter().take(most).filter_map(|key| {
            let group = self.groups.get(key)?;
            Some(GroupSummary {
                name: key.0.clone(),
                run: key.1.clone(),
                size: group.size,
                ranks: group.members.keys().copied().collect(),
                is_formed: group.formed,
                lost: group.lost.clone(),
            })
        });
        described.collect()
    }

    /// Number of groups and of ranks.
    pub fn counts(&self) -> (usize, usize) {
        (self.groups.len(), self.seats.len())
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
