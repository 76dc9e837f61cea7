//! Operations on `long double`, which Rust has no type for: the 80-bit numbers of x86.

use dayfly_comm::Operation;

use crate::datatype::Kind;

/// Combines the first array into the second.
pub type Kernel = fn(&[u8], &mut [u8]);

/// Bytes of a `long double`. The number has ten of them.
const BYTES: usize = 16;

/// The kernel of an operation; `None` if there is none.
pub fn kernel(operation: &Operation, kind: Kind) -> Option<Kernel> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    Some(match (kind, operation) {
        (Kind::LongDouble | Kind::LongDoubleComplex, Operation::Sum) => |left, right| each(left, right, add),
        (Kind::LongDouble, Operation::Product) => |left, right| each(left, right, multiply),
        (Kind::LongDouble, Operation::Min) => |left, right| {
            each(
                left,
                right,
                |one, other| if is_less(one, other) { *one } else { *other },
            );
        },
        (Kind::LongDouble, Operation::Max) => |left, right| {
            each(
                left,
                right,
                |one, other| if is_less(other, one) { *one } else { *other },
            );
        },
        (Kind::LongDoubleInt, Operation::MinAt) => |left, right| located(left, right, is_less),
        (Kind::LongDoubleInt, Operation::MaxAt) => |left, right| located(left, right, |one, other| is_less(other, one)),
        (Kind::LongDoubleComplex, Operation::Product) => |left, right| products(left, right),
        _ => return None,
    })
}

type Number = [u8; BYTES];

fn each(left: &[u8], right: &mut [u8], combine: impl Fn(&Number, &Number) -> Number) {
    for (one, other) in left.as_chunks::<BYTES>().0.iter().zip(right.as_chunks_mut::<BYTES>().0) {
        *other = combine(one, other);
    }
}

/// Pairs of a number and an `int`: the better number, and the lower `int` of equal ones.
fn located(left: &[u8], right: &mut [u8], is_better: fn(&Number, &Number) -> bool) {
    const PAIR: usize = 2 * BYTES;
    let parts = |pair: &[u8; PAIR]| -> (Number, i32) {
        let (number, place) = pair.split_at(BYTES);
        let (mut value, mut at) = ([0; BYTES], [0; 4]);
        value.copy_from_slice(number);
        at.copy_from_slice(&place[..4]);
        (value, i32::from_ne_bytes(at))
    };
    for (one, other) in left.as_chunks::<PAIR>().0.iter().zip(right.as_chunks_mut::<PAIR>().0) {
        let ((first, first_at), (second, second_at)) = (parts(one), parts(other));
        if is_better(&first, &second) || (!is_better(&second, &first) && first_at < second_at) {
            *other = *one;
        }
    }
}

fn products(left: &[u8], right: &mut [u8]) {
    for (one, other) in left
        .as_chunks::<BYTES>()
        .0
        .chunks_exact(2)
        .zip(right.as_chunks_mut::<BYTES>().0.chunks_exact_mut(2))
    {
        let real = subtract(&multiply(&one[0], &other[0]), &multiply(&one[1], &other[1]));
        let imaginary = add(&multiply(&one[0], &other[1]), &multiply(&one[1], &other[0]));
        other.copy_from_slice(&[real, imaginary]);
    }
}

macro_rules! arithmetic {
    ($($name:ident $instruction:literal)*) => { $(
        #[cfg(target_arch = "x86_64")]
        fn $name(one: &Number, other: &Number) -> Number {
            let mut result = [0; BYTES];
            // SAFETY: reads ten bytes of each argument, writes ten of the result, and leaves the stack of the
            // coprocessor as it was.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{one}]",
                    "fld tbyte ptr [{other}]",
                    $instruction,
                    "fstp tbyte ptr [{result}]",
                    one = in(reg) one.as_ptr(),
                    other = in(reg) other.as_ptr(),
                    result = in(reg) result.as_mut_ptr(),
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack),
                );
            }
            result
        }

        #[cfg(not(target_arch = "x86_64"))]
        fn $name(one: &Number, _other: &Number) -> Number {
            *one
        }
    )* };
}

arithmetic! {
    add "faddp st(1), st"
    subtract "fsubp st(1), st"
    multiply "fmulp st(1), st"
}

/// Whether the first number is less than the second.
fn is_less(one: &Number, other: &Number) -> bool {
    let difference = subtract(one, other);
    let is_zero = difference[..8].iter().all(|byte| *byte == 0);
    let is_number =
        difference[9] & 0x7f != 0x7f || difference[8] != 0xff || difference[..8] == [0, 0, 0, 0, 0, 0, 0, 0x80];
    difference[9] & 0x80 != 0 && !is_zero && is_number
}
