//! Packing by hand, into the form that messages have, and into the portable form `external32`.

use std::ffi::c_int;

use crate::communicator;
use crate::datatype::{self, count_of};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Comm, Count, Datatype};
use crate::pointer::{Buffer, Out, Text};

fn outside() -> Error {
    Error::new(class::ARG, "the packed data does not fit into its buffer")
}

/// Checks that `length` bytes at `position` lie within `size`.
fn place(position: Count, size: Count, length: usize) -> Result<usize> {
    let start = usize::try_from(position).map_err(|_| outside())?;
    match start + length <= count_of(size)? {
        true => Ok(start),
        false => Err(outside()),
    }
}

fn pack(buffer: Buffer, count: Count, of: Datatype, packed: Buffer, size: Count, position: Count) -> Result<Count> {
    let (of, count) = (datatype::get(of)?, count_of(count)?);
    let length = of.bytes(count)?;
    let start = place(position, size, length)?;
    of.pack(buffer, count, packed.offset(start as isize).bytes_mut(length));
    Ok((start + length) as Count)
}

fn unpack(packed: Buffer, size: Count, position: Count, buffer: Buffer, count: Count, of: Datatype) -> Result<Count> {
    let (of, count) = (datatype::get(of)?, count_of(count)?);
    let length = of.bytes(count)?;
    let start = place(position, size, length)?;
    of.unpack(packed.offset(start as isize).bytes(length), buffer, count);
    Ok((start + length) as Count)
}

fn check_external(name: Text) -> Result<()> {
    match name.get()?.as_str() {
        "external32" => Ok(()),
        _ => Err(Error::new(class::ARG, "the only data representation is external32")),
    }
}

/// Reverses the bytes of each element of packed data: `external32` is big-endian.
fn swap(bytes: &mut [u8], of: &datatype::TypeObject) {
    let mut rest = bytes;
    let mut sizes = Vec::new();
    of.element_sizes(&mut sizes);
    while !rest.is_empty() && !sizes.is_empty() {
        for size in &sizes {
            if rest.len() < *size {
                return;
            }
            let (element, after) = std::mem::take(&mut rest).split_at_mut(*size);
            element.reverse();
            rest = after;
        }
    }
}

fn pack_external(
    name: Text,
    buffer: Buffer,
    count: Count,
    of: Datatype,
    packed: Buffer,
    size: Count,
    start: Count,
) -> Result<Count> {
    check_external(name)?;
    let end = pack(buffer, count, of, packed, size, start)?;
    let own = packed.offset(start as isize).bytes_mut((end - start) as usize);
    swap(own, &*datatype::get(of)?);
    Ok(end)
}

fn unpack_external(
    name: Text,
    packed: Buffer,
    size: Count,
    start: Count,
    buffer: Buffer,
    count: Count,
    of: Datatype,
) -> Result<Count> {
    check_external(name)?;
    let (object, count) = (datatype::get(of)?, count_of(count)?);
    let length = object.bytes(count)?;
    let at = place(start, size, length)?;
    let mut copy = packed.offset(at as isize).bytes(length).to_vec();
    swap(&mut copy, &object);
    object.unpack(&copy, buffer, count);
    Ok((at + length) as Count)
}

mpi! {
    fn MPI_Pack / MPI_Pack_c (
        buffer: Buffer, count: N, of: Datatype, packed: Buffer, size: N, position: Out<N>, comm: Comm
    ) [comm] {
        communicator::get(comm)?;
        let end = pack(buffer, count as Count, of, packed, size as Count, position.get()? as Count)?;
        position.set(end as N);
        Ok(())
    }

    fn MPI_Unpack / MPI_Unpack_c (
        packed: Buffer, size: N, position: Out<N>, buffer: Buffer, count: N, of: Datatype, comm: Comm
    ) [comm] {
        communicator::get(comm)?;
        let end = unpack(packed, size as Count, position.get()? as Count, buffer, count as Count, of)?;
        position.set(end as N);
        Ok(())
    }

    fn MPI_Pack_size / MPI_Pack_size_c (count: N, of: Datatype, comm: Comm, size: Out<N>) [comm] {
        communicator::get(comm)?;
        size.check()?.set(datatype::get(of)?.bytes(count_of(count as Count)?)? as N);
        Ok(())
    }

    fn MPI_Pack_external (
        name: Text, buffer: Buffer, count: c_int, of: Datatype, packed: Buffer, size: Aint, position: Out<Aint>
    ) [()] {
        let end = pack_external(name, buffer, count.into(), of, packed, size as Count, position.get()? as Count)?;
        position.set(end as Aint);
        Ok(())
    }

    fn MPI_Pack_external_c (
        name: Text, buffer: Buffer, count: Count, of: Datatype, packed: Buffer, size: Count, position: Out<Count>
    ) [()] {
        position.set(pack_external(name, buffer, count, of, packed, size, position.get()?)?);
        Ok(())
    }

    fn MPI_Unpack_external (
        name: Text, packed: Buffer, size: Aint, position: Out<Aint>, buffer: Buffer, count: c_int, of: Datatype
    ) [()] {
        let end = unpack_external(name, packed, size as Count, position.get()? as Count, buffer, count.into(), of)?;
        position.set(end as Aint);
        Ok(())
    }

    fn MPI_Unpack_external_c (
        name: Text, packed: Buffer, size: Count, position: Out<Count>, buffer: Buffer, count: Count, of: Datatype
    ) [()] {
        position.set(unpack_external(name, packed, size, position.get()?, buffer, count, of)?);
        Ok(())
    }

    fn MPI_Pack_external_size (name: Text, count: c_int, of: Datatype, size: Out<Aint>) [()] {
        check_external(name)?;
        size.check()?.set(datatype::get(of)?.bytes(count_of(count.into())?)? as Aint);
        Ok(())
    }

    fn MPI_Pack_external_size_c (name: Text, count: Count, of: Datatype, size: Out<Count>) [()] {
        check_external(name)?;
        size.check()?.set(datatype::get(of)?.bytes(count_of(count)?)? as Count);
        Ok(())
    }
}
