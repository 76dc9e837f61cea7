//! The first bytes on every connection to a node.
//!
//! A client sends one [`Hello`] and nothing more until it has read the node's [`Verdict`]. Both have a fixed size, so a
//! node reads exactly that many bytes and allocates nothing for an unverified peer. The signature covers every byte of
//! the hello before it. It is made with the holder key that the token names, so a stolen token alone is useless.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{ChannelId, KeyId, LeaseId, NodeId, PublicKey, TenantId};
use crate::slot::Geometry;

pub const MAGIC: [u8; 8] = *b"DAYFLY\r\n";

/// Purposes of a connection.
pub mod purpose {
    /// Open a channel to one worker of the lease.
    pub const CHANNEL: u8 = 1;
    /// Send framed [`crate::node_api`] requests.
    pub const CONTROL: u8 = 2;
}

/// Transports of a channel.
pub mod transport {
    /// Shared memory: the connection must be the node's Unix socket.
    pub const SHM: u8 = 1;
    /// The connection itself, in clear text. Nodes refuse it outside the loopback interface unless the site's policy
    /// trusts the fabric.
    pub const TCP: u8 = 2;
    /// The connection itself, under mutual TLS 1.3 with raw public keys.
    pub const TLS: u8 = 3;
    /// Remote memory access over libfabric. Both ends use the connection, under TLS as above, to exchange addresses and
    /// to close the channel. Requires workers with the host's network on a node that offers a fabric.
    pub const LIBFABRIC: u8 = 4;
}

/// Promises of each side, so that the other may omit the fence that waking a sleeper needs.
pub mod options {
    /// In a hello: this client never sleeps while it waits for a response.
    pub const CLIENT_NEVER_SLEEPS: u32 = 1;
    /// In a verdict: this worker never sleeps while it waits for a request.
    pub const WORKER_NEVER_SLEEPS: u32 = 2;
}

/// Rights that a token gives.
pub mod kind {
    /// Channels to one lease, and control of it.
    pub const LEASE: u8 = 1;
    /// Leasing from nodes directly: from the node that signed it, or from any node of the manager that signed it.
    pub const ALLOWANCE: u8 = 2;
}

/// The signed right to a lease, or to lease from nodes. [`Token::expires_at_ms`] is wall-clock time and never ends a
/// lease by itself, because the node counts the lease's length by its own monotonic clock. It bounds how long the
/// signed bytes are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Token {
    /// [`crate::WIRE_VERSION`] of the issuer.
    pub version: U16,
    /// One of [`kind`].
    pub kind: u8,
    pub sandbox: u8,
    /// Workers of the lease, or one more than the highest number of its workers. In an allowance, this and the next two
    /// fields limit a node's leases in total.
    pub workers: U16,
    /// Thousandths of a core of each worker. In an allowance, those of all workers together.
    pub milli_cores: U32,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: U64,
    /// The lease. In a manager's allowance, its [`crate::ids::AllowanceId`]; in a node's own allowance, zero.
    pub lease: LeaseId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// The only node that may accept it; zero in a manager's allowance, which is valid at all its nodes.
    pub node: NodeId,
    /// The key that may use it and that signs hellos.
    pub holder: PublicKey,
    /// Ownership epoch of the manager that granted it; 0 if the node signed it.
    pub epoch: U64,
    /// Start of validity, in milliseconds since the Unix epoch.
    pub not_before_ms: U64,
    /// End of validity, in milliseconds since the Unix epoch.
    pub expires_at_ms: U64,
    /// Length of the lease in milliseconds. The node counts it from first use.
    pub duration_ms: U64,
    /// The key that signed it.
    pub issuer: KeyId,
    /// Ed25519 signature over every byte before it.
    pub signature: [u8; 64],
}

pub const TOKEN_BYTES: usize = size_of::<Token>();

/// The opening of a connection, from client to node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// Always [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`] of the client.
    pub version: U16,
    /// One of [`purpose`].
    pub purpose: u8,
    /// One of [`transport`]. For control, 0 or [`transport::TLS`]. With TLS both sides continue under TLS after the
    /// verdict: the node uses its own key, the client the token's holder key.
    pub transport: u8,
    /// Index of the wanted worker.
    pub worker: U16,
    /// [`Geometry::slots`].
    pub slots: U16,
    /// [`Geometry::stride_bytes`].
    pub stride_bytes: U32,
    /// Bit set of [`options`].
    pub options: U32,
    /// [`Geometry::bulk_bytes`].
    pub bulk_bytes: U64,
    /// Random id of the new channel. Also identifies a replayed hello.
    pub channel: ChannelId,
    /// The client's clock in milliseconds since the Unix epoch, for the replay window.
    pub sent_at_ms: U64,
    /// The node that the client addresses. A hello for one node is invalid at another, and proves to the manager which
    /// node the client addressed.
    pub node: NodeId,
    pub token: Token,
    /// Ed25519 signature by the token's holder over every byte before it.
    pub signature: [u8; 64],
}

pub const HELLO_BYTES: usize = size_of::<Hello>();

impl Hello {
    /// Returns the wanted geometry, unchecked.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            slots: self.slots.get(),
            stride_bytes: self.stride_bytes.get(),
            bulk_bytes: self.bulk_bytes.get(),
        }
    }

    /// The bytes that the signature covers.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.as_bytes()[..HELLO_BYTES - 64]
    }
}

impl Token {
    /// The bytes that the signature covers.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.as_bytes()[..TOKEN_BYTES - 64]
    }
}

/// The node's response. For a shared-memory channel, it carries the memory's file descriptor (SCM_RIGHTS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Verdict {
    /// Always [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`] of the node.
    pub version: U16,
    /// 0 if accepted, else the number of a [`crate::error::Code`].
    pub code: U16,
    /// Incarnation of the worker behind the channel.
    pub incarnation: U32,
    /// Process id of the worker on its host, for display.
    pub worker_pid: U32,
    /// Bytes of UTF-8 in `text`.
    pub text_length: U16,
    /// Bit set of [`options`].
    pub options: U16,
    /// Key with which the executor authenticates in TLS. Covered by the node's signature below.
    pub executor_key: PublicKey,
    /// Ed25519 signature by the node over channel id and executor key. Zero if refused.
    pub signature: [u8; 64],
    /// Why the connection was refused and what to do.
    pub text: [u8; 392],
}

pub const VERDICT_BYTES: usize = size_of::<Verdict>();

impl Verdict {
    /// Returns the text. Invalid UTF-8 is replaced.
    pub fn message(&self) -> String {
        let length = (self.text_length.get() as usize).min(self.text.len());
        String::from_utf8_lossy(&self.text[..length]).into_owned()
    }
}
