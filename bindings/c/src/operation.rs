//! Element types of buffers, and reduction operations.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use dayfly_client::{Code, Error};
use dayfly_comm::{Datatype, Operation};

use crate::handle::put_required;
use crate::status::{dfly_status, guard, misuse};

/// Untyped bytes.
pub const DFLY_BYTES: u32 = 0;
/// `int8_t`.
pub const DFLY_I8: u32 = 1;
/// `int16_t`.
pub const DFLY_I16: u32 = 2;
/// `int32_t`.
pub const DFLY_I32: u32 = 3;
/// `int64_t`.
pub const DFLY_I64: u32 = 4;
/// `uint8_t`.
pub const DFLY_U8: u32 = 5;
/// `uint16_t`.
pub const DFLY_U16: u32 = 6;
/// `uint32_t`.
pub const DFLY_U32: u32 = 7;
/// `uint64_t`.
pub const DFLY_U64: u32 = 8;
/// `float`.
pub const DFLY_F32: u32 = 9;
/// `double`.
pub const DFLY_F64: u32 = 10;
/// `bool`: one byte, false where it is zero.
pub const DFLY_BOOL: u32 = 11;
/// Two `float`: real and imaginary part.
pub const DFLY_COMPLEX64: u32 = 12;
/// Two `double`: real and imaginary part.
pub const DFLY_COMPLEX128: u32 = 13;
/// A `double` value and its `int64_t` index, for DFLY_MIN_AT and DFLY_MAX_AT.
pub const DFLY_F64_AT: u32 = 14;
/// As DFLY_F64_AT, with an `int64_t` value.
pub const DFLY_I64_AT: u32 = 15;
/// `double`, `int32_t` and four bytes of padding. This type and the next four have the layout of MPI's value-index
/// pairs.
pub const DFLY_F64_AT32: u32 = 16;
/// `int64_t`, `int32_t` and four bytes of padding.
pub const DFLY_I64_AT32: u32 = 17;
/// `float` and `int32_t`.
pub const DFLY_F32_AT32: u32 = 18;
/// Two `int32_t`.
pub const DFLY_I32_AT32: u32 = 19;
/// `int16_t`, two bytes of padding, and `int32_t`.
pub const DFLY_I16_AT32: u32 = 20;

/// Sum. Integers wrap around.
pub const DFLY_SUM: u32 = 1;
/// Product. Integers wrap around.
pub const DFLY_PRODUCT: u32 = 2;
/// Minimum.
pub const DFLY_MIN: u32 = 3;
/// Maximum.
pub const DFLY_MAX: u32 = 4;
/// True if all elements are true (not zero).
pub const DFLY_LOGICAL_AND: u32 = 5;
/// True if any element is true.
pub const DFLY_LOGICAL_OR: u32 = 6;
/// True if an odd number of elements is true.
pub const DFLY_LOGICAL_XOR: u32 = 7;
/// Bitwise and.
pub const DFLY_BIT_AND: u32 = 8;
/// Bitwise or.
pub const DFLY_BIT_OR: u32 = 9;
/// Bitwise exclusive or.
pub const DFLY_BIT_XOR: u32 = 10;
/// Minimum and its lowest index.
pub const DFLY_MIN_AT: u32 = 11;
/// Maximum and its lowest index.
pub const DFLY_MAX_AT: u32 = 12;

/// Lowest number of an operation that a program defines.
const FIRST_OWN: u32 = 1 << 16;

/// Reduction operation defined by the program: combines `count` elements of `left` and `right` into `right` (`right =
/// left op right`). It runs in the thread of this process that waits for the group, possibly on a part of a buffer at a
/// time. It must not throw, and must not use the group.
pub type dfly_combine = Option<
    unsafe extern "C" fn(user: *mut c_void, left: *const c_void, right: *mut c_void, count: usize, datatype: u32),
>;

struct Combine {
    function: unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize, u32),
    user: *mut c_void,
}

// SAFETY: by contract any thread may run the function, and this library never dereferences `user`.
unsafe impl Send for Combine {}
// SAFETY: as above.
unsafe impl Sync for Combine {}

impl Combine {
    fn run(&self, left: &[u8], right: &mut [u8], datatype: Datatype) {
        // A function that reads a `double` may rely on its alignment. Parts that arrive over a network may be
        // unaligned.
        let lies_well = |start: *const u8| (start as usize).is_multiple_of(datatype.bytes().min(size_of::<u64>()));
        if lies_well(left.as_ptr()) && lies_well(right.as_ptr()) {
            self.call(left.as_ptr(), right.as_mut_ptr(), right.len(), datatype);
            return;
        }
        let words = right.len().div_ceil(size_of::<u64>());
        let mut aligned = [vec![0_u64; words], vec![0_u64; words]];
        let [from, into] = aligned.each_mut().map(|words| words.as_mut_ptr().cast::<u8>());
        // SAFETY: each has room for this many bytes, and they do not overlap.
        unsafe {
            from.copy_from_nonoverlapping(left.as_ptr(), right.len());
            into.copy_from_nonoverlapping(right.as_ptr(), right.len());
        }
        self.call(from, into, right.len(), datatype);
        // SAFETY: as above.
        unsafe { right.as_mut_ptr().copy_from_nonoverlapping(into, right.len()) };
    }

