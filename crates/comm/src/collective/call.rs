//! The call of a rank, in the eight bytes that travel with each message of a collective.

use std::fmt;

use crate::datatype::Datatype;
use crate::operation;

/// Kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Barrier = 1,
    Bcast,
    Gather,
    Gatherv,
    Scatter,
    Scatterv,
    Allgather,
    Allgatherv,
    Alltoall,
    Alltoallv,
    Reduce,
    Allreduce,
    ReduceScatter,
    Scan,
    Exscan,
    Split,
}

const NAMES: [&str; 17] = [
    "nothing known",
    "barrier",
    "bcast",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "allgather",
    "allgatherv",
    "alltoall",
    "alltoallv",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "scan",
    "exscan",
    "split",
];

/// A collective, and those of its arguments that must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    kind: u8,
    datatype: u8,
    operation: u8,
    /// One more than the root; 0 without a root.
    root: u16,
    /// Bytes modulo 2^32; 0 where ranks may differ.
    bytes: u32,
}

impl Call {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind: kind as u8,
            datatype: 0,
            operation: 0,
            root: 0,
            bytes: 0,
        }
    }

    pub fn of(mut self, bytes: usize) -> Self {
        self.bytes = bytes as u32;
        self
    }

    pub fn rooted(mut self, root: u32) -> Self {
        self.root = root.wrapping_add(1) as u16;
        self
    }

    pub fn reducing(mut self, operation: &operation::Operation, datatype: Datatype) -> Self {
        self.operation = operation.number();
        self.datatype = datatype as u8;
        self
    }

    pub fn to_wire(self) -> u64 {
        u64::from(self.bytes)
            | u64::from(self.root) << 32
            | u64::from(self.operation & 31) << 48
            | u64::from(self.datatype & 31) << 53
            | u64::from(self.kind & 63) << 58
    }

    pub fn from_wire(wire: u64) -> Self {
        Self {
            kind: (wire >> 58) as u8,
            datatype: (wire >> 53 & 31) as u8,
            operation: (wire >> 48 & 31) as u8,
            root: (wire >> 32) as u16,
            bytes: wire as u32,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.get(self.kind as usize).copied().unwrap_or("an unknown operation"))?;
        if self.bytes > 0 {
            write!(f, " of {} bytes", self.bytes)?;
        }
        if self.operation > 0 {
            write!(f, " with {}", operation::name(self.operation))?;
            if let Some(datatype) = Datatype::ALL.get(self.datatype as usize) {
                write!(f, " of {}", datatype.name())?;
            }
        }
        if self.root > 0 {
            write!(f, " with root {}", self.root - 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;

    #[test]
    fn call_is_decoded_and_displayed_with_its_kind() {
        let call = Call::new(Kind::Reduce)
            .of(48)
            .rooted(3)
            .reducing(&Operation::Max, Datatype::F64);
        assert_eq!(Call::from_wire(call.to_wire()), call);
        assert_eq!(call.to_string(), "reduce of 48 bytes with max of f64 with root 3");
        assert_eq!(Call::new(Kind::Barrier).to_string(), "barrier");
        assert!(!Call::from_wire(u64::MAX).to_string().is_empty());
    }
}
