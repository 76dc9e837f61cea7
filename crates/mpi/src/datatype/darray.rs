//! Distributed arrays: the part of an array that one rank of a grid has.

use std::ffi::c_int;
use std::sync::Arc;

use super::construct::{Numbers, resized, step};
use super::{Part, TypeObject, count_of, get, make};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Count, Datatype};
use crate::interface::array::{BLOCK, CYCLIC, DEFAULT, NONE, ORDER_C, ORDER_FORTRAN};
use crate::interface::combiner;
use crate::pointer::{In, Out};

fn wrong(text: impl Into<String>) -> Error {
    Error::new(class::ARG, text)
}

/// The rank's part of one dimension: blocks of elements of `inner`, which are `stride` bytes apart.
fn dimension(
    inner: &Arc<TypeObject>,
    stride: isize,
    size: Count,
    processes: Count,
    coordinate: Count,
    distribution: c_int,
    argument: c_int,
) -> Result<Arc<TypeObject>> {
    let block = match (distribution, argument) {
        (NONE, _) if processes == 1 => size,
        (NONE, _) => return Err(wrong("a dimension that is not distributed has one process")),
        (BLOCK, DEFAULT) => (size + processes - 1) / processes,
        (BLOCK, given) if Count::from(given) * processes < size => {
            return Err(wrong("the blocks do not cover the array"));
        }
        (CYCLIC, DEFAULT) => 1,
        (BLOCK | CYCLIC, given) if given > 0 => given.into(),
        (BLOCK | CYCLIC, _) => return Err(wrong("the argument of a distribution is not positive")),
        _ => return Err(wrong("the distribution is none of MPI's")),
    };
    let mut parts = Vec::new();
    let mut first = coordinate * block;
    while first < size {
        parts.push(Part {
            offset: first as isize * stride,
            blocks: block.min(size - first) as usize,
            stride,
            length: 1,
            of: inner.clone(),
        });
        first += block * processes;
        if distribution != CYCLIC {
            break;
        }
    }
    Ok(step(parts))
}

mpi! {
    fn MPI_Type_create_darray / MPI_Type_create_darray_c (
        size: c_int, rank: c_int, dimensions: c_int, sizes: In<N>, distributions: In<c_int>, arguments: In<c_int>,
        processes: In<c_int>, order: c_int, old: Datatype, new: Out<Datatype>
    ) [()] {
        let (old, number) = (get(old)?, count_of(dimensions.into())?);
        let sizes: Vec<Count> = sizes.slice(number)?.iter().map(|value| *value as Count).collect();
        let (distributions, arguments) = (distributions.slice(number)?, arguments.slice(number)?);
        let processes = processes.slice(number)?;
        let all: Count = processes.iter().map(|count| Count::from(*count)).product();
        if number == 0 || all != Count::from(size) || rank < 0 || rank >= size || processes.iter().any(|count| *count < 1) {
            return Err(wrong("the grid of processes does not fit its size or the rank"));
        }
        // The grid is in the order of C, whatever that of the array is.
        let mut rest = rank;
        let mut coordinates = vec![0; number];
        for at in (0..number).rev() {
            coordinates[at] = rest % processes[at];
            rest /= processes[at];
        }
        let mut order_of: Vec<usize> = (0..number).collect();
        match order {
            ORDER_C => order_of.reverse(),
            ORDER_FORTRAN => {}
            _ => return Err(wrong("the order is neither MPI_ORDER_C nor MPI_ORDER_FORTRAN")),
        }
        let (mut inner, mut stride) = (old.clone(), old.extent);
        for at in order_of {
            let (count, coordinate) = (processes[at].into(), coordinates[at].into());
            inner = dimension(&inner, stride, sizes[at], count, coordinate, distributions[at], arguments[at])?;
            stride *= sizes[at] as isize;
        }
        let numbers = Numbers::new(combiner::DARRAY, size_of::<N>()).integers([size, rank, dimensions]);
        let numbers = numbers.counts(sizes).integers(distributions.iter().copied());
        let numbers = numbers.integers(arguments.iter().copied()).integers(processes.iter().copied());
        let object = resized(&inner, 0, stride, numbers.integers([order]).of([old]));
        new.check()?.set(make(object));
        Ok(())
    }
}
