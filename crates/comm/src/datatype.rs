//! Element types of messages, for operations that compute with them.

/// Type of the elements of a buffer, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Datatype {
    /// Opaque bytes, which built-in operations cannot reduce.
    Bytes = 0,
    I8 = 1,
    I16 = 2,
    I32 = 3,
    I64 = 4,
    U8 = 5,
    U16 = 6,
    U32 = 7,
    U64 = 8,
    F32 = 9,
    F64 = 10,
    /// One byte; zero is false.
    Bool = 11,
    /// Two `f32`: real and imaginary part.
    Complex64 = 12,
    /// Two `f64`.
    Complex128 = 13,
    /// A value and its index, for minimum and maximum with location: `f64` and `i64`.
    F64At = 14,
    /// As [`Datatype::F64At`], of two `i64`.
    I64At = 15,
    /// `f64`, `i32` and four bytes of padding: MPI's `MPI_DOUBLE_INT`.
    F64At32 = 16,
    /// `i64`, `i32` and four bytes of padding: `MPI_LONG_INT`.
    I64At32 = 17,
    /// `f32` and `i32`: `MPI_FLOAT_INT`.
    F32At32 = 18,
    /// Two `i32`: `MPI_2INT`.
    I32At32 = 19,
    /// `i16`, two bytes of padding and `i32`: `MPI_SHORT_INT`.
    I16At32 = 20,
}

impl Datatype {
    /// All types, by number.
    pub const ALL: [Self; 21] = [
        Self::Bytes,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::Bool,
        Self::Complex64,
        Self::Complex128,
        Self::F64At,
        Self::I64At,
        Self::F64At32,
        Self::I64At32,
        Self::F32At32,
        Self::I32At32,
        Self::I16At32,
    ];

    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes | Self::I8 | Self::U8 | Self::Bool => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex64 => 8,
            Self::F32At32 | Self::I32At32 | Self::I16At32 => 8,
            Self::Complex128 | Self::F64At | Self::I64At | Self::F64At32 | Self::I64At32 => 16,
        }
    }

    /// Name of the type, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bool => "bool",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::F64At => "f64 with place",
            Self::I64At => "i64 with place",
            Self::F64At32 => "f64 with 32-bit place",
            Self::I64At32 => "i64 with 32-bit place",
            Self::F32At32 => "f32 with 32-bit place",
            Self::I32At32 => "i32 with 32-bit place",
            Self::I16At32 => "i16 with 32-bit place",
        }
    }
}

mod sealed {
    /// Cannot be implemented outside this crate.
    pub trait Sealed: zerocopy::IntoBytes + zerocopy::FromBytes + zerocopy::Immutable + Copy {}
}

/// A Rust type whose slices are buffers of a [`Datatype`].
pub trait Element: sealed::Sealed {
    /// The datatype of its slices.
    const DATATYPE: Datatype;
}

macro_rules! elements {
    ($($type:ty = $datatype:ident),*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATATYPE: Datatype = Datatype::$datatype;
        })*
    };
}

elements!(
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64,
    f32 = F32,
    f64 = F64
);

/// The bytes of a slice.
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(values)
}

/// The bytes of a slice, mutable.
pub fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    zerocopy::IntoBytes::as_mut_bytes(values)
}