    fn call(&self, left: *const u8, right: *mut u8, bytes: usize, datatype: Datatype) {
        let count = bytes / datatype.bytes();
        // SAFETY: a function of the caller with this signature; both buffers have `count` elements.
        unsafe { (self.function)(self.user, left.cast(), right.cast(), count, datatype as u32) };
    }
}

/// Operations that the program defined, by number. A number is never reused.
struct Own {
    next: u32,
    known: BTreeMap<u32, Operation>,
}

static OWN: RwLock<Own> = RwLock::new(Own {
    next: FIRST_OWN,
    known: BTreeMap::new(),
});

pub(crate) fn datatype(number: u32) -> Result<Datatype, Error> {
    Ok(match number {
        DFLY_BYTES => Datatype::Bytes,
        DFLY_I8 => Datatype::I8,
        DFLY_I16 => Datatype::I16,
        DFLY_I32 => Datatype::I32,
        DFLY_I64 => Datatype::I64,
        DFLY_U8 => Datatype::U8,
        DFLY_U16 => Datatype::U16,
        DFLY_U32 => Datatype::U32,
        DFLY_U64 => Datatype::U64,
        DFLY_F32 => Datatype::F32,
        DFLY_F64 => Datatype::F64,
        DFLY_BOOL => Datatype::Bool,
        DFLY_COMPLEX64 => Datatype::Complex64,
        DFLY_COMPLEX128 => Datatype::Complex128,
        DFLY_F64_AT => Datatype::F64At,
        DFLY_I64_AT => Datatype::I64At,
        DFLY_F64_AT32 => Datatype::F64At32,
        DFLY_I64_AT32 => Datatype::I64At32,
        DFLY_F32_AT32 => Datatype::F32At32,
        DFLY_I32_AT32 => Datatype::I32At32,
        DFLY_I16_AT32 => Datatype::I16At32,
        other => {
            let text = format!("there is no datatype {other}; use one of DFLY_BYTES to DFLY_I16_AT32");
            return Err(misuse(text));
        }
    })
}

pub(crate) fn operation(number: u32) -> Result<Operation, Error> {
    Ok(match number {
        DFLY_SUM => Operation::Sum,
        DFLY_PRODUCT => Operation::Product,
        DFLY_MIN => Operation::Min,
        DFLY_MAX => Operation::Max,
        DFLY_LOGICAL_AND => Operation::LogicalAnd,
        DFLY_LOGICAL_OR => Operation::LogicalOr,
        DFLY_LOGICAL_XOR => Operation::LogicalXor,
        DFLY_BIT_AND => Operation::BitAnd,
        DFLY_BIT_OR => Operation::BitOr,
        DFLY_BIT_XOR => Operation::BitXor,
        DFLY_MIN_AT => Operation::MinAt,
        DFLY_MAX_AT => Operation::MaxAt,
        own => OWN
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .known
            .get(&own)
            .cloned()
            .ok_or_else(|| {
                misuse(format!(
                    "there is no operation {own}; use one of DFLY_SUM to DFLY_MAX_AT, or what dfly_operation_create gave"
                ))
            })?,
    })
}

/// Returns the size of an element of a datatype in bytes; 0 if the datatype is unknown.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_datatype_bytes(datatype: u32) -> usize {
    self::datatype(datatype).map_or(0, Datatype::bytes)
}

/// Defines a reduction operation. `operation` receives its number, which is valid in this process. All ranks must
/// define it with the same function. `combine` must be associative; `commutative` states whether ranks may also be
/// combined in another order. `user` may be NULL and is passed to each call of `combine`. Free the operation with
/// `dfly_operation_free`.
///
/// # Safety
/// `operation` is writable; `combine` is NULL or a function of this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_operation_create(
    combine: dfly_combine,
    user: *mut c_void,
    commutative: bool,
    operation: *mut u32,
) -> dfly_status {
    guard(|| {
        let function = combine.ok_or_else(|| misuse("the function of the operation is NULL"))?;
        let own = Combine { function, user };
        let made = Operation::user(
            move |left: &[u8], right: &mut [u8], datatype| own.run(left, right, datatype),
            commutative,
        );
        let mut all = OWN.write().unwrap_or_else(PoisonError::into_inner);
        let number = all.next;
        let next = number.checked_add(1);
        let next = next.ok_or_else(|| Error::new(Code::TooLarge, "there are no more numbers for operations"))?;
        // SAFETY: as the caller promises.
        unsafe { put_required(operation, "the place for the operation's number", number) }?;
        all.next = next;
        all.known.insert(number, made);
        Ok(())
    })
}

/// Frees an operation made by `dfly_operation_create`. Reductions that are in progress still use it. Errors:
/// DFLY_INVALID_REQUEST if there is no such operation.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_operation_free(operation: u32) -> dfly_status {
    guard(|| {
        let mut all = OWN.write().unwrap_or_else(PoisonError::into_inner);
        match all.known.remove(&operation) {
            Some(_) => Ok(()),
            None => Err(misuse(format!("there is no operation {operation} of this program's own")).into()),
        }
    })
}
