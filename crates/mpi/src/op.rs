//! Operations of reductions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use dayfly_comm::{Datatype as Element, Operation};

use crate::datatype::{self, Kind, TypeObject, count_of};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Count, Datatype, Op, Table};
use crate::interface::OPERATIONS;
use crate::long_double;
use crate::pointer::{Buffer, Out};

/// A program's operation: combines the first array into the second.
pub type Function = extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut Datatype);
/// As [`Function`], with a large count.
pub type LargeFunction = extern "C" fn(*mut c_void, *mut c_void, *mut Count, *mut Datatype);

#[derive(Clone, Copy)]
enum Combine {
    Small(Function),
    Large(LargeFunction),
}

struct OpObject {
    combine: Combine,
    commutative: bool,
}

static OPS: Table<OpObject> = Table::new(6);

/// `MPI_REPLACE`.
pub const REPLACE: Op = Op(OPERATIONS[12]);
/// `MPI_NO_OP`.
pub const NO_OP: Op = Op(OPERATIONS[13]);

/// Whether an operation is predefined.
pub fn is_predefined(op: Op) -> bool {
    OPERATIONS.contains(&op.0)
}

/// The engine's operation of a predefined one; `None` for those of windows only, and for others.
fn builtin(op: Op) -> Option<Operation> {
    let place = OPERATIONS.iter().position(|number| *number == op.0)?;
    Some(match place {
        0 => Operation::Max,
        1 => Operation::Min,
        2 => Operation::Sum,
        3 => Operation::Product,
        4 => Operation::LogicalAnd,
        5 => Operation::BitAnd,
        6 => Operation::LogicalOr,
        7 => Operation::BitOr,
        8 => Operation::LogicalXor,
        9 => Operation::BitXor,
        10 => Operation::MinAt,
        11 => Operation::MaxAt,
        _ => return None,
    })
}

fn get(op: Op) -> Result<Arc<OpObject>> {
    OPS.get(op.0)
        .ok_or_else(|| Error::new(class::OP, "the handle is no operation"))
}

/// How a reduction sees memory.
pub struct Reduction {
    pub operation: Operation,
    pub element: Element,
    /// Bytes of one element of the datatype in the arrays that the engine combines.
    pub bytes: usize,
    /// Whether these arrays are the program's own; else they are packed.
    pub is_direct: bool,
}

/// How the engine reduces elements of a datatype.
pub fn reduction(op: Op, handle: Datatype, of: &Arc<TypeObject>) -> Result<Reduction> {
    if is_predefined(op) {
        let wrong = || {
            let text = format!("the operation is not defined for {}", of.name());
            Error::new(class::OP, text)
        };
        let operation = builtin(op).ok_or_else(wrong)?;
        let bytes = of.extent as usize;
        let (operation, element) = match of.kind().ok_or_else(wrong)? {
            Kind::Element(element) => {
                operation.check(element).map_err(|_| wrong())?;
                (operation, element)
            }
            kind => {
                let kernel = long_double::kernel(&operation, kind).ok_or_else(wrong)?;
                (
                    Operation::user_of(move |left, right, _| kernel(left, right), true, bytes),
                    Element::Bytes,
                )
            }
        };
        return Ok(Reduction {
            operation,
            element,
            bytes,
            is_direct: true,
        });
    }
    let object = get(op)?;
    let (combine, commutative) = (object.combine, object.commutative);
    // Pairs with padding are dense for operations: whole structs.
    let is_direct = of.dense || of.predefined.is_some();
    let bytes = if is_direct { of.extent.max(0) as usize } else { of.size };
    let own = of.clone();
    let call = move |left: &[u8], right: &mut [u8], _: Element| {
        let count = left.len().checked_div(bytes).unwrap_or(0);
        if is_direct {
            apply(combine, left.as_ptr().cast_mut(), right.as_mut_ptr(), count, handle);
            return;
        }
        // The function gets elements where their datatype has them.
        let (start, length) = own.span(count);
        let (mut first, mut second) = (vec![0u8; length], vec![0u8; length]);
        let at = |memory: &mut Vec<u8>| Buffer::new(memory.as_mut_ptr().cast()).offset(-start);
        let (one, other) = (at(&mut first), at(&mut second));
        own.unpack(left, one, count);
        own.unpack(right, other, count);
        apply(combine, one.start(), other.start(), count, handle);
        own.pack(other, count, right);
    };
    Ok(Reduction {
        operation: Operation::user_of(call, commutative, bytes),
        element: Element::Bytes,
        bytes,
        is_direct,
    })
}

fn apply(combine: Combine, left: *mut u8, right: *mut u8, count: usize, mut handle: Datatype) {
    match combine {
        Combine::Small(function) => {
            let mut count = count as c_int;
            function(left.cast(), right.cast(), &raw mut count, &raw mut handle);
        }
        Combine::Large(function) => {
            let mut count = count as Count;
            function(left.cast(), right.cast(), &raw mut count, &raw mut handle);
        }
    }
}

fn create(combine: Combine, commutative: c_int, op: Out<Op>) -> Result<()> {
    op.check()?.set(Op(OPS.insert(Arc::new(OpObject {
        combine,
        commutative: commutative != 0,
    }))));
    Ok(())
}

fn no_function() -> Error {
    Error::new(class::ARG, "the operation's function is NULL")
}

mpi! {
    fn MPI_Op_create (function: Option<Function>, commutative: c_int, op: Out<Op>) [()] {
        create(Combine::Small(function.ok_or_else(no_function)?), commutative, op)
    }

    fn MPI_Op_create_c (function: Option<LargeFunction>, commutative: c_int, op: Out<Op>) [()] {
        create(Combine::Large(function.ok_or_else(no_function)?), commutative, op)
    }

    fn MPI_Op_free (op: Out<Op>) [()] {
        let handle = op.get()?;
        get(handle)?;
        OPS.remove(handle.0);
        op.set(Op::NULL);
        Ok(())
    }

    fn MPI_Op_commutative (op: Op, flag: Out<c_int>) [()] {
        let commutative = match is_predefined(op) {
            true => op != REPLACE,
            false => get(op)?.commutative,
        };
        flag.check()?.set(commutative.into());
        Ok(())
    }

    fn MPI_Reduce_local / MPI_Reduce_local_c (left: Buffer, right: Buffer, count: N, of: Datatype, op: Op) [()] {
        let (handle, of, count) = (of, datatype::get(of)?, count_of(count as Count)?);
        match op {
            NO_OP => return Ok(()),
            REPLACE => {
                let mut packed = vec![0; of.bytes(count)?];
                of.pack(left, count, &mut packed);
                of.unpack(&packed, right, count);
                return Ok(());
            }
            _ => {}
        }
        let by = reduction(op, handle, &of)?;
        if by.is_direct {
            let length = by.bytes * count;
            by.operation.combine(left.bytes(length), right.bytes_mut(length), by.element);
            return Ok(());
        }
        let length = of.bytes(count)?;
        let (mut one, mut other) = (vec![0; length], vec![0; length]);
        of.pack(left, count, &mut one);
        of.pack(right, count, &mut other);
        by.operation.combine(&one, &mut other, by.element);
        of.unpack(&other, right, count);
        Ok(())
    }
}
