//! The first bytes on every connection to a node.
//!
//! A client sends one [`Hello`] and nothing more until it has read the node's [`Verdict`]. Both are of fixed size, so a
//! node reads exactly that much and allocates nothing for a peer that it has not verified. The signature covers every
//! byte of the hello before it and is made with the holder key that the token names, so a stolen token opens nothing.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{ChannelId, KeyId, LeaseId, NodeId, PublicKey, TenantId};
use crate::slot::Geometry;

/// First bytes of every hello.
pub const MAGIC: [u8; 8] = *b"DAYFLY\r\n";

/// What a connection is for.
pub mod purpose {
    /// Open a channel to one worker of the lease.
    pub const CHANNEL: u8 = 1;
    /// Make framed [`crate::node_api`] requests.
    pub const CONTROL: u8 = 2;
}

/// Transport that the client wants for a channel.
pub mod transport {
    /// Shared memory: the connection must be the node's Unix socket.
    pub const SHM: u8 = 1;
    /// The connection itself, in clear. Nodes refuse it from off the loopback unless site policy trusts the fabric.
    pub const TCP: u8 = 2;
    /// The connection itself under mutual TLS 1.3 with raw public keys.
    pub const TLS: u8 = 3;
    /// Remote memory over libfabric; the connection itself is for both ends to find each other, under TLS as above, and for the
    /// end of the channel. For workers with the host's network, where the node offers a fabric.
    pub const LIBFABRIC: u8 = 4;
}

/// What each side promises about itself, so that the other may leave out the fence that sleeping would need.
pub mod options {
    /// In a hello: this client never sleeps while it waits for a response.
    pub const CLIENT_NEVER_SLEEPS: u32 = 1;
    /// In a verdict: this worker never sleeps while it waits for a request.
    pub const WORKER_NEVER_SLEEPS: u32 = 2;
}

/// What a token allows.
pub mod kind {
    /// Channels to, and control of, one lease.
    pub const LEASE: u8 = 1;
    /// Leasing from nodes directly: from the one that signed it, or from any whose manager did.
    pub const ALLOWANCE: u8 = 2;
}

/// The signed right to a lease, or to lease. The wall clock of [`Token::expires_at_ms`] never alone ends a lease (the node
/// counts its length by its own monotonic clock); it bounds how long the signed bytes mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Token {
    /// [`crate::WIRE_VERSION`] of the issuer.
    pub version: U16,
    /// One of [`kind`].
    pub kind: u8,
    /// [`crate::api::Sandbox::number`].
    pub sandbox: u8,
    /// Workers of the lease; in an allowance, the most on one node, as are the next two.
    pub workers: U16,
    /// Cores of each worker, for hot leases; in an allowance, of all of them together.
    pub cores: U16,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: U64,
    /// The lease; in a manager's allowance the bytes of its [`crate::ids::AllowanceId`], in a node's own zero.
    pub lease: LeaseId,
    /// Who pays.
    pub tenant: TenantId,
    /// The only node that may honour it; zero in a manager's allowance, which is for all of them.
    pub node: NodeId,
    /// Who may use it: the key that signs hellos.
    pub holder: PublicKey,
    /// Ownership epoch of the manager that granted it; 0 when the node signed for itself.
    pub epoch: U64,
    /// Milliseconds since the Unix epoch before which it is not valid.
    pub not_before_ms: U64,
    /// Milliseconds since the Unix epoch after which it is not valid.
    pub expires_at_ms: U64,
    /// Length of the lease in milliseconds, counted by the node from first use.
    pub duration_ms: U64,
    /// Key that signed.
    pub issuer: KeyId,
    /// Ed25519 over every byte before it.
    pub signature: [u8; 64],
}

/// Bytes of a [`Token`].
pub const TOKEN_BYTES: usize = size_of::<Token>();

/// The opening of a connection, client to node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`] of the client.
    pub version: U16,
    /// One of [`purpose`].
    pub purpose: u8,
    /// One of [`transport`]. For control 0, or [`transport::TLS`] when both sides go on under TLS after the verdict, the node
    /// with its own key, the client with the token's holder key.
    pub transport: u8,
    /// Wanted worker.
    pub worker: U16,
    /// [`Geometry::slots`].
    pub slots: U16,
    /// [`Geometry::stride_bytes`].
    pub stride_bytes: U32,
    /// Union of [`options`].
    pub options: U32,
    /// [`Geometry::bulk_bytes`].
    pub bulk_bytes: U64,
    /// The channel to be, drawn at random; also what makes a replayed hello recognisable.
    pub channel: ChannelId,
    /// The client's clock, milliseconds since the Unix epoch, for the replay window.
    pub sent_at_ms: U64,
    /// The node that is meant: what was said to one is worth nothing at another, and proves to the manager to whom it was said.
    pub node: NodeId,
    /// What allows it.
    pub token: Token,
    /// Ed25519 by the token's holder over every byte before it.
    pub signature: [u8; 64],
}

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = size_of::<Hello>();

impl Hello {
    /// The wanted geometry, not yet checked.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            slots: self.slots.get(),
            stride_bytes: self.stride_bytes.get(),
            bulk_bytes: self.bulk_bytes.get(),
        }
    }

    /// The bytes that its signature covers.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.as_bytes()[..HELLO_BYTES - 64]
    }
}

impl Token {
    /// The bytes that its signature covers.
    pub fn signed_bytes(&self) -> &[u8] {
        &self.as_bytes()[..TOKEN_BYTES - 64]
    }
}

/// The node's answer. For a shared-memory channel the memory file rides along with it (SCM_RIGHTS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Verdict {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::WIRE_VERSION`] of the node.
    pub version: U16,
    /// 0 when accepted, else a [`crate::error::Code`] number.
    pub code: U16,
    /// Incarnation of the worker behind the channel.
    pub incarnation: U32,
    /// Process id of the worker on its host, for people.
    pub worker_pid: U32,
    /// Bytes of UTF-8 in `text`.
    pub text_length: U16,
    /// Union of [`options`].
    pub options: U16,
    /// Key with which the executor proves itself in TLS; signed below by the node.
    pub executor_key: PublicKey,
    /// Ed25519 by the node over channel id and executor key. Zero when refused.
    pub signature: [u8; 64],
    /// Why it was refused and what to do, for people.
    pub text: [u8; 392],
}

/// Bytes of a [`Verdict`].
pub const VERDICT_BYTES: usize = size_of::<Verdict>();

impl Verdict {
    /// The text, as far as it is UTF-8.
    pub fn message(&self) -> String {
        let length = (self.text_length.get() as usize).min(self.text.len());
        String::from_utf8_lossy(&self.text[..length]).into_owned()
    }
}
