//! Blocks of a buffer, one for each rank.

use std::ffi::c_int;
use std::ops::Range;

use crate::collective::Side;
use crate::communicator::CommObject;
use crate::datatype::count_of;
use crate::error::Result;
use crate::handle::{Aint, Count, Datatype};
use crate::pointer::{Buffer, In};

/// Blocks of a buffer.
#[derive(Clone)]
pub struct Blocks {
    side: Side,
    places: Places,
}

/// Where blocks lie.
#[derive(Clone)]
enum Places {
    /// So many of one length, one after the other.
    Equal { number: usize },
    /// Counts and displacements in elements.
    Listed {
        counts: Vec<usize>,
        displacements: Vec<isize>,
    },
}

impl Blocks {
    /// Blocks of one length, in the order of the ranks.
    pub fn equal(comm: &CommObject, buffer: Buffer, count: Count, datatype: Datatype) -> Result<Self> {
        let number = comm.peers()?.size() as usize;
        Ok(Self {
            side: Side::new(buffer, count, datatype)?,
            places: Places::Equal { number },
        })
    }

    /// Blocks from a program's arrays.
    pub fn of<N: Number, D: Number>(
        comm: &CommObject,
        buffer: Buffer,
        counts: In<N>,
        displacements: In<D>,
        datatype: Datatype,
    ) -> Result<Self> {
        let size = comm.peers()?.size() as usize;
        let counts: Result<Vec<usize>> = counts.slice(size)?.iter().map(|count| count_of(count.wide())).collect();
        let displacements = displacements.slice(size)?.iter().map(|at| at.wide() as isize).collect();
        Ok(Self {
            // The buffer as such may be NULL if no block has elements.
            side: Side::new(buffer, 0, datatype)?,
            places: Places::Listed {
                counts: counts?,
                displacements,
            },
        })
    }

    fn number(&self) -> usize {
        match &self.places {
            Places::Equal { number } => *number,
            Places::Listed { counts, .. } => counts.len(),
        }
    }

    /// Elements of the block of a rank.
    fn count(&self, rank: usize) -> usize {
        match &self.places {
            Places::Equal { .. } => self.side.count,
            Places::Listed { counts, .. } => counts[rank],
        }
    }

    /// Where the block of a rank begins, in elements.
    fn displacement(&self, rank: usize) -> isize {
        match &self.places {
            Places::Equal { .. } => (rank * self.side.count) as isize,
            Places::Listed { displacements, .. } => displacements[rank],
        }
    }

    /// The block of a rank.
    pub fn block(&self, rank: usize) -> Side {
        self.side.from(self.displacement(rank)).of_count(self.count(rank))
    }

    /// All blocks.
    pub fn all(&self) -> Vec<Side> {
        (0..self.number()).map(|rank| self.block(rank)).collect()
    }

    /// Whether the program's memory serves as it is: one run of bytes in each block.
    fn is_direct(&self) -> bool {
        self.side.of.dense
    }

    /// The memory from the first to the last block: where it starts, its length, and its first element.
    fn span(&self) -> (Buffer, usize, isize) {
        let Side { buffer, of, count } = &self.side;
        let start = |first: isize| buffer.offset(of.true_lower + first * of.extent);
        if let Places::Equal { number } = &self.places {
            return (start(0), of.size * count * number, 0);
        }
        let occupied = || (0..self.number()).filter(|rank| self.count(*rank) > 0);
        let first = occupied().map(|rank| self.displacement(rank)).min().unwrap_or(0);
        let end = occupied().map(|rank| self.direct_range(rank, first).end).max();
        (start(first), end.unwrap_or(0), first)
    }

    fn direct_range(&self, rank: usize, first: isize) -> Range<usize> {
        match self.count(rank) {
            0 => 0..0,
            count => {
                let start = ((self.displacement(rank) - first) * self.side.of.extent) as usize;
                start..start + count * self.side.of.size
            }
        }
    }

    /// The ranges of the blocks in the memory from the first to the last; none if all have one length.
    fn direct_ranges(&self) -> Vec<Range<usize>> {
        match &self.places {
            Places::Equal { .. } => Vec::new(),
            Places::Listed { .. } => {
                let (.., first) = self.span();
                (0..self.number()).map(|rank| self.direct_range(rank, first)).collect()
            }
        }
    }

    /// The blocks one after the other.
    fn packed_ranges(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let next = |rank: usize| {
            let start = end;
            end += self.count(rank) * self.side.of.size;
            start..end
        };
        (0..self.number()).map(next).collect()
    }

    /// The ranges of the blocks, and packed bytes if the memory does not serve.
    pub fn to_send(&self) -> (Vec<Range<usize>>, Vec<u8>) {
        if self.is_direct() {
            return (self.direct_ranges(), Vec::new());
        }
        let ranges = self.packed_ranges();
        let mut packed = vec![0; ranges.last().map_or(0, |range| range.end)];
        for (rank, range) in ranges.iter().enumerate() {
            let block = self.block(rank);
            block.of.pack(block.buffer, block.count, &mut packed[range.clone()]);
        }
        (ranges, packed)
    }

    /// The ranges of the blocks, and room for their bytes if the memory does not serve.
    pub fn to_receive(&self) -> (Vec<Range<usize>>, Vec<u8>) {
        if self.is_direct() {
            return (self.direct_ranges(), Vec::new());
        }
        let ranges = self.packed_ranges();
        let room = vec![0; ranges.last().map_or(0, |range| range.end)];
        (ranges, room)
    }

    pub fn source(&self, kept: &'static [u8]) -> &'static [u8] {
        if !self.is_direct() {
            return kept;
        }
        let (start, length, _) = self.span();
        start.bytes(length)
    }

    pub fn target(&self, kept: &'static mut [u8]) -> &'static mut [u8] {
        if !self.is_direct() {
            return kept;
        }
        let (start, length, _) = self.span();
        start.bytes_mut(length)
    }

    pub fn unpack(&self, kept: &[u8]) {
        if !self.is_direct() {
            for (rank, range) in self.packed_ranges().into_iter().enumerate() {
                let block = self.block(rank);
                block.of.unpack(&kept[range], block.buffer, block.count);
            }
        }
    }
}

/// A number of an array of counts or displacements, whichever form of a call it comes from.
pub trait Number: Copy {
    fn wide(self) -> Count;
}

impl Number for c_int {
    fn wide(self) -> Count {
        self.into()
    }
}

impl Number for Count {
    fn wide(self) -> Count {
        self
    }
}

impl Number for Aint {
    fn wide(self) -> Count {
        self as Count
    }
}
