//! Reading and writing: at a place, at the rank's own pointer, and at the shared one.

use std::sync::Arc;

use super::{FileObject, View, agreed, get, lock};
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Count, Datatype, File, Offset, Request};
use crate::interface::file::{READ_ONLY, WRITE_ONLY};
use crate::point::Data;
use crate::pointer::{Buffer, Out};
use crate::request::{Active, make};
use crate::status::{Completion, StatusOut};

/// Where a transfer begins.
#[derive(Clone, Copy)]
enum Place {
    At(Offset),
    Own,
    Shared,
    /// At the shared pointer, in the order of the ranks.
    Ordered,
}

/// Elements of the view that a transfer of all bytes takes.
fn elements(file: &FileObject, bytes: usize) -> Offset {
    (bytes / lock(&file.view).element.size.max(1)) as Offset
}

/// The first element of a transfer; pointers move to its end.
fn first(file: &FileObject, place: Place, count: Offset) -> Result<Offset> {
    match place {
        Place::At(offset) if offset < 0 => Err(Error::new(class::ARG, "the offset is negative")),
        Place::At(offset) => Ok(offset),
        Place::Own => {
            let mut position = lock(&file.position);
            let start = *position;
            *position += count;
            Ok(start)
        }
        Place::Shared => file.shared.change(|start| start + count),
        Place::Ordered => {
            let local = file.comm.local()?;
            let mut all = vec![0; 8 * local.size() as usize];
            local.allgather(&count.to_ne_bytes(), &mut all)?;
            let counts: Vec<Offset> = all
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| Offset::from_ne_bytes(*word))
                .collect();
            let total = counts.iter().sum::<Offset>();
            let moved = match local.rank() {
                0 => file.shared.change(|start| start + total),
                _ => Ok(0),
            };
            let mut start = agreed(&file.comm, moved)?.to_ne_bytes();
            local.bcast(&mut start, 0)?;
            Ok(Offset::from_ne_bytes(start) + counts[..local.rank() as usize].iter().sum::<Offset>())
        }
    }
}

/// The datatype, the count and the bytes of a transfer that is allowed.
fn checked(file: &FileObject, view: &View, data: &Data, writes: bool) -> Result<(Arc<TypeObject>, usize, usize)> {
    let (of, count) = data.check()?;
    if (writes && file.mode & READ_ONLY != 0) || (!writes && file.mode & WRITE_ONLY != 0) {
        let what = if writes { "written" } else { "read" };
        return Err(Error::new(
            if writes { class::READ_ONLY } else { class::ACCESS },
            format!("the file was not opened to be {what}"),
        ));
    }
    let length = of.bytes(count)?;
    if !length.is_multiple_of(view.element.size.max(1)) {
        return Err(Error::new(
            class::TYPE,
            "the data is not made of whole elements of the view",
        ));
    }
    Ok((of, count, length))
}

fn transfer(file: File, place: Place, data: Data, writes: bool) -> Result<Completion> {
    let file = get(file)?;
    let view = file.view();
    let mut allowed = checked(&file, &view, &data, writes);
    if let Place::Ordered = place {
        // Each rank waits for the counts of the others.
        allowed = agreed(&file.comm, allowed);
    }
    let (of, count, length) = allowed?;
    let start = first(&file, place, elements(&file, length))? as u64 * view.element.size as u64;
    let _others_wait = file.exclude_others(&view, start, length, writes)?;
    let mut packed;
    let bytes = match (of.dense, writes) {
        (true, true) => {
            file.write(&view, start, data.buffer.offset(of.true_lower).bytes(length))?;
            length
        }
        (true, false) => file.read(&view, start, data.buffer.offset(of.true_lower).bytes_mut(length))?,
        (false, true) => {
            packed = vec![0; length];
            of.pack(data.buffer, count, &mut packed);
            file.write(&view, start, &packed)?;
            length
        }
        (false, false) => {
            packed = vec![0; length];
            let read = file.read(&view, start, &mut packed)?;
            of.unpack(&packed[..read], data.buffer, count)
        }
    };
    Ok(Completion {
        bytes: bytes as u64,
        ..Completion::empty()
    })
}

fn begin(file: File, place: Place, data: Data, writes: bool) -> Result<()> {
    let object = get(file)?;
    if lock(&object.begun).is_some() {
        return Err(Error::new(class::OTHER, "a split collective of the file has not ended"));
    }
    let done = transfer(file, place, data, writes)?;
    *lock(&object.begun) = Some(done);
    Ok(())
}

fn end(file: File, status: StatusOut) -> Result<()> {
    let begun = lock(&get(file)?.begun).take();
    status.set(&begun.ok_or_else(|| Error::new(class::OTHER, "no split collective of the file has begun"))?);
    Ok(())
}

macro_rules! at_a_place {
    ($($name:ident $name_c:ident $writes:literal)*) => { mpi! { $(
        fn $name / $name_c (
            file: File, offset: Offset, buffer: Buffer, count: N, datatype: Datatype, status: StatusOut
        ) [file] {
            let data = Data { buffer, count: count as Count, datatype };
            status.set(&transfer(file, Place::At(offset), data, $writes)?);
            Ok(())
        }
    )* } };
}

