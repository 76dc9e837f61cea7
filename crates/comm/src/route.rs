//! How the bytes between two ranks travel.

use serde::{Deserialize, Serialize};

/// How the bytes between two ranks travel. The numbers are those of a [hello](crate::connect::hello).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Route {
    /// Within a host.
    Local = 0,
    /// A connection that one of the two dialled.
    Direct = 1,
    /// A connection through both NATs.
    Punched = 2,
    /// Through a relay, which cannot read the bytes.
    Relay = 3,
    /// Through a store, which cannot read the bytes.
    Stored = 4,
    /// Remote memory over libfabric, in place of a connection.
    Fabric = 5,
}

impl Route {
    /// The name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Direct => "direct",
            Self::Punched => "punched",
            Self::Relay => "relay",
            Self::Stored => "stored",
            Self::Fabric => "fabric",
        }
    }
}
