//! Ports: names by which two worlds connect.
//!
//! The name of a port holds the address of a rendezvous, and 24 random bytes: so only who was given the name can connect.
//! The root that accepts and the root that connects meet there, in a group of two, and invite all their ranks to a new
//! group. One connects at a time; others try again until their time is over.

use std::fmt;
use std::os::fd::RawFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_comm::{Invitation, World};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use dayfly_rendezvous::keys::random;

use super::bridge::{bridge, bridge_over, meanwhile, share, template};
use crate::comm_create::Link;
use crate::communicator::{self, CommObject, make};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Info};
use crate::info;
use crate::pointer::Text;

/// Room that programs have for the name of a port.
pub const MAX_PORT_NAME: usize = 256;
/// Random bytes of a port: of the name of its group, and of that group's secret.
const NAME_BYTES: usize = 8;
const SECRET_BYTES: usize = 16;
/// Pause before another try to meet at a port that is in use.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const SCHEME: &str = "dayfly:";

/// A port.
#[derive(Clone, PartialEq, Eq)]
struct Port {
    rendezvous: String,
    key: Option<PublicKey>,
    name: String,
    secret: String,
}

/// Ports that this process has closed.
static CLOSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.map(|key| hex::encode(key.0)).unwrap_or_default();
        write!(f, "{SCHEME}{}/{key}/{}/{}", self.rendezvous, self.name, self.secret)
    }
}

impl FromStr for Port {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::new(class::PORT, "the text is no name of a port; MPI_Open_port returns one");
        let mut parts = text.strip_prefix(SCHEME).ok_or_else(invalid)?.split('/');
        let [Some(rendezvous), Some(key), Some(name), Some(secret), None] = [(); 5].map(|()| parts.next()) else {
            return Err(invalid());
        };
        let is_random = |text: &str, bytes: usize| hex::decode(text).is_ok_and(|decoded| decoded.len() == bytes);
        if rendezvous.is_empty() || !is_random(name, NAME_BYTES) || !is_random(secret, SECRET_BYTES) {
            return Err(invalid());
        }
        let key = match key {
            "" => None,
            key => {
                let bytes = hex::decode(key).ok().and_then(|bytes| bytes.try_into().ok());
                Some(PublicKey(bytes.ok_or_else(invalid)?))
            }
        };
        Ok(Self {
            rendezvous: rendezvous.into(),
            key,
            name: name.into(),
            secret: secret.into(),
        })
    }
}

impl Port {
    /// The group in which two roots meet.
    fn group(&self, template: Invitation, rank: u32) -> Invitation {
        // The voucher is that of the own rendezvous, which usually is the port's.
        Invitation {
            rendezvous: self.rendezvous.clone(),
            key: self.key,
            name: format!("port-{}", self.name),
            run: String::new(),
            secret: self.secret.clone(),
            rank: Some(rank),
            size: 2,
            // These must be equal on both sides, which may differ in them.
            tables: None,
            fabric: None,
            lazy_connect: false,
            ..template
        }
    }
}

/// `MPI_Open_port`.
pub fn open() -> Result<String> {
    let Invitation { rendezvous, key, .. } = template()?;
    let port = Port {
        rendezvous,
        key,
        name: hex::encode(random::<NAME_BYTES>()?),
        secret: hex::encode(random::<SECRET_BYTES>()?),
    };
    let text = port.to_string();
    match text.len() < MAX_PORT_NAME {
        true => Ok(text),
        false => Err(Error::new(
            class::PORT,
            format!("the address {} is too long for the name of a port", port.rendezvous),
        )),
    }
}

/// `MPI_Close_port`.
pub fn close(port: &str) -> Result<()> {
    Port::from_str(port)?;
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    if closed.iter().any(|other| other == port) {
        return Err(Error::new(class::PORT, "the port was closed already"));
    }
    closed.push(port.into());
    Ok(())
}

/// Which side of a port a root is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Accepts,
    Connects,
}

/// `MPI_Comm_accept` and `MPI_Comm_connect`.
pub fn meet(object: &Arc<CommObject>, root: u32, side: Side, port: Text, pairs: Info) -> Result<Comm> {
    let met = (object.rank() == root).then(|| meet_other_root(side, &port.get()?, pairs));
    let other = share(object, root, met)?;
    let link = Link {
        comm: match &other {
            Some(other) => &other.communicator,
            None => object.local()?,
        },
        other: u32::from(side == Side::Accepts),
        tag: 0,
    };
    Ok(make(bridge_over(object, root, &link, side == Side::Accepts)?))
}

