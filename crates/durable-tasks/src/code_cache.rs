//! A bounded cache of functions' code. The store has all code; the least recently used leaves the cache first.

use std::collections::{BTreeMap, HashMap};

use dayfly_protocol::blob::Blob;
use dayfly_protocol::ids::FunctionId;

/// Maximum size of the cache, and the overhead of one entry.
const MAX_BYTES: usize = 64 << 20;
const ENTRY_BYTES: usize = 128;

/// Recently used code.
#[derive(Debug, Default)]
pub struct CodeCache {
    /// Code, and the number of its last use.
    known: HashMap<FunctionId, (Blob, u64)>,
    /// Functions by the number of their last use.
    order: BTreeMap<u64, FunctionId>,
    uses: u64,
    bytes: usize,
}

impl CodeCache {
    /// Returns a function's code, and counts a use.
    pub fn get(&mut self, id: FunctionId) -> Option<Blob> {
        let (code, used) = self.known.get_mut(&id)?;
        self.order.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.order.insert(self.uses, id);
        Some(code.clone())
    }

    /// Adds code, and evicts the least recently used beyond the bound.
    pub fn insert(&mut self, id: FunctionId, code: Blob) {
        self.remove(id);
        self.uses += 1;
        self.bytes += code.len() + ENTRY_BYTES;
        self.known.insert(id, (code, self.uses));
        self.order.insert(self.uses, id);
        while self.bytes > MAX_BYTES
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    pub fn remove(&mut self, id: FunctionId) {
        if let Some((code, used)) = self.known.remove(&id) {
            self.order.remove(&used);
            self.bytes -= code.len() + ENTRY_BYTES;
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
    fn least_recently_used_code_is_evicted() {
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
    fn removed_or_oversized_code_leaves_no_bytes() {
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
