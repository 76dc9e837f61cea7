//! Elements as accesses to windows see them.

use super::TypeObject;
use crate::handle::Datatype;
use crate::pointer::Buffer;

impl TypeObject {
    /// Whether operations of windows see its elements whole, with their padding.
    fn is_whole(&self) -> bool {
        self.predefined.is_some()
    }

    /// The runs of bytes of `count` elements, as accesses to windows transfer them: pairs with their padding.
    pub fn element_runs(&self, count: usize) -> Vec<(isize, usize)> {
        if self.is_whole() {
            // A length that no memory has is refused by the target.
            return vec![(0, (self.extent as usize).saturating_mul(count))];
        }
        let mut runs: Vec<(isize, usize)> = Vec::new();
        self.visit_all(count, |start, length| {
            match runs.last_mut() {
                Some((before, bytes)) if *before + *bytes as isize == start => *bytes += length,
                _ => runs.push((start, length)),
            }
            true
        });
        runs
    }

    /// Where the bytes of `count` elements begin and how many they are, if [`TypeObject::element_runs`] has one run.
    pub fn element_span(&self, count: usize) -> Option<(isize, usize)> {
        match self.is_whole() {
            true => Some((0, (self.extent as usize).checked_mul(count)?)),
            false if self.dense => Some((self.true_lower, self.size.checked_mul(count)?)),
            false => None,
        }
    }

    /// As [`TypeObject::pack`], for accesses to windows.
    pub fn pack_elements(&self, buffer: Buffer, count: usize) -> Vec<u8> {
        if self.is_whole() {
            return buffer.bytes(self.extent as usize * count).to_vec();
        }
        let mut packed = vec![0; self.size * count];
        self.pack(buffer, count, &mut packed);
        packed
    }

    /// As [`TypeObject::unpack`], for accesses to windows.
    pub fn unpack_elements(&self, packed: &[u8], buffer: Buffer, count: usize) {
        if self.is_whole() {
            let length = packed.len().min(self.extent as usize * count);
            buffer.bytes_mut(length).copy_from_slice(&packed[..length]);
        } else {
            self.unpack(packed, buffer, count);
        }
    }

    /// The predefined datatype of all its elements, if they have one.
    pub fn leaf(&self) -> Option<Datatype> {
        if let Some((handle, _)) = self.predefined {
            return Some(handle);
        }
        let mut leaves = self.parts.iter().map(|part| part.of.leaf());
        let first = leaves.next()??;
        leaves.all(|leaf| leaf == Some(first)).then_some(first)
    }
}