fn meet_other_root(side: Side, name: &str, pairs: Info) -> Result<World> {
    let port = Port::from_str(name)?;
    if side == Side::Accepts
        && CLOSED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .any(|other| other == name)
    {
        return Err(Error::new(class::PORT, "the port is closed"));
    }
    let template = template()?;
    let asked = info::optional(pairs)?.and_then(|pairs| {
        let pairs = pairs.pairs();
        let found = pairs.iter().find(|(key, _)| key == "timeout");
        found.and_then(|(_, value)| value.parse().ok())
    });
    let limit_s = asked.unwrap_or(match side {
        Side::Accepts => template.deadline_s,
        Side::Connects => template.patience_s,
    });
    let group = port.group(template, u32::from(side == Side::Connects));
    meanwhile(move || join_pair(group, limit_s))?.map_err(|failure| {
        let text = match side {
            Side::Accepts => format!(
                "nothing has connected to the port within {limit_s} s: {}",
                failure.message
            ),
            Side::Connects => format!("nothing accepts at the port: {}", failure.message),
        };
        let code = match (side, failure.code) {
            (Side::Accepts, Code::TimedOut) => class::TIMEOUT,
            _ => class::PORT,
        };
        Error {
            failure: Some(failure.code),
            ..Error::new(code, text)
        }
    })
}

/// Meets the other root. While others meet at the port, or if the other root is lost, tries again.
fn join_pair(mut group: Invitation, limit_s: u64) -> std::result::Result<World, Failure> {
    let until = Instant::now() + Duration::from_secs(limit_s);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        group.patience_s = left.as_secs().max(1);
        match group.accept() {
            Err(failure) if matches!(failure.code, Code::RankLost | Code::InvalidRequest) && !left.is_zero() => {
                std::thread::sleep(RETRY_PAUSE.min(left));
            }
            outcome => return outcome,
        }
    }
}

/// First bytes of a proposal.
const MAGIC: [u8; 8] = *b"DFMPIJN1";
const CHANCE_BYTES: usize = 16;
/// Longest invitation of another process.
const MAX_INVITATION: usize = 1 << 16;

/// `MPI_Comm_join`. Both processes send a proposal; that with the lower random number is taken.
pub fn join(descriptor: RawFd) -> Result<Comm> {
    let template = template()?;
    let limit = Duration::from_secs(template.patience_s);
    let chance = random::<CHANCE_BYTES>()?;
    let own = template.to_new_group(2)?;
    let text = own.to_json();
    let (their_chance, their_text) = meanwhile(move || exchange(descriptor, &chance, &text, Instant::now() + limit))?
        .map_err(|error| {
        let text = format!("the process at the other end of the socket does not call MPI_Comm_join: {error}");
        Error::new(class::OTHER, text)
    })?;
    let (mut invitation, rank) = match chance.cmp(&their_chance) {
        std::cmp::Ordering::Less => (own, 0),
        std::cmp::Ordering::Greater => (Invitation::from_json(&their_text)?, 1),
        std::cmp::Ordering::Equal => {
            return Err(Error::new(
                class::ARG,
                "the socket leads back to this process's own end",
            ));
        }
    };
    invitation.rank = Some(rank);
    let handler = communicator::get(Comm::SELF)?.handler();
    Ok(make(bridge(invitation, rank..rank + 1, 1 - rank..2 - rank, handler)?))
}

fn exchange(
    descriptor: RawFd,
    chance: &[u8; CHANCE_BYTES],
    text: &str,
    until: Instant,
) -> std::io::Result<([u8; CHANCE_BYTES], String)> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    // A proposal fits into the buffer of a socket, so that both may send first.
    let mut own = [&MAGIC[..], chance, &length, text.as_bytes()].concat();
    transfer(descriptor, &mut own, true, until)?;
    let mut head = [0; MAGIC.len() + CHANCE_BYTES + 4];
    transfer(descriptor, &mut head, false, until)?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let (their_chance, length) = rest.split_at(CHANCE_BYTES);
    let length = length.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
    if magic != MAGIC || length > MAX_INVITATION {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut theirs = vec![0; length];
    transfer(descriptor, &mut theirs, false, until)?;
    let mut chance = [0; CHANCE_BYTES];
    chance.copy_from_slice(their_chance);
    String::from_utf8(theirs)
        .map(|theirs| (chance, theirs))
        .map_err(|_| std::io::ErrorKind::InvalidData.into())
}

/// Sends or receives all bytes over a socket of the program, which may or may not block.
fn transfer(descriptor: RawFd, bytes: &mut [u8], sends: bool, until: Instant) -> std::io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let mut polled = libc::pollfd {
            fd: descriptor,
            events: if sends { libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        };
        let longest = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        let rest = &mut bytes[at..];
        // SAFETY: one entry is passed, and as many bytes as there are.
        let moved = unsafe {
            libc::poll(&raw mut polled, 1, longest);
            match sends {
                true => libc::send(
                    descriptor,
                    rest.as_ptr().cast(),
                    rest.len(),
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                ),
                false => libc::recv(descriptor, rest.as_mut_ptr().cast(), rest.len(), libc::MSG_DONTWAIT),
            }
        };
        match moved {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count if count > 0 => at += count as usize,
            _ => {
                let error = std::io::Error::last_os_error();
                let goes_on = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::Interrupted];
                if !goes_on.contains(&error.kind()) {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
