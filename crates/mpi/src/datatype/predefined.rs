//! The predefined datatypes, with their handles in MPICH and in the standard. The size of a datatype is in bits 8 to 15 of
//! its handle in MPICH.

use dayfly_comm::Datatype as Element;

use crate::handle::Datatype;
use crate::interface::{DATATYPE_NULL, Number};

/// How operations see the elements of a datatype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The engine's operations know them.
    Element(Element),
    /// `long double` of this processor: 80 bits in 16 bytes.
    LongDouble,
    /// Two of them.
    LongDoubleComplex,
    /// `long double` and `int`.
    LongDoubleInt,
    /// No operation of the library knows them.
    Opaque,
}

impl Kind {
    pub fn is_complex(self) -> bool {
        let elements = [Element::Complex64, Element::Complex128];
        self == Self::LongDoubleComplex || elements.iter().any(|element| self == Self::Element(*element))
    }
}

/// Name, handles and kind.
#[rustfmt::skip]
pub const PREDEFINED: &[(&str, u32, u32, Kind)] = &[
    ("MPI_CHAR", 0x4c00_0101, 0x243, Kind::Element(Element::I8)),
    ("MPI_UNSIGNED_CHAR", 0x4c00_0102, 0x245, Kind::Element(Element::U8)),
    ("MPI_SHORT", 0x4c00_0203, 0x208, Kind::Element(Element::I16)),
    ("MPI_UNSIGNED_SHORT", 0x4c00_0204, 0x20c, Kind::Element(Element::U16)),
    ("MPI_INT", 0x4c00_0405, 0x209, Kind::Element(Element::I32)),
    ("MPI_UNSIGNED", 0x4c00_0406, 0x20d, Kind::Element(Element::U32)),
    ("MPI_LONG", 0x4c00_0807, 0x20a, Kind::Element(Element::I64)),
    ("MPI_UNSIGNED_LONG", 0x4c00_0808, 0x20e, Kind::Element(Element::U64)),
    ("MPI_LONG_LONG_INT", 0x4c00_0809, 0x20b, Kind::Element(Element::I64)),
    ("MPI_FLOAT", 0x4c00_040a, 0x210, Kind::Element(Element::F32)),
    ("MPI_DOUBLE", 0x4c00_080b, 0x214, Kind::Element(Element::F64)),
    ("MPI_LONG_DOUBLE", 0x4c00_100c, 0x220, Kind::LongDouble),
    ("MPI_BYTE", 0x4c00_010d, 0x247, Kind::Element(Element::U8)),
    ("MPI_WCHAR", 0x4c00_040e, 0x23c, Kind::Element(Element::I32)),
    ("MPI_PACKED", 0x4c00_010f, 0x207, Kind::Opaque),
    ("MPI_LB", 0x4c00_0010, NONE, Kind::Opaque),
    ("MPI_UB", 0x4c00_0011, NONE, Kind::Opaque),
    ("MPI_2INT", 0x4c00_0816, 0x22b, Kind::Element(Element::I32At32)),
    ("MPI_SIGNED_CHAR", 0x4c00_0118, 0x244, Kind::Element(Element::I8)),
    ("MPI_UNSIGNED_LONG_LONG", 0x4c00_0819, 0x20f, Kind::Element(Element::U64)),
    ("MPI_CHARACTER", 0x4c00_011a, 0x21e, Kind::Opaque),
    ("MPI_INTEGER", 0x4c00_041b, 0x219, Kind::Element(Element::I32)),
    ("MPI_REAL", 0x4c00_041c, 0x21a, Kind::Element(Element::F32)),
    ("MPI_LOGICAL", 0x4c00_041d, 0x218, Kind::Element(Element::I32)),
    ("MPI_COMPLEX", 0x4c00_081e, 0x21b, Kind::Element(Element::Complex64)),
    ("MPI_DOUBLE_PRECISION", 0x4c00_081f, 0x21c, Kind::Element(Element::F64)),
    ("MPI_2INTEGER", 0x4c00_0820, 0x232, Kind::Element(Element::I32At32)),
    ("MPI_2REAL", 0x4c00_0821, 0x230, Kind::Opaque),
    ("MPI_DOUBLE_COMPLEX", 0x4c00_1022, 0x21d, Kind::Element(Element::Complex128)),
    ("MPI_2DOUBLE_PRECISION", 0x4c00_1023, 0x231, Kind::Opaque),
    ("MPI_2COMPLEX", 0x4c00_1024, NONE, Kind::Opaque),
    ("MPI_2DOUBLE_COMPLEX", 0x4c00_2025, NONE, Kind::Opaque),
    ("MPI_REAL2", 0x4c00_0226, 0x2ca, Kind::Opaque),
    ("MPI_REAL4", 0x4c00_0427, 0x2d2, Kind::Element(Element::F32)),
    ("MPI_COMPLEX8", 0x4c00_0828, 0x2db, Kind::Element(Element::Complex64)),
    ("MPI_REAL8", 0x4c00_0829, 0x2da, Kind::Element(Element::F64)),
    ("MPI_COMPLEX16", 0x4c00_102a, 0x2e3, Kind::Element(Element::Complex128)),
    ("MPI_REAL16", 0x4c00_102b, 0x2e2, Kind::Opaque),
    ("MPI_COMPLEX32", 0x4c00_202c, 0x2eb, Kind::Opaque),
    ("MPI_INTEGER1", 0x4c00_012d, 0x2c1, Kind::Element(Element::I8)),
    ("MPI_COMPLEX4", 0x4c00_042e, 0x2d3, Kind::Opaque),
    ("MPI_INTEGER2", 0x4c00_022f, 0x2c9, Kind::Element(Element::I16)),
    ("MPI_INTEGER4", 0x4c00_0430, 0x2d1, Kind::Element(Element::I32)),
    ("MPI_INTEGER8", 0x4c00_0831, 0x2d9, Kind::Element(Element::I64)),
    ("MPI_INTEGER16", 0x4c00_1032, 0x2e1, Kind::Opaque),
    ("MPI_CXX_BOOL", 0x4c00_0133, 0x239, Kind::Element(Element::Bool)),
    ("MPI_CXX_FLOAT_COMPLEX", 0x4c00_0834, 0x213, Kind::Element(Element::Complex64)),
    ("MPI_CXX_DOUBLE_COMPLEX", 0x4c00_1035, 0x217, Kind::Element(Element::Complex128)),
    ("MPI_CXX_LONG_DOUBLE_COMPLEX", 0x4c00_2036, 0x225, Kind::LongDoubleComplex),
    ("MPI_INT8_T", 0x4c00_0137, 0x240, Kind::Element(Element::I8)),
    ("MPI_INT16_T", 0x4c00_0238, 0x248, Kind::Element(Element::I16)),
    ("MPI_INT32_T", 0x4c00_0439, 0x250, Kind::Element(Element::I32)),
    ("MPI_INT64_T", 0x4c00_083a, 0x258, Kind::Element(Element::I64)),
    ("MPI_UINT8_T", 0x4c00_013b, 0x241, Kind::Element(Element::U8)),
    ("MPI_UINT16_T", 0x4c00_023c, 0x249, Kind::Element(Element::U16)),
    ("MPI_UINT32_T", 0x4c00_043d, 0x251, Kind::Element(Element::U32)),
    ("MPI_UINT64_T", 0x4c00_083e, 0x259, Kind::Element(Element::U64)),
    ("MPI_C_BOOL", 0x4c00_013f, 0x238, Kind::Element(Element::Bool)),
    ("MPI_C_FLOAT_COMPLEX", 0x4c00_0840, 0x212, Kind::Element(Element::Complex64)),
    ("MPI_C_DOUBLE_COMPLEX", 0x4c00_1041, 0x216, Kind::Element(Element::Complex128)),
    ("MPI_C_LONG_DOUBLE_COMPLEX", 0x4c00_2042, 0x224, Kind::LongDoubleComplex),
    ("MPI_AINT", 0x4c00_0843, 0x201, Kind::Element(Element::I64)),
    ("MPI_OFFSET", 0x4c00_0844, 0x203, Kind::Element(Element::I64)),
    ("MPI_COUNT", 0x4c00_0845, 0x202, Kind::Element(Element::I64)),
    ("MPIX_C_FLOAT16", 0x4c00_0246, NONE, Kind::Opaque),
    ("MPI_LOGICAL1", 0x4c00_0147, 0x2c0, Kind::Element(Element::Bool)),
    ("MPI_LOGICAL2", 0x4c00_0248, 0x2c8, Kind::Element(Element::I16)),
    ("MPI_LOGICAL4", 0x4c00_0449, 0x2d0, Kind::Element(Element::I32)),
    ("MPI_LOGICAL8", 0x4c00_084a, 0x2d8, Kind::Element(Element::I64)),
    ("MPI_LOGICAL16", 0x4c00_104b, 0x2e0, Kind::Opaque),
    ("MPIX_BFLOAT16", 0x4c00_024c, NONE, Kind::Opaque),
];

