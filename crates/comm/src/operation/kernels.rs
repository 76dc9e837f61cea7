//! Loops of the built-in operations, one for each type. The compiler vectorizes them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unalign};

use super::Operation;
use crate::datatype::Datatype;

/// `right = left op right`.
pub type Kernel = fn(&[u8], &mut [u8]);

/// A value and its index in C layout, with `GAP` bytes of padding between them and `REST` bytes after them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
struct At<T, P, const GAP: usize = 0, const REST: usize = 0> {
    value: T,
    gap: [u8; GAP],
    place: P,
    rest: [u8; REST],
}

#[inline(always)]
fn each<T>(left: &[u8], right: &mut [u8], operation: impl Fn(T, T) -> T)
where
    T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy,
{
    // Buffers may be unaligned; the caller checked their length.
    let left = <[Unalign<T>]>::ref_from_bytes(left);
    let right = <[Unalign<T>]>::mut_from_bytes(right);
    if let (Ok(left), Ok(right)) = (left, right) {
        for (left, right) in left.iter().zip(right) {
            right.set(operation(left.get(), right.get()));
        }
    }
}

/// Whether the left value wins: it is better, or it is equal and its index is lower.
fn wins<T: PartialOrd, P: PartialOrd>(left: (T, P), right: (T, P), beats: impl Fn(&T, &T) -> bool) -> bool {
    beats(&left.0, &right.0) || left.0 == right.0 && left.1 < right.1
}

fn complex_product<T>(a: [T; 2], b: [T; 2]) -> [T; 2]
where
    T: std::ops::Mul<Output = T> + std::ops::Add<Output = T> + std::ops::Sub<Output = T> + Copy,
{
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

macro_rules! choose {
    ($datatype:expr, $($name:ident: $type:ty => $operation:expr),* $(,)?) => {
        match $datatype {
            $(Datatype::$name => Some((|left, right| each::<$type>(left, right, $operation)) as Kernel),)*
            _ => None,
        }
    };
}

/// An operation that chooses one of two values with their indices.
macro_rules! choosing {
    ($beats:expr) => {
        |a, b| if wins((a.value, a.place), (b.value, b.place), $beats) { a } else { b }
    };
    ($datatype:expr, $beats:expr) => {
        choose!(
            $datatype,
            F64At: At<f64, i64> => choosing!($beats),
            I64At: At<i64, i64> => choosing!($beats),
            F64At32: At<f64, i32, 0, 4> => choosing!($beats),
            I64At32: At<i64, i32, 0, 4> => choosing!($beats),
            F32At32: At<f32, i32> => choosing!($beats),
            I32At32: At<i32, i32> => choosing!($beats),
            I16At32: At<i16, i32, 2> => choosing!($beats),
        )
    };
}

/// For all integer types, and the further types given.
macro_rules! integers {
    ($datatype:expr, $operation:expr $(, $name:ident: $type:ty => $other:expr)* $(,)?) => {
        choose!(
            $datatype,
            I8: i8 => $operation, I16: i16 => $operation, I32: i32 => $operation, I64: i64 => $operation,
            U8: u8 => $operation, U16: u16 => $operation, U32: u32 => $operation, U64: u64 => $operation,
            $($name: $type => $other),*
        )
    };
}

macro_rules! logical {
    ($datatype:expr, $operation:expr) => {
        integers!($datatype, |a, b| ($operation(a != 0, b != 0)).into(), Bool: u8 => |a, b| ($operation(a != 0, b != 0)).into())
    };
}

/// The loop for an operation on elements of a type; `None` if the pair is not supported.
pub fn of(operation: &Operation, datatype: Datatype) -> Option<Kernel> {
    match operation {
        Operation::Sum => integers!(
            datatype,
            |a, b| a.wrapping_add(b),
            F32: f32 => |a, b| a + b,
            F64: f64 => |a, b| a + b,
            Complex64: [f32; 2] => |a, b| [a[0] + b[0], a[1] + b[1]],
            Complex128: [f64; 2] => |a, b| [a[0] + b[0], a[1] + b[1]],
        ),
        Operation::Product => integers!(
            datatype,
            |a, b| a.wrapping_mul(b),
            F32: f32 => |a, b| a * b,
            F64: f64 => |a, b| a * b,
            Complex64: [f32; 2] => complex_product,
            Complex128: [f64; 2] => complex_product,
        ),
        Operation::Min => {
            integers!(datatype, |a, b| a.min(b), F32: f32 => |a, b| a.min(b), F64: f64 => |a, b| a.min(b))
        }
        Operation::Max => {
            integers!(datatype, |a, b| a.max(b), F32: f32 => |a, b| a.max(b), F64: f64 => |a, b| a.max(b))
        }
        Operation::LogicalAnd => logical!(datatype, |a, b| a && b),
        Operation::LogicalOr => logical!(datatype, |a, b| a || b),
        Operation::LogicalXor => logical!(datatype, |a: bool, b: bool| a != b),
        Operation::BitAnd => integers!(datatype, |a, b| a & b, Bool: u8 => |a, b| a & b, Bytes: u8 => |a, b| a & b),
        Operation::BitOr => integers!(datatype, |a, b| a | b, Bool: u8 => |a, b| a | b, Bytes: u8 => |a, b| a | b),
        Operation::BitXor => integers!(datatype, |a, b| a ^ b, Bool: u8 => |a, b| a ^ b, Bytes: u8 => |a, b| a ^ b),
        Operation::MinAt => choosing!(datatype, |a, b| a < b),
        Operation::MaxAt => choosing!(datatype, |a, b| a > b),
        Operation::User { .. } => None,
    }
}
