//! Ids as distinct types, so that a lease's id cannot be passed where a node's is expected.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A text is not an id: it does not have the expected number of hexadecimal digits.
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

byte_id!(/** One lease. Drawn at random by the manager or node that grants it. */ LeaseId, 16, "a lease id");
byte_id!(/** One node. Drawn at random when its state directory is created, and stored there. */ NodeId, 16, "a node id");
byte_id!(/** One allowance. Drawn at random by the manager that signs it. */ AllowanceId, 16, "an allowance id");
byte_id!(/** One tenant: the account that holds leases and pays for them. */ TenantId, 16, "a tenant id");
byte_id!(/** One channel. Drawn at random by the client that opens it. */ ChannelId, 16, "a channel id");
byte_id!(/** One version of a registered function of one owner, derived from its content. */ FunctionId, 16, "a function id");
byte_id!(/** One task. The submitter may choose it, which makes the submission idempotent. */ TaskId, 16, "a task id");
byte_id!(/** One endpoint. Drawn at random when it is registered. */ EndpointId, 16, "an endpoint id");
byte_id!(/** One trigger. Drawn at random when it is created. */ TriggerId, 16, "a trigger id");
byte_id!(/** One flow. The client may choose it, which makes the start idempotent. */ FlowId, 16, "a flow id");
byte_id!(/** One query of data frames. Drawn at random by the client that runs it. */ QueryId, 16, "a query id");
byte_id!(/** SHA-256 of a function's code. Identifies the code everywhere. */ CodeHash, 32, "a code hash");
byte_id!(/** BLAKE3 of bytes in the content store. Identifies them there. */ ContentHash, 32, "a content hash");
byte_id!(/** SHA-256 of a Python environment's contents. Identifies it on a node. */ EnvironmentHash, 32, "an environment's hash");
byte_id!(/** An Ed25519 public key. */ PublicKey, 32, "an Ed25519 public key");
byte_id!(/** First eight bytes of the SHA-256 of a public key; lets signing keys rotate. */ KeyId, 8, "a key id");

/// Returns an id whose first six bytes are the time in milliseconds since the Unix epoch and whose other bytes are
/// random. It cannot be guessed, and index entries of such ids are appended at the end, which is cheap for a store.
pub fn time_first(now_ms: u64, chance: [u8; 16]) -> [u8; 16] {
    let mut id = chance;
    id[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
    id
}

/// Position of a worker in its lease, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct WorkerIndex(pub u16);

/// How many times the worker at a [`WorkerIndex`] has been started, from 1. State kept in a worker is lost when this
/// number changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct Incarnation(pub u32);

/// The index of a resolved function on one channel. Index 0 is the worker's own `load`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FunctionIndex(pub u16);

impl FunctionIndex {
    /// Resolves a function and returns its index. The payload is [`crate::executor::LoadFunction`] as JSON.
    pub const LOAD: Self = Self(0);
}