/// The pairs of a value and an `int` that have padding: name, handles, kind, MPICH's handle of the value, and offset of the
/// `int`.
#[rustfmt::skip]
pub const PAIRS: &[(&str, u32, u32, Kind, u32, usize)] = &[
    ("MPI_FLOAT_INT", 0x8c00_0000, 0x228, Kind::Element(Element::F32At32), 0x4c00_040a, 4),
    ("MPI_DOUBLE_INT", 0x8c00_0001, 0x229, Kind::Element(Element::F64At32), 0x4c00_080b, 8),
    ("MPI_LONG_INT", 0x8c00_0002, 0x22a, Kind::Element(Element::I64At32), 0x4c00_0807, 8),
    ("MPI_SHORT_INT", 0x8c00_0003, 0x22c, Kind::Element(Element::I16At32), 0x4c00_0203, 4),
    ("MPI_LONG_DOUBLE_INT", 0x8c00_0004, 0x22d, Kind::LongDoubleInt, 0x4c00_100c, 16),
];

/// The handle of a row in this interface; `None` if it has no such datatype.
pub fn handle_in_face(mpich: u32, standard: u32) -> Option<Datatype> {
    match cfg!(face = "mpich") {
        true => Some(Datatype(mpich as Number)),
        false => (standard != NONE).then_some(Datatype(standard as Number)),
    }
}

/// Where a handle of a predefined datatype stands among all of this interface.
pub fn place_of(handle: Datatype) -> Option<usize> {
    let number = handle.0 as u32;
    match cfg!(face = "mpich") {
        true if number & 0xff00_0000 == 0x4c00_0000 => Some((number & 0xff) as usize),
        true => number
            .checked_sub(FIRST_PAIR)
            .map(|at| 0x100 + at as usize)
            .filter(|at| *at < MAX_PREDEFINED),
        false => number
            .checked_sub(DATATYPE_NULL as u32)
            .map(|at| at as usize)
            .filter(|at| *at < MAX_PREDEFINED),
    }
}

/// Handle of the first pair in MPICH.
const FIRST_PAIR: u32 = 0x8c00_0000;
/// Places of predefined datatypes.
pub const MAX_PREDEFINED: usize = 0x100 + PAIRS.len();
/// Handle of `MPI_INT` in MPICH.
pub const INT: u32 = 0x4c00_0405;
/// In place of a handle: the interface has no such datatype.
const NONE: u32 = 0;
