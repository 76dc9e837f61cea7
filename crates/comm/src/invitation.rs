//! Invitations: how a rank finds its group. The program that starts a rank passes it one.

use std::path::Path;
use std::time::Duration;

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use dayfly_rendezvous::keys::random;
use dayfly_storage::StoreUrl;
use serde::{Deserialize, Serialize};

use crate::connect::Trust;
use crate::table::{Tables, digest};
use crate::{Channel, Communicator, JoinOptions, Joined, Options, connector, join};

/// Environment variable that holds an [`Invitation`] as JSON.
pub const GROUP_VARIABLE: &str = "DAYFLY_GROUP";

/// Characters of a group's name that the names of new groups begin with. The rendezvous limits the length of names.
const MAX_PREFIX: usize = 48;

/// How a rank finds its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invitation {
    /// Address of the rendezvous: `host:port`.
    pub rendezvous: String,
    /// Public key of the rendezvous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// The manager's signed statement that the rendezvous is its own. Ranks in a sandbox without a network need it:
    /// their node joins for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voucher: Option<String>,
    /// Name of the group.
    pub name: String,
    /// Run of the group. Ranks of different runs do not meet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The group's shared secret, in hexadecimal; at least 16 bytes.
    pub secret: String,
    /// This rank; `None` takes any free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Number of ranks.
    pub size: u32,
    /// Whether the network between the hosts is trusted, so that nothing is encrypted.
    #[serde(default)]
    pub trust_fabric: bool,
    /// Seconds until all ranks must have arrived and be connected.
    #[serde(default = "half_a_minute")]
    pub patience_s: u64,
    /// Longest duration of one operation, in seconds.
    #[serde(default = "an_hour")]
    pub deadline_s: u64,
    /// Microseconds that a waiting rank polls before it sleeps. `None` polls without end, or not at all while it waits
    /// for a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u64>,
    /// Tables of collective algorithms, equal on all ranks; `None` for the default tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Tables>,
    /// The libfabric provider between hosts, for pairs that both have it, such as `verbs` or `verbs/mlx5_0`.
    /// Equal on all ranks. Requires `trust_fabric`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// URL of a store for pairs without another route, or for all pairs: `s3://bucket/prefix`, `redis://host:port`,
    /// `rediss://`, `file:///directory`. Equal on all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Channel between the ranks; equal on all ranks.
    #[serde(default)]
    pub channel: Channel,
    /// Whether two ranks connect when one first needs the other, instead of all at once; equal on all ranks.
    #[serde(default)]
    pub lazy_connect: bool,
}

fn half_a_minute() -> u64 {
    30
}

fn an_hour() -> u64 {
    3600
}

/// A communicator of all ranks, and the membership that it needs.
#[derive(Debug)]
pub struct World {
    /// Declared first: ranks send farewells to each other before they leave the group.
    pub communicator: Communicator,
    /// For each rank the lowest rank on the same host.
    pub hosts: Vec<u32>,
    /// Keep it while the communicator is used.
    pub membership: crate::membership::Membership,
}

impl Invitation {
    /// Reads the invitation from [`GROUP_VARIABLE`]; `None` if the variable is not set.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when the value is not a valid invitation.
    pub fn from_environment() -> Result<Option<Self>, Failure> {
        match std::env::var(GROUP_VARIABLE) {
            Ok(text) if !text.is_empty() => Self::from_json(&text).map(Some),
            _ => Ok(None),
        }
    }

    /// Parses an invitation from JSON.
    pub fn from_json(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map_err(|error| {
            Failure::new(
                Code::InvalidRequest,
                format!("this is no invitation to a group: {error}; {GROUP_VARIABLE} is set by `dayfly run`"),
            )
        })
    }

    /// The invitation as JSON, for [`GROUP_VARIABLE`].
    pub fn to_json(&self) -> String {
        // These types always serialize: their keys are strings.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// An invitation to a new group of `size` ranks that meet at the same rendezvous and connect in the same way. Its
    /// name begins with this one's, and its secret is random. It names no rank and no run.
    ///
    /// # Errors
    /// [`Code::Internal`] when the system gives no random bytes.
    pub fn to_new_group(&self, size: u32) -> Result<Self, Failure> {
        let chance = hex::encode(random::<8>()?);
        let kept = self.name.chars().take(MAX_PREFIX).collect::<String>();
        Ok(Self {
            name: format!("{kept}-{chance}"),
            run: String::new(),
            secret: hex::encode(random::<32>()?),
            rank: None,
            size,
            ..self.clone()
        })
    }

    /// Joins the group. Returns when all ranks have arrived and are connected. In a sandbox without a network the node
    /// joins.
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

    /// The invitation as options of [`join`](join()).
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
            settings_digest: self.tables.as_ref().map_or(0, Tables::digest)
                ^ self.fabric.as_ref().map_or(0, |fabric| digest(fabric.as_bytes()))
                ^ if self.lazy_connect { digest(b"lazy_connect") } else { 0 },
            patience: Duration::from_secs(self.patience_s),
            store: self.store.as_deref().map(StoreUrl::parse).transpose()?,
            channel: self.channel,
            lazy_connect: self.lazy_connect,
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
    /// Forms the communicator of a rank that has joined its group. The options' `hosts` are ignored.
    ///
    /// # Errors
    /// As [`Communicator::form`].
    pub fn form(joined: Joined, options: Options) -> Result<Self, Failure> {
        let Joined {
            rank,
            size,
            connections,
            queue,
            only_stored,
            hosts,
            lost,
            membership,
            ..
        } = joined;
        // If all pairs exchange through a store, ranks on one host are no nearer to each other.
        let options = Options {
            hosts: if only_stored { Vec::new() } else { hosts.clone() },
            ..options
        };
        let communicator = match queue {
            Some(queue) => Communicator::form_lazily(rank, size, queue, lost, options)?,
            None => Communicator::form(rank, size, connections, lost, options)?,
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
    fn invitation_omits_defaults_and_rejects_unknown_fields() {
        let short = r#"{"rendezvous":"127.0.0.1:7","name":"n","secret":"00","size":2}"#;
        let read = Invitation::from_json(short).unwrap();
        assert_eq!((read.rank, read.patience_s, read.spin_us), (None, 30, None));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(Invitation::from_json(&written).unwrap(), read);
        let more = short.replace("}", r#","x":1}"#);
        assert_eq!(Invitation::from_json(&more).unwrap_err().code, Code::InvalidRequest);
    }

    #[test]
    fn new_group_has_another_name_and_secret() {
        let text = r#"{"rendezvous":"127.0.0.1:7","name":"n","run":"r","secret":"00","rank":1,"size":2,"spin_us":7}"#;
        let first = Invitation::from_json(text).unwrap();
        let (one, other) = (first.to_new_group(5).unwrap(), first.to_new_group(5).unwrap());
        assert!(one.name.starts_with("n-"), "{}", one.name);
        assert_ne!((&one.name, &one.secret), (&other.name, &other.secret));
        assert_eq!(
            (one.rank, one.size, one.run.as_str(), one.spin_us),
            (None, 5, "", Some(7))
        );
        let long = Invitation {
            name: "x".repeat(200),
            ..first
        };
        assert!(long.to_new_group(1).unwrap().name.len() < 100);
    }
}
