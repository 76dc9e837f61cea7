//! Joins groups for ranks in a sandbox without a network.
//!
//! Such a rank can dial nobody. A *connector*, a process of its node's outside the sandbox, does [what a rank does
//! elsewhere](crate::join()) in its place: it meets the others at the rendezvous, dials them and proves the group's secret. Then it
//! gives the rank a Unix socket for each other one: of those on its host the very socket over which both come to share memory,
//! of others one end of a pair, whose other end it [carries](pump) on through TLS. It never gives away a TCP socket: whoever has
//! one can break its connection and dial anywhere with it, in the network where it was made.
//!
//! What it reads from the sandbox is hostile: [`serve`](serve()) bounds how many there may be, how often, what they may ask for and
//! how long anything takes. It trusts its node alone, which tells it by [`Orders`] where ranks may meet.
//!
//! - [`messages`]: what the two say to each other;
//! - [`ask`]: the rank's side;
//! - [`serve`](mod@serve), [`session`]: the connector's;
//! - [`process`]: the connector as a process of a node's.

mod ask;
mod messages;
mod permit;
pub mod process;
mod pump;
pub mod serve;
mod session;

pub use ask::join_through;
pub use permit::Orders;
pub use serve::serve;

/// Where a sandbox finds its connector.
pub const SOCKET: &str = "/dayfly/code/group.sock";
