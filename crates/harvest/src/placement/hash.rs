//! Hashes that place the same calls alike on every machine.

/// A pseudorandom number that depends on `number` only: a step of SplitMix64 (Steele, Lea and Flood, 2014).
pub fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The weight of a node for a key. The nodes in the order of their weights are the key's order of nodes: a node that
/// leaves or joins moves only the calls that it had or gets (rendezvous hashing; Thaler and Ravishankar, 1998).
pub fn weight(key: u64, node: u64) -> u64 {
    mix(mix(key) ^ node.rotate_left(32))
}
