//! Data frames and SQL across the ranks of a group.
//!
//! DataFusion executes queries, and datafusion-distributed divides them into stages of tasks. This crate carries plans,
//! requests and batches between ranks, over the posts of `dayfly-comm`: there is no server and no listening port.
//!
//! Each rank has an [`Exchange`] and calls [`serve`] with a [`worker`]. One rank, which may be a client that joined the
//! group for this, plans queries in a [`context`].

mod exchange;
mod session;

pub use exchange::{Exchange, ExchangeError, serve};
pub use session::{context, worker};
