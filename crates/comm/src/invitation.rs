//! What a rank is told by whoever started it: how to find its group.

use std::path::Path;
use std::time::Duration;

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use dayfly_storage::Place;
use serde::{Deserialize, Serialize};

use crate::connect::Trust;
use crate::table::{Tables, digest};
use crate::{Channel, Communicator, JoinOptions, Joined, Options, connector, join};

/// The environment variable that holds an [`Invitation`] as JSON.
pub const GROUP_VARIABLE: &str = "DAYFLY_GROUP";

/// How a rank finds its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// Where the rendezvous is: `host:port`.
    pub rendezvous: String,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// The manager's word that the rendezvous is its own, as it gives it out with the address. Ranks in a sandbox without a network
    /// need it, whose node joins for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voucher: Option<String>,
    /// Name of the group.
    pub name: String,
    /// Which run of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// What all ranks know and nobody else, in hexadecimal; at least 16 bytes.
    pub secret: String,
    /// Which rank this is; any that is free if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// How many there are.
    pub size: u32,
    /// Whether nobody listens between the hosts, so that nothing is encrypted.
    #[serde(default)]
    pub trust_fabric: bool,
    /// Seconds within which all ranks must have come and be connected.
    #[serde(default = "half_a_minute")]
    pub patience_s: u64,
    /// Seconds that one operation may take.
    #[serde(default = "an_hour")]
    pub deadline_s: u64,
    /// Microseconds that a waiting rank polls before it sleeps; for ever if it is not said, not at all
    /// where it waits for a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u64>,
    /// Which algorithms collectives use, the same for all ranks; the usual ones if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Tables>,
    /// The provider of libfabric over which ranks on different hosts exchange, where both have it, such as `verbs` or
    /// `verbs/mlx5_0`; the same for all, who trust the fabric then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// URL of a store that ranks exchange through where there is no other way between them, or always: `s3://bucket/prefix`,
    /// `redis://host:port`, `rediss://`, `file:///directory`. The same for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Whether they always do; the same for all.
    #[serde(default)]
    pub channel: Channel,
    /// Whether two ranks are connected when one of them first needs the other, instead of all with all at once; the same for all.
    #[serde(default)]
    pub lazily: bool,
}

fn half_a_minute() -> u64 {
    30
}

fn an_hour() -> u64 {
    3600
}

/// A communicator of all ranks, and the place in the group that it needs.
#[derive(Debug)]
pub struct World {
    /// Declared first: ranks say good-bye to each other before they leave the group.
    pub communicator: Communicator,
    /// For each rank the lowest one that runs on the same host.
    pub hosts: Vec<u32>,
    /// To be kept while the communicator is used.
    pub membership: crate::membership::Membership,
}

impl Invitation {
    /// Reads what [`GROUP_VARIABLE`] holds; none where there is no such variable.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when it is no invitation.
    pub fn from_environment() -> Result<Option<Self>, Failure> {
        match std::env::var(GROUP_VARIABLE) {
            Ok(text) if !text.is_empty() => Self::from_json(&text).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map_err(|error| {
            Failure::new(
                Code::InvalidRequest,
                format!("this is no invitation to a group: {error}; {GROUP_VARIABLE} is set by `dayfly run`"),
            )
        })
    }

    /// Joins the group: comes back when all ranks are there and connected. In a sandbox without a network its node does so.
    ///
    /// # Errors
    /// As [`join`](join()) and [`Communicator::form`].
    pub fn accept(&self) -> Result<World, Failure> {
        let connector = Path::new(connector::SOCKET);
        if connector.exists() {
            return self.accept_through(connector);
        }
        self.form(join(&self.options()?)?)
    }

    /// Joins the group through the [connector] that listens at this socket.
    ///
    /// # Errors
    /// As [`connector::join_through`] and [`Communicator::form`].
    pub fn accept_through(&self, socket: &Path) -> Result<World, Failure> {
        self.form(connector::join_through(socket, self)?)
    }

    /// What it says, as [`join`](join()) wants it.
    pub(crate) fn options(&self) -> Result<JoinOptions, Failure> {
        let secret = hex::decode(&self.secret)
            .map_err(|_| Failure::new(Code::InvalidRequest, "the group's secret is not hexadecimal"))?;
        Ok(JoinOptions {
            server_key: self.key,
            run: self.run.clone(),
            rank: self.rank,
            trust: if self.trust_fabric {
                Trust::Fabric
            } else {
                Trust::Nobody
            },
            alike: self.tables.as_ref().map_or(0, Tables::digest)
                ^ self.fabric.as_ref().map_or(0, |fabric| digest(fabric.as_bytes()))
                ^ if self.lazily { digest(b"lazily") } else { 0 },
            patience: Duration::from_secs(self.patience_s),
            store: self.store.as_deref().map(Place::parse).transpose()?,
            channel: self.channel,
            lazily: self.lazily,
            ..JoinOptions::new(self.rendezvous.clone(), self.name.clone(), secret, self.size)
        })
    }

    fn fabric(&self) -> Result<Option<Choice>, Failure> {
        let Some(name) = &self.fabric else {
            return Ok(None);
        };
        if !self.trust_fabric {
            let text = "libfabric encrypts nothing: a group that uses it must trust its fabric (`trust_fabric`)";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        name.parse()
            .map(Some)
            .map_err(|error| Failure::new(Code::InvalidRequest, format!("{error}")))
    }

    fn form(&self, joined: Joined) -> Result<World, Failure> {
        let usual = Options::of(self.channel);
        let options = Options {
            deadline: Duration::from_secs(self.deadline_s),
            spin: self.spin_us.map(Duration::from_micros).or(usual.spin),
            table: self
                .tables
                .as_ref()
                .map_or(usual.table, |tables| tables.for_ranks(self.size)),
            fabric: self.fabric()?,
            ..usual
        };
        World::form(joined, options)
    }
}

impl World {
    /// The communicator of a rank that has joined its group. The options need not say who shares a host.
    ///
    /// # Errors
    /// As [`Communicator::form`].
    pub fn form(joined: Joined, options: Options) -> Result<Self, Failure> {
        let Joined {
            rank,
            size,
            roads,
            board,
            only_stored,
            hosts,
            lost,
            membership,
            ..
        } = joined;
        // Where all exchange through a store, those on one host are no nearer to each other than to the others.
        let options = Options {
            hosts: if only_stored { Vec::new() } else { hosts.clone() },
            ..options
        };
        let communicator = match board {
            Some(board) => Communicator::form_lazily(rank, size, board, lost, options)?,
            None => Communicator::form(rank, size, roads, lost, options)?,
        };
        Ok(Self {
            communicator,
            hosts,
            membership,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_says_no_more_than_is_needed_and_nothing_that_is_unknown() {
        let short = r#"{"rendezvous":"127.0.0.1:7","name":"n","secret":"00","size":2}"#;
        let read = Invitation::from_json(short).unwrap();
        assert_eq!((read.rank, read.patience_s, read.spin_us), (None, 30, None));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(Invitation::from_json(&written).unwrap(), read);
        let more = short.replace("}", r#","x":1}"#);
        assert_eq!(Invitation::from_json(&more).unwrap_err().code, Code::InvalidRequest);
    }
}
