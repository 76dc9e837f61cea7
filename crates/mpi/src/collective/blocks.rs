//! Blocks of a buffer, one for each rank.

use std::ffi::c_int;
use std::ops::Range;

use crate::collective::Side;
use crate::communicator::CommObject;
use crate::datatype::count_of;
use crate::error::Result;
use crate::handle::{Aint, Count, Datatype};
use crate::pointer::{Buffer, In};

/// Blocks of a buffer: counts and displacements in elements.
#[derive(Clone)]
pub struct Blocks {
    side: Side,
    counts: Vec<usize>,
    displacements: Vec<isize>,
}

impl Blocks {
    fn new(side: Side, counts: &[Count], displacements: Vec<isize>) -> Result<Self> {
        let counts: Result<Vec<usize>> = counts.iter().map(|count| count_of(*count)).collect();
        Ok(Self {
            side,
            counts: counts?,
            displacements,
        })
    }

    /// Blocks of one length, in the order of the ranks.
    pub fn equal(comm: &CommObject, buffer: Buffer, count: Count, datatype: Datatype) -> Result<Self> {
        let size = comm.peers()?.size() as usize;
        let places = (0..size as isize).map(|rank| rank * count as isize).collect();
        Self::new(Side::new(buffer, count, datatype)?, &vec![count; size], places)
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
        let counts: Vec<Count> = counts.slice(size)?.iter().map(|count| count.wide()).collect();
        let places = displacements.slice(size)?.iter().map(|at| at.wide() as isize).collect();
        // The buffer as such may be NULL if no block has elements.
        Self::new(Side::new(buffer, 0, datatype)?, &counts, places)
    }

    /// The block of a rank.
    pub fn block(&self, rank: usize) -> Side {
        self.side.from(self.displacements[rank]).of_count(self.counts[rank])
    }

    /// All blocks.
    pub fn all(&self) -> Vec<Side> {
        (0..self.counts.len()).map(|rank| self.block(rank)).collect()
    }

    /// Whether the program's memory serves as it is: one run of bytes in each block.
    fn is_direct(&self) -> bool {
        self.side.of.dense
    }

    /// The memory from the first to the last block, and the blocks in it.
    fn direct(&self) -> (Buffer, usize, Vec<Range<usize>>) {
        let extent = self.side.of.extent;
        let occupied = (0..self.counts.len()).filter(|rank| self.counts[*rank] > 0);
        let first = occupied.map(|rank| self.displacements[rank]).min().unwrap_or(0);
        let range = |rank: usize| match self.counts[rank] {
            0 => 0..0,
            count => {
                let start = ((self.displacements[rank] - first) * extent) as usize;
                start..start + count * self.side.of.size
            }
        };
        let ranges: Vec<Range<usize>> = (0..self.counts.len()).map(range).collect();
        let length = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let start = self.side.buffer.offset(self.side.of.true_lower + first * extent);
        (start, length, ranges)
    }

    /// The blocks one after the other.
    fn packed_ranges(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let next = |count: &usize| {
            let start = end;
            end += count * self.side.of.size;
            start..end
        };
        self.counts.iter().map(next).collect()
    }

    /// The ranges of the blocks, and packed bytes if the memory does not serve.
    pub fn to_send(&self) -> (Vec<Range<usize>>, Vec<u8>) {
        if self.is_direct() {
            return (self.direct().2, Vec::new());
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
            return (self.direct().2, Vec::new());
        }
        let ranges = self.packed_ranges();
        let room = vec![0; ranges.last().map_or(0, |range| range.end)];
        (ranges, room)
    }

    pub fn source(&self, kept: &'static [u8]) -> &'static [u8] {
        if !self.is_direct() {
            return kept;
        }
        let (start, length, _) = self.direct();
        start.bytes(length)
    }

    pub fn target(&self, kept: &'static mut [u8]) -> &'static mut [u8] {
        if !self.is_direct() {
            return kept;
        }
        let (start, length, _) = self.direct();
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
