//! Identities as types, so that a lease's id can never be passed where a node's is wanted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An id was not the expected number of hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {kind}: expected {digits} hexadecimal digits")]
pub struct ParseIdError {
    text: String,
    kind: &'static str,
    digits: usize,
}

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub [u8; $bytes]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let mut bytes = [0; $bytes];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseIdError {
                    text: text.chars().take(80).collect(),
                    kind: $kind,
                    digits: $bytes * 2,
                })?;
                Ok(Self(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_bytes(&self.0)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    let bytes = crate::blob::bytes(deserializer)?;
                    let exact = <[u8; $bytes]>::try_from(bytes.as_slice());
                    return exact.map(Self).map_err(|_| serde::de::Error::invalid_length(bytes.len(), &$kind));
                }
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^([0-9a-fA-F]{2}){", $bytes, "}$")))
                    .into()
            }
        }
        impl utoipa::ToSchema for $name {}
    };
}

byte_id!(/** One lease, drawn at random by whoever grants it. */ LeaseId, 16, "a lease id");
byte_id!(/** One node, drawn at random when its state directory is made and kept there. */ NodeId, 16, "a node id");
byte_id!(/** One allowance, drawn at random by the manager that signs it. */ AllowanceId, 16, "an allowance id");
byte_id!(/** One tenant: whom a lease is granted to and who pays for it. */ TenantId, 16, "a tenant id");
byte_id!(/** One channel, drawn at random by the client that opens it. */ ChannelId, 16, "a channel id");
byte_id!(/** One registered function: its version for one owner, named by what it is. */ FunctionId, 16, "a function id");
byte_id!(/** One task, made by whoever submits it: submitting it twice makes one. */ TaskId, 16, "a task id");
byte_id!(/** One endpoint, drawn at random when it is set up. */ EndpointId, 16, "an endpoint id");
byte_id!(/** One trigger, drawn at random when it is made. */ TriggerId, 16, "a trigger id");
byte_id!(/** One flow, made by whoever starts it: starting it twice makes one. */ FlowId, 16, "a flow id");
byte_id!(/** SHA-256 of a function's code, which is its name everywhere. */ CodeHash, 32, "a code hash");
byte_id!(/** BLAKE3 of bytes in the content store, which is their name there. */ ContentHash, 32, "a content hash");
byte_id!(/** SHA-256 of what a Python environment has, which is its name on a node. */ EnvironmentHash, 32, "an environment's hash");
byte_id!(/** An Ed25519 public key. */ PublicKey, 32, "an Ed25519 public key");
byte_id!(/** First eight bytes of the SHA-256 of a public key; lets signing keys rotate. */ KeyId, 8, "a key id");

/// An id whose first six bytes are the time, in milliseconds since the Unix epoch, and the others chance: nobody can guess it, and
/// books of such ids grow at their end, which is what disks do best.
pub fn time_first(now_ms: u64, chance: [u8; 16]) -> [u8; 16] {
    let mut id = chance;
    id[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
    id
}

/// A worker's place among its lease's workers, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct WorkerIndex(pub u16);

/// How often the worker at one [`WorkerIndex`] has been started, from 1. State kept in a worker lives as long as this
/// number stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

/// The index under which a worker knows a resolved function on one channel. Index 0 is the worker's own `load`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FunctionIndex(pub u16);

impl FunctionIndex {
    /// Resolves a function and answers its index; the payload is [`crate::executor::LoadFunction`] as JSON.
    pub const LOAD: Self = Self(0);
}
