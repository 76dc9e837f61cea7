//! Reduction operations, which combine two buffers element by element.

mod kernels;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};

use crate::datatype::Datatype;

/// Combines `left` and `right`, element by element, into `right`: `right = left op right`.
pub type Combine = dyn Fn(&[u8], &mut [u8], Datatype) + Send + Sync;

/// Operation of a reduction.
#[derive(Clone)]
pub enum Operation {
    Sum,
    Product,
    Min,
    Max,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
    BitAnd,
    BitOr,
    BitXor,
    /// The minimum and its lowest index.
    MinAt,
    /// The maximum and its lowest index.
    MaxAt,
    /// A user's operation. It must be associative, and must not use the communicator.
    User {
        combine: Arc<Combine>,
        /// Whether values may be combined in any order of the ranks.
        commutative: bool,
        /// Bytes of one element, if that is not the size of the datatype.
        element: Option<NonZeroUsize>,
    },
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(self.number()))
    }
}

/// Name of an operation by its number on the wire.
pub(crate) fn name(number: u8) -> &'static str {
    const NAMES: [&str; 14] = [
        "no operation",
        "sum",
        "product",
        "min",
        "max",
        "logical and",
        "logical or",
        "logical xor",
        "bitwise and",
        "bitwise or",
        "bitwise xor",
        "min with place",
        "max with place",
        "user operation",
    ];
    NAMES.get(number as usize).copied().unwrap_or("unknown operation")
}

impl Operation {
    /// A user's operation; see [`Operation::User`].
    pub fn user(combine: impl Fn(&[u8], &mut [u8], Datatype) + Send + Sync + 'static, commutative: bool) -> Self {
        Self::User {
            combine: Arc::new(combine),
            commutative,
            element: None,
        }
    }

    /// As [`Operation::user`], for elements of this many bytes, which no datatype describes.
    pub fn user_of(
        combine: impl Fn(&[u8], &mut [u8], Datatype) + Send + Sync + 'static,
        commutative: bool,
        element: usize,
    ) -> Self {
        Self::User {
            combine: Arc::new(combine),
            commutative,
            element: NonZeroUsize::new(element),
        }
    }

    /// Bytes of one element of a reduction.
    pub(crate) fn element_bytes(&self, datatype: Datatype) -> usize {
        match self {
            Self::User {
                element: Some(bytes), ..
            } => bytes.get(),
            _ => datatype.bytes(),
        }
    }

    pub(crate) fn number(&self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Product => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::LogicalAnd => 5,
            Self::LogicalOr => 6,
            Self::LogicalXor => 7,
            Self::BitAnd => 8,
            Self::BitOr => 9,
            Self::BitXor => 10,
            Self::MinAt => 11,
            Self::MaxAt => 12,
            Self::User { .. } => 13,
        }
    }

    /// Whether `a op b` equals `b op a`.
    pub fn is_commutative(&self) -> bool {
        !matches!(self, Self::User { commutative: false, .. })
    }

    /// Returns an error if elements of this type cannot be combined.
    pub fn check(&self, datatype: Datatype) -> Result<(), Failure> {
        if matches!(self, Self::User { .. }) || kernels::of(self, datatype).is_some() {
            return Ok(());
        }
        Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "there is no {} of {}; use another type or an operation of your own",
                name(self.number()),
                datatype.name()
            ),
        ))
    }

    /// `right = left op right`. Both have the same length, a multiple of the element's.
    pub fn combine(&self, left: &[u8], right: &mut [u8], datatype: Datatype) {
        match self {
            Self::User { combine, .. } => combine(left, right, datatype),
            other => {
                if let Some(kernel) = kernels::of(other, datatype) {
                    kernel(left, right);
                }
            }
        }
    }

    /// `left = left op right`. The contents of `right` are undefined afterwards.
    pub fn combine_into_left(&self, left: &mut [u8], right: &mut [u8], datatype: Datatype) {
        if self.is_commutative() {
            self.combine(right, left, datatype);
        } else {
            self.combine(left, right, datatype);
            left.copy_from_slice(right);
        }
    }
}
