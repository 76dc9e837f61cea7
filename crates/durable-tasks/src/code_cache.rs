//! Functions' code in memory: what was used last, up to a bound. The store has all of it.

use std::collections::{BTreeMap, HashMap};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::ids::FunctionId;

/// So many bytes, each with what keeping it takes.
const MAX_BYTES: usize = 64 << 20;
const EACH_BYTES: usize = 128;

/// Code that was used lately.
#[derive(Debug, Default)]
pub struct CodeCache {
    /// With when it was used.
    known: HashMap<FunctionId, (Blob, u64)>,
    /// By when they were used, the one that was not for longest first.
    order: BTreeMap<u64, FunctionId>,
    uses: u64,
    bytes: usize,
}

impl CodeCache {
    /// A function's code, which is used now.
    pub fn get(&mut self, id: FunctionId) -> Option<Blob> {
        let (code, used) = self.known.get_mut(&id)?;
        self.order.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.order.insert(self.uses, id);
        Some(code.clone())
    }

    /// Keeps it, in place of what was not used for longest.
    pub fn insert(&mut self, id: FunctionId, code: Blob) {
        self.remove(id);
        self.uses += 1;
        self.bytes += code.len() + EACH_BYTES;
        self.known.insert(id, (code, self.uses));
        self.order.insert(self.uses, id);
        while self.bytes > MAX_BYTES
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    /// A function is gone.
    pub fn remove(&mut self, id: FunctionId) {
        if let Some((code, used)) = self.known.remove(&id) {
            self.order.remove(&used);
            self.bytes -= code.len() + EACH_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> FunctionId {
        FunctionId([n; 16])
    }

    #[test]
    fn what_was_not_used_for_longest_leaves_when_there_is_too_much() {
        let mut codes = CodeCache::default();
        let quarter = || Blob::from(vec![7; MAX_BYTES / 4]);
        for n in 0..3 {
            codes.insert(id(n), quarter());
        }
        assert_eq!(codes.get(id(0)), Some(quarter()));
        codes.insert(id(3), quarter());
        assert_eq!(codes.get(id(1)), None);
        for n in [0, 2, 3] {
            assert_eq!(codes.get(id(n)), Some(quarter()), "{n}");
        }
        assert!(codes.bytes <= MAX_BYTES && codes.known.len() == codes.order.len());
    }

    #[test]
    fn nothing_is_left_of_what_is_too_long_or_gone() {
        let mut codes = CodeCache::default();
        codes.insert(id(1), vec![7; 10].into());
        codes.insert(id(1), vec![8; 20].into());
        assert_eq!(codes.get(id(1)), Some(vec![8; 20].into()));
        codes.remove(id(1));
        codes.insert(id(2), vec![7; MAX_BYTES + 1].into());
        assert_eq!((codes.get(id(1)), codes.get(id(2))), (None, None));
        assert_eq!((codes.bytes, codes.order.len()), (0, 0));
    }
}
