//! The predefined datatypes, with MPICH's handles: the size of a datatype is in bits 8 to 15 of its handle.

use dayfly_comm::Datatype as Element;

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

/// Name, handle and kind.
#[rustfmt::skip]
pub const PREDEFINED: &[(&str, u32, Kind)] = &[
    ("MPI_CHAR", 0x4c00_0101, Kind::Element(Element::I8)),
    ("MPI_UNSIGNED_CHAR", 0x4c00_0102, Kind::Element(Element::U8)),
    ("MPI_SHORT", 0x4c00_0203, Kind::Element(Element::I16)),
    ("MPI_UNSIGNED_SHORT", 0x4c00_0204, Kind::Element(Element::U16)),
    ("MPI_INT", 0x4c00_0405, Kind::Element(Element::I32)),
    ("MPI_UNSIGNED", 0x4c00_0406, Kind::Element(Element::U32)),
    ("MPI_LONG", 0x4c00_0807, Kind::Element(Element::I64)),
    ("MPI_UNSIGNED_LONG", 0x4c00_0808, Kind::Element(Element::U64)),
    ("MPI_LONG_LONG_INT", 0x4c00_0809, Kind::Element(Element::I64)),
    ("MPI_FLOAT", 0x4c00_040a, Kind::Element(Element::F32)),
    ("MPI_DOUBLE", 0x4c00_080b, Kind::Element(Element::F64)),
    ("MPI_LONG_DOUBLE", 0x4c00_100c, Kind::LongDouble),
    ("MPI_BYTE", 0x4c00_010d, Kind::Element(Element::U8)),
    ("MPI_WCHAR", 0x4c00_040e, Kind::Element(Element::I32)),
    ("MPI_PACKED", 0x4c00_010f, Kind::Opaque),
    ("MPI_LB", 0x4c00_0010, Kind::Opaque),
    ("MPI_UB", 0x4c00_0011, Kind::Opaque),
    ("MPI_2INT", 0x4c00_0816, Kind::Element(Element::I32At32)),
    ("MPI_SIGNED_CHAR", 0x4c00_0118, Kind::Element(Element::I8)),
    ("MPI_UNSIGNED_LONG_LONG", 0x4c00_0819, Kind::Element(Element::U64)),
    ("MPI_CHARACTER", 0x4c00_011a, Kind::Opaque),
    ("MPI_INTEGER", 0x4c00_041b, Kind::Element(Element::I32)),
    ("MPI_REAL", 0x4c00_041c, Kind::Element(Element::F32)),
    ("MPI_LOGICAL", 0x4c00_041d, Kind::Element(Element::I32)),
    ("MPI_COMPLEX", 0x4c00_081e, Kind::Element(Element::Complex64)),
    ("MPI_DOUBLE_PRECISION", 0x4c00_081f, Kind::Element(Element::F64)),
    ("MPI_2INTEGER", 0x4c00_0820, Kind::Element(Element::I32At32)),
    ("MPI_2REAL", 0x4c00_0821, Kind::Opaque),
    ("MPI_DOUBLE_COMPLEX", 0x4c00_1022, Kind::Element(Element::Complex128)),
    ("MPI_2DOUBLE_PRECISION", 0x4c00_1023, Kind::Opaque),
    ("MPI_2COMPLEX", 0x4c00_1024, Kind::Opaque),
    ("MPI_2DOUBLE_COMPLEX", 0x4c00_2025, Kind::Opaque),
    ("MPI_REAL2", 0x4c00_0226, Kind::Opaque),
    ("MPI_REAL4", 0x4c00_0427, Kind::Element(Element::F32)),
    ("MPI_COMPLEX8", 0x4c00_0828, Kind::Element(Element::Complex64)),
    ("MPI_REAL8", 0x4c00_0829, Kind::Element(Element::F64)),
    ("MPI_COMPLEX16", 0x4c00_102a, Kind::Element(Element::Complex128)),
    ("MPI_REAL16", 0x4c00_102b, Kind::Opaque),
    ("MPI_COMPLEX32", 0x4c00_202c, Kind::Opaque),
    ("MPI_INTEGER1", 0x4c00_012d, Kind::Element(Element::I8)),
    ("MPI_COMPLEX4", 0x4c00_042e, Kind::Opaque),
    ("MPI_INTEGER2", 0x4c00_022f, Kind::Element(Element::I16)),
    ("MPI_INTEGER4", 0x4c00_0430, Kind::Element(Element::I32)),
    ("MPI_INTEGER8", 0x4c00_0831, Kind::Element(Element::I64)),
    ("MPI_INTEGER16", 0x4c00_1032, Kind::Opaque),
    ("MPI_CXX_BOOL", 0x4c00_0133, Kind::Element(Element::Bool)),
    ("MPI_CXX_FLOAT_COMPLEX", 0x4c00_0834, Kind::Element(Element::Complex64)),
    ("MPI_CXX_DOUBLE_COMPLEX", 0x4c00_1035, Kind::Element(Element::Complex128)),
    ("MPI_CXX_LONG_DOUBLE_COMPLEX", 0x4c00_2036, Kind::LongDoubleComplex),
    ("MPI_INT8_T", 0x4c00_0137, Kind::Element(Element::I8)),
    ("MPI_INT16_T", 0x4c00_0238, Kind::Element(Element::I16)),
    ("MPI_INT32_T", 0x4c00_0439, Kind::Element(Element::I32)),
    ("MPI_INT64_T", 0x4c00_083a, Kind::Element(Element::I64)),
    ("MPI_UINT8_T", 0x4c00_013b, Kind::Element(Element::U8)),
    ("MPI_UINT16_T", 0x4c00_023c, Kind::Element(Element::U16)),
    ("MPI_UINT32_T", 0x4c00_043d, Kind::Element(Element::U32)),
    ("MPI_UINT64_T", 0x4c00_083e, Kind::Element(Element::U64)),
    ("MPI_C_BOOL", 0x4c00_013f, Kind::Element(Element::Bool)),
    ("MPI_C_FLOAT_COMPLEX", 0x4c00_0840, Kind::Element(Element::Complex64)),
    ("MPI_C_DOUBLE_COMPLEX", 0x4c00_1041, Kind::Element(Element::Complex128)),
    ("MPI_C_LONG_DOUBLE_COMPLEX", 0x4c00_2042, Kind::LongDoubleComplex),
    ("MPI_AINT", 0x4c00_0843, Kind::Element(Element::I64)),
    ("MPI_OFFSET", 0x4c00_0844, Kind::Element(Element::I64)),
    ("MPI_COUNT", 0x4c00_0845, Kind::Element(Element::I64)),
    ("MPIX_C_FLOAT16", 0x4c00_0246, Kind::Opaque),
    ("MPI_LOGICAL1", 0x4c00_0147, Kind::Element(Element::Bool)),
    ("MPI_LOGICAL2", 0x4c00_0248, Kind::Element(Element::I16)),
    ("MPI_LOGICAL4", 0x4c00_0449, Kind::Element(Element::I32)),
    ("MPI_LOGICAL8", 0x4c00_084a, Kind::Element(Element::I64)),
    ("MPI_LOGICAL16", 0x4c00_104b, Kind::Opaque),
    ("MPIX_BFLOAT16", 0x4c00_024c, Kind::Opaque),
];

/// The pairs of a value and an `int` that have padding: name, kind, handle of the value, and offset of the `int`. Their
/// handles count from [`FIRST_PAIR`].
#[rustfmt::skip]
pub const PAIRS: &[(&str, Kind, u32, usize)] = &[
    ("MPI_FLOAT_INT", Kind::Element(Element::F32At32), 0x4c00_040a, 4),
    ("MPI_DOUBLE_INT", Kind::Element(Element::F64At32), 0x4c00_080b, 8),
    ("MPI_LONG_INT", Kind::Element(Element::I64At32), 0x4c00_0807, 8),
    ("MPI_SHORT_INT", Kind::Element(Element::I16At32), 0x4c00_0203, 4),
    ("MPI_LONG_DOUBLE_INT", Kind::LongDoubleInt, 0x4c00_100c, 16),
];

/// Handle of the first pair.
pub const FIRST_PAIR: u32 = 0x8c00_0000;
/// Handle of `MPI_INT`.
pub const INT: u32 = 0x4c00_0405;
