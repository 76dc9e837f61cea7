//! One tree: its nodes, and the samples in each leaf.

use super::Row;

/// No sample: the end of the list of a leaf.
const NONE: u16 = u16::MAX;
/// In place of a feature, in a leaf.
const LEAF: u16 = u16::MAX;

/// A split: rows with a value of at most `threshold` go to node `link`, others to the node behind it. Or a leaf: `link`
/// is the first sample of its list, `threshold` the weight of all its samples. Eight bytes, so that a cache line holds
/// eight of them.
#[derive(Debug, Clone, Copy)]
struct Node {
    threshold: f32,
    link: u16,
    feature: u16,
}

#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The next sample in the same leaf, by slot.
    next: Vec<u16>,
    /// How often the tree counts the sample, by slot; 0 if it is in no leaf.
    counts: Vec<u8>,
}

impl Tree {
    /// One leaf without samples. `counts` tells how often each sample will count when it is put into its leaf.
    pub(super) fn new(counts: Vec<u8>) -> Self {
        Self {
            nodes: vec![Node {
                threshold: 0.0,
                link: NONE,
                feature: LEAF,
            }],
            next: vec![NONE; counts.len()],
            counts,
        }
    }

    /// Makes a leaf a split. Returns the leaf for smaller values; that for others is the one behind it.
    pub(super) fn split(&mut self, leaf: usize, feature: usize, threshold: f32) -> usize {
        let left = self.nodes.len();
        let empty = self.nodes[leaf];
        self.nodes.extend([empty, empty]);
        self.nodes[leaf] = Node {
            threshold,
            link: left as u16,
            feature: feature as u16,
        };
        left
    }

    pub(super) fn count(&self, slot: u16) -> u8 {
        self.counts[usize::from(slot)]
    }

    /// Puts a sample into a leaf.
    pub(super) fn put(&mut self, leaf: usize, slot: u16) {
        let node = &mut self.nodes[leaf];
        node.threshold += f32::from(self.counts[usize::from(slot)]);
        self.next[usize::from(slot)] = node.link;
        node.link = slot;
    }

    fn leaf(&self, row: &Row) -> usize {
        let mut at = 0;
        loop {
            let node = self.nodes[at];
            // The comparison of the feature is also that against LEAF: a row has few features.
            let Some(value) = row.get(usize::from(node.feature)) else {
                return at;
            };
            at = usize::from(node.link) + usize::from(*value > node.threshold);
        }
    }

    /// Adds `share` to the weights of the samples in the row's leaf, in all.
    pub(super) fn weigh(&self, row: &Row, share: f32, weights: &mut [f32]) {
        let node = self.nodes[self.leaf(row)];
        let share = share / node.threshold;
        let mut slot = node.link;
        while slot != NONE {
            weights[usize::from(slot)] += share * f32::from(self.counts[usize::from(slot)]);
            slot = self.next[usize::from(slot)];
        }
    }

    /// Takes the sample in a slot out of its leaf.
    pub(super) fn remove(&mut self, slot: u16, row: &Row) {
        let Some(count) = self.counts.get_mut(usize::from(slot)).filter(|count| **count > 0) else {
            return;
        };
        let count = f32::from(std::mem::take(count));
        let leaf = self.leaf(row);
        let behind = self.next[usize::from(slot)];
        let mut at = self.nodes[leaf].link;
        if at == slot {
            self.nodes[leaf].link = behind;
        } else {
            while at != NONE && self.next[usize::from(at)] != slot {
                at = self.next[usize::from(at)];
            }
            if at == NONE {
                return;
            }
            self.next[usize::from(at)] = behind;
        }
        self.nodes[leaf].threshold -= count;
    }

    /// Puts a sample into the leaf of its row, to count so often.
    pub(super) fn insert(&mut self, slot: u16, row: &Row, count: u8) {
        let slots = usize::from(slot) + 1;
        if self.counts.len() < slots {
            self.counts.resize(slots, 0);
            self.next.resize(slots, NONE);
        }
        self.counts[usize::from(slot)] = count;
        if count > 0 {
            self.put(self.leaf(row), slot);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.next.capacity() * 2 + self.counts.capacity()
    }

    pub(super) fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
    }
}
