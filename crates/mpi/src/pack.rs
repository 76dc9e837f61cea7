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

/// The form of an element in `external32`, which is big-endian.
#[derive(Clone, Copy)]
struct Form {
    /// Bytes in memory, and in the portable form.
    native: usize,
    external: usize,
    is_signed: bool,
}

impl Form {
    /// Writes an element in its portable form.
    fn write(self, native: &[u8], external: &mut [u8]) -> Result<()> {
        let (kept, lost) = native.split_at(self.external);
        if lost.iter().any(|byte| *byte != self.filler(kept)) {
            return Err(Error::new(
                class::CONVERSION,
                format!(
                    "a number does not fit into the {} bytes that it has in external32",
                    self.external
                ),
            ));
        }
        external.copy_from_slice(kept);
        external.reverse();
        Ok(())
    }

    /// Reads an element in its portable form.
    fn read(self, external: &[u8], native: &mut [u8]) {
        let (kept, lost) = native.split_at_mut(self.external);
        kept.copy_from_slice(external);
        kept.reverse();
        lost.fill(self.filler(kept));
    }

    /// The byte of the higher places of a number.
    fn filler(self, low: &[u8]) -> u8 {
        match low.last() {
            Some(128..) if self.is_signed => 0xff,
            _ => 0,
        }
    }
}

/// The forms of the elements of a datatype (MPI 4.1, section 14.5.2).
struct Forms(Vec<Form>);

impl Forms {
    fn new(of: &datatype::TypeObject) -> Result<Self> {
        let shorter = [
            ("MPI_LONG", 4, true),
            ("MPI_UNSIGNED_LONG", 4, false),
            ("MPI_WCHAR", 2, false),
        ];
        let shorter = shorter.map(|(name, size, is_signed)| datatype::named(name).map(|of| (of, size, is_signed)));
        let [long, unsigned, wide] = shorter;
        let shorter = [long?, unsigned?, wide?];
        let mut all = Vec::new();
        of.visit_elements(&mut |element, native| {
            let handle = element.predefined.map(|(handle, _)| handle);
            let found = shorter.iter().find(|(of, ..)| handle == Some(*of));
            let (external, is_signed) = found.map_or((native, false), |(_, size, is_signed)| (*size, *is_signed));
            all.push(Form {
                native,
                external,
                is_signed,
            });
        });
        Ok(Self(all))
    }

    /// Bytes of `count` elements of the datatype in the portable form.
    fn bytes(&self, count: usize) -> Result<usize> {
        let of_one = self.0.iter().map(|form| form.external).sum::<usize>();
        of_one
            .checked_mul(count)
            .ok_or_else(|| Error::new(class::COUNT, "the message is longer than memory"))
    }

    /// Writes whole values of the datatype in the portable form.
    fn write(&self, mut native: &[u8], mut external: &mut [u8]) -> Result<()> {
        while !native.is_empty() {
            for form in &self.0 {
                let (from, rest) = native.split_at(form.native);
                let (into, after) = std::mem::take(&mut external).split_at_mut(form.external);
                form.write(from, into)?;
                (native, external) = (rest, after);
            }
        }
        Ok(())
    }

    /// Reads whole values of the datatype in the portable form.
    fn read(&self, mut external: &[u8], mut native: &mut [u8]) {
        while !external.is_empty() {
            for form in &self.0 {
                let (from, rest) = external.split_at(form.external);
                let (into, after) = std::mem::take(&mut native).split_at_mut(form.native);
                form.read(from, into);
                (external, native) = (rest, after);
            }
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
    let (of, count) = (datatype::get(of)?, count_of(count)?);
    let forms = Forms::new(&of)?;
    let length = forms.bytes(count)?;
    let start = place(start, size, length)?;
    let mut native = vec![0; of.bytes(count)?];
    of.pack(buffer, count, &mut native);
    forms.write(&native, packed.offset(start as isize).bytes_mut(length))?;
    Ok((start + length) as Count)
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
    let (of, count) = (datatype::get(of)?, count_of(count)?);
    let forms = Forms::new(&of)?;
    let length = forms.bytes(count)?;
    let start = place(start, size, length)?;
    let mut native = vec![0; of.bytes(count)?];
    forms.read(packed.offset(start as isize).bytes(length), &mut native);
    of.unpack(&native, buffer, count);
    Ok((start + length) as Count)
}

/// The bytes of `count` values in the portable form.
fn external_size(name: Text, count: Count, of: Datatype) -> Result<usize> {
    check_external(name)?;
    Forms::new(&*datatype::get(of)?)?.bytes(count_of(count)?)
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
        size.check()?.set(external_size(name, count.into(), of)? as Aint);
        Ok(())
    }

    fn MPI_Pack_external_size_c (name: Text, count: Count, of: Datatype, size: Out<Count>) [()] {
        size.check()?.set(external_size(name, count, of)? as Count);
        Ok(())
    }
}
