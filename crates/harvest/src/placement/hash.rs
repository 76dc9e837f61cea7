//! Hashes that place the same calls alike on every machine.

use crate::random::mix;

/// The weight of a node for a key. The nodes in the order of their weights are the key's order of nodes: a node that
/// leaves or joins moves only the calls that it had or gets (rendezvous hashing; Thaler and Ravishankar, 1998).
pub fn weight(key: u64, node: u64) -> u64 {
    mix(mix(key) ^ node.rotate_left(32))
}