macro_rules! at_a_place_later {
    ($($name:ident $name_c:ident $writes:literal)*) => { mpi! { $(
        fn $name / $name_c (
            file: File, offset: Offset, buffer: Buffer, count: N, datatype: Datatype, request: Out<Request>
        ) [file] {
            let data = Data { buffer, count: count as Count, datatype };
            request.check()?.set(make(Active::Over(transfer(file, Place::At(offset), data, $writes)?)));
            Ok(())
        }
    )* } };
}

macro_rules! at_a_pointer {
    ($($name:ident $name_c:ident $place:ident $writes:literal)*) => { mpi! { $(
        fn $name / $name_c (file: File, buffer: Buffer, count: N, datatype: Datatype, status: StatusOut) [file] {
            let data = Data { buffer, count: count as Count, datatype };
            status.set(&transfer(file, Place::$place, data, $writes)?);
            Ok(())
        }
    )* } };
}

macro_rules! at_a_pointer_later {
    ($($name:ident $name_c:ident $place:ident $writes:literal)*) => { mpi! { $(
        fn $name / $name_c (file: File, buffer: Buffer, count: N, datatype: Datatype, request: Out<Request>) [file] {
            let data = Data { buffer, count: count as Count, datatype };
            request.check()?.set(make(Active::Over(transfer(file, Place::$place, data, $writes)?)));
            Ok(())
        }
    )* } };
}

macro_rules! split {
    ($($begin:ident $begin_c:ident $end:ident $place:ident $writes:literal)*) => { mpi! { $(
        fn $begin / $begin_c (file: File, buffer: Buffer, count: N, datatype: Datatype) [file] {
            begin(file, Place::$place, Data { buffer, count: count as Count, datatype }, $writes)
        }

        fn $end (file: File, _buffer: Buffer, status: StatusOut) [file] {
            end(file, status)
        }
    )* } };
}

at_a_place! {
    MPI_File_read_at MPI_File_read_at_c false
    MPI_File_write_at MPI_File_write_at_c true
    MPI_File_read_at_all MPI_File_read_at_all_c false
    MPI_File_write_at_all MPI_File_write_at_all_c true
}

at_a_place_later! {
    MPI_File_iread_at MPI_File_iread_at_c false
    MPI_File_iwrite_at MPI_File_iwrite_at_c true
    MPI_File_iread_at_all MPI_File_iread_at_all_c false
    MPI_File_iwrite_at_all MPI_File_iwrite_at_all_c true
}

at_a_pointer! {
    MPI_File_read MPI_File_read_c Own false
    MPI_File_write MPI_File_write_c Own true
    MPI_File_read_all MPI_File_read_all_c Own false
    MPI_File_write_all MPI_File_write_all_c Own true
    MPI_File_read_shared MPI_File_read_shared_c Shared false
    MPI_File_write_shared MPI_File_write_shared_c Shared true
    MPI_File_read_ordered MPI_File_read_ordered_c Ordered false
    MPI_File_write_ordered MPI_File_write_ordered_c Ordered true
}

at_a_pointer_later! {
    MPI_File_iread MPI_File_iread_c Own false
    MPI_File_iwrite MPI_File_iwrite_c Own true
    MPI_File_iread_all MPI_File_iread_all_c Own false
    MPI_File_iwrite_all MPI_File_iwrite_all_c Own true
    MPI_File_iread_shared MPI_File_iread_shared_c Shared false
    MPI_File_iwrite_shared MPI_File_iwrite_shared_c Shared true
}

split! {
    MPI_File_read_all_begin MPI_File_read_all_begin_c MPI_File_read_all_end Own false
    MPI_File_write_all_begin MPI_File_write_all_begin_c MPI_File_write_all_end Own true
    MPI_File_read_ordered_begin MPI_File_read_ordered_begin_c MPI_File_read_ordered_end Ordered false
    MPI_File_write_ordered_begin MPI_File_write_ordered_begin_c MPI_File_write_ordered_end Ordered true
}

mpi! {
    fn MPI_File_read_at_all_begin / MPI_File_read_at_all_begin_c (
        file: File, offset: Offset, buffer: Buffer, count: N, datatype: Datatype
    ) [file] {
        begin(file, Place::At(offset), Data { buffer, count: count as Count, datatype }, false)
    }

    fn MPI_File_read_at_all_end (file: File, _buffer: Buffer, status: StatusOut) [file] {
        end(file, status)
    }

    fn MPI_File_write_at_all_begin / MPI_File_write_at_all_begin_c (
        file: File, offset: Offset, buffer: Buffer, count: N, datatype: Datatype
    ) [file] {
        begin(file, Place::At(offset), Data { buffer, count: count as Count, datatype }, true)
    }

    fn MPI_File_write_at_all_end (file: File, _buffer: Buffer, status: StatusOut) [file] {
        end(file, status)
    }
}
