//! Opening and closing, views, sizes and positions.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::shared::SharedPointer;
use super::{FILES, FileObject, View, agreed, get, lock, number_of};
use crate::communicator::{self, CommObject};
use crate::datatype;
use crate::errhandler::{self, FILE_HANDLER};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{Aint, Comm, Count, Datatype, Errhandler, File, Group, Info, Offset};
use crate::info;
use crate::interface::{AtomicNumber, file as mode};
use crate::pointer::{Buffer, Out, Text, TextOut};

const MAX_REPRESENTATION: usize = 128;

fn check_mode(given: c_int) -> Result<()> {
    let has = |flag| given & flag != 0;
    let accesses = [mode::READ_ONLY, mode::WRITE_ONLY, mode::READ_WRITE];
    let wrong = accesses.iter().filter(|flag| has(**flag)).count() != 1
        || (has(mode::READ_ONLY) && (has(mode::CREATE) || has(mode::EXCLUSIVE)))
        || (has(mode::READ_WRITE) && has(mode::SEQUENTIAL));
    match wrong {
        true => Err(Error::new(
            class::AMODE,
            format!("the access mode {given} contradicts itself"),
        )),
        false => Ok(()),
    }
}

fn open_here(name: &str, given: c_int, creates: bool) -> Result<std::fs::File> {
    let has = |flag| given & flag != 0;
    let mut options = OpenOptions::new();
    options.read(!has(mode::WRITE_ONLY)).write(!has(mode::READ_ONLY));
    if creates && has(mode::CREATE) {
        match has(mode::EXCLUSIVE) {
            true => options.create_new(true),
            false => options.create(true),
        };
    }
    Ok(options.open(name)?)
}

/// Tells all ranks a number of the first one.
fn told(comm: &CommObject, number: u64) -> Result<u64> {
    let mut word = number.to_ne_bytes();
    comm.local()?.bcast(&mut word, 0)?;
    Ok(u64::from_ne_bytes(word))
}

/// What a rank has opened, and its first position.
struct Opened {
    file: std::fs::File,
    position: Offset,
    pairs: Vec<(String, String)>,
}

/// Opens the file on this rank. The first rank creates it, before the others open it.
fn opened(name: &str, given: c_int, creates: bool, given_info: Info) -> Result<Opened> {
    let pairs = info::optional(given_info)?.map(|info| info.pairs().clone());
    let file = open_here(name, given, creates)?;
    let position = match given & mode::APPEND {
        0 => 0,
        _ => file.metadata()?.len() as Offset,
    };
    Ok(Opened {
        file,
        position,
        pairs: pairs.unwrap_or_default(),
    })
}

fn open(comm: Comm, name: Text, given: c_int, given_info: Info, handle: Out<File>) -> Result<()> {
    let object = communicator::get_intra(comm)?;
    let own = Arc::new(CommObject::new(Some(object.local()?.dup()?), object.handler()));
    let name = agreed(&own, check_mode(given).and_then(|()| name.get()))?;
    let name = name
        .strip_prefix("file:")
        .or(name.strip_prefix("ufs:"))
        .unwrap_or(&name)
        .to_owned();
    // The first rank creates the file, so that only one does.
    let first = match own.rank() {
        0 => opened(&name, given, true, given_info).map(Some),
        _ => Ok(None),
    };
    let file = match agreed(&own, first)? {
        Some(file) => Ok(file),
        None => opened(&name, given, false, given_info),
    };
    let Opened { file, position, pairs } = agreed(&own, file)?;
    let mut random = [0; 8];
    // SAFETY: the room is as long as it is said to be. Without random bytes the key is zero, which is a key too.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    let key = told(&own, u64::from_ne_bytes(random))?;
    let opened = FileObject {
        shared: SharedPointer::new(&name, key),
        file,
        comm: own,
        mode: given,
        name,
        info: Mutex::new(pairs),
        view: Mutex::new(View::bytes(datatype::get(datatype::named("MPI_BYTE")?)?)),
        position: Mutex::new(position),
        is_atomic: AtomicBool::new(false),
        transfer: Mutex::default(),
        handler: AtomicNumber::new(FILE_HANDLER.load(Ordering::Acquire)),
        begun: Mutex::new(None),
    };
    let moved = match position > 0 && opened.comm.rank() == 0 {
        true => opened.shared.change(|_| position).map(|_| ()),
        false => Ok(()),
    };
    agreed(&opened.comm, moved)?;
    handle
        .check()?
        .set(File(FILES.insert(Arc::new(opened)) as u32 as usize));
    Ok(())
}

/// An offset by the rules of seeking, in elements of the view.
fn sought(file: &FileObject, offset: Offset, from: c_int, current: Offset) -> Result<Offset> {
    let base = match from {
        mode::SEEK_SET => 0,
        mode::SEEK_CUR => current,
        mode::SEEK_END => {
            let view = file.view();
            let bytes = view.bytes_within(file.file.metadata()?.len());
            (bytes / view.element.size.max(1) as u64) as Offset
        }
        _ => return Err(Error::new(class::ARG, "the origin of a seek is none of MPI's")),
    };
    let place = base + offset;
    match place < 0 {
        true => Err(Error::new(class::ARG, "a seek goes before the start of the view")),
        false => Ok(place),
    }
}

/// Checks a view, whose displacement may be the current one.
fn checked_view(
    file: &FileObject,
    start: Offset,
    [element, pattern]: [Datatype; 2],
    representation: Text,
    given: Info,
) -> Result<View> {
    info::optional(given)?;
    let representation = representation.get()?;
    let (element, pattern) = (datatype::get(element)?, datatype::get(pattern)?);
    if !matches!(&*representation, "native" | "internal") {
        return Err(Error::new(
            class::UNSUPPORTED_DATAREP,
            format!("the representation {representation} is not supported"),
        ));
    }
    let start = if start == mode::DISPLACEMENT_CURRENT {
        lock(&file.view).start
    } else {
        start
    };
    if start < 0 || element.size == 0 || !pattern.size.is_multiple_of(element.size) {
        return Err(Error::new(
            class::ARG,
            "the view begins before the file, or is not made of its elements",
        ));
    }
    Ok(View {
        start,
        element,
        pattern,
        representation,
    })
}

fn set_view(file: &FileObject, view: Result<View>) -> Result<()> {
    *lock(&file.view) = agreed(&file.comm, view)?;
    *lock(&file.position) = 0;
    if file.comm.rank() == 0 && (file.mode & mode::READ_ONLY == 0) {
        file.shared.remove();
    }
    file.comm.local()?.barrier()?;
    Ok(())
}

/// Has the first rank do something after all ranks have called it. Returns its outcome on all ranks, when it is done.
fn by_first(file: &FileObject, action: impl FnOnce() -> Result<()>) -> Result<()> {
    file.comm.local()?.barrier()?;
    let outcome = match file.comm.rank() {
        0 => action(),
        _ => Ok(()),
    };
    agreed(&file.comm, outcome)
}

/// Makes a file that is shorter than this longer.
fn grow(file: &FileObject, size: u64) -> Result<()> {
    if file.file.metadata()?.len() < size {
        file.file.set_len(size)?;
    }
    Ok(())
}

fn sync(file: &FileObject) -> Result<()> {
    // SAFETY: the descriptor is open.
    if file.mode & mode::READ_ONLY == 0 && unsafe { libc::fsync(file.file.as_raw_fd()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}

/// Names of the data representations of programs. Views refuse them: they would need to be converted.
static REPRESENTATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn register(name: String) -> Result<()> {
    let mut names = lock(&REPRESENTATIONS);
    if names.contains(&name) || matches!(name.as_str(), "native" | "internal" | "external32") {
        return Err(Error::new(
            class::DUP_DATAREP,
            format!("a representation {name} exists"),
        ));
    }
    names.push(name);
    Ok(())
}

fn size_of_file(size: Offset) -> Result<u64> {
    u64::try_from(size).map_err(|_| Error::new(class::ARG, format!("a file cannot have {size} bytes")))
}

mpi! {
    fn MPI_File_open (comm: Comm, name: Text, given: c_int, given_info: Info, handle: Out<File>) [File::NULL] {
        open(comm, name, given, given_info, handle)
    }

    fn MPI_File_close (handle: Out<File>) [File::NULL] {
        let file = handle.get()?;
        let object = get(file)?;
        let closed = by_first(&object, || {
            object.shared.remove();
            match object.mode & mode::DELETE_ON_CLOSE {
                0 => Ok(()),
                _ => Ok(std::fs::remove_file(&object.name)?),
            }
        });
        FILES.remove(number_of(file));
        handle.set(File::NULL);
        closed
    }

    fn MPI_Register_datarep (
        name: Text, _read: Buffer, _write: Buffer, _extent: Buffer, _state: Buffer
    ) [File::NULL] {
        register(name.get()?)
    }

    fn MPI_Register_datarep_c (
        name: Text, _read: Buffer, _write: Buffer, _extent: Buffer, _state: Buffer
    ) [File::NULL] {
        register(name.get()?)
    }

    fn MPI_File_delete (name: Text, _info: Info) [File::NULL] {
        Ok(std::fs::remove_file(name.get()?)?)
    }

    fn MPI_File_set_size (file: File, size: Offset) [file] {
        let object = get(file)?;
        by_first(&object, || Ok(object.file.set_len(size_of_file(size)?)?))
    }

    fn MPI_File_preallocate (file: File, size: Offset) [file] {
        let object = get(file)?;
        by_first(&object, || grow(&object, size_of_file(size)?))
    }

    fn MPI_File_get_size (file: File, size: Out<Offset>) [file] {
        size.check()?.set(get(file)?.file.metadata()?.len() as Offset);
        Ok(())
    }

    fn MPI_File_get_group (file: File, result: Out<Group>) [file] {
        let members: group::Members = get(file)?.comm.processes()?;
        result.check()?.set(group::make(members));
        Ok(())
    }

    fn MPI_File_get_amode (file: File, mode: Out<c_int>) [file] {
        mode.check()?.set(get(file)?.mode);
        Ok(())
    }

    fn MPI_File_set_info (file: File, given: Info) [file] {
        let pairs = info::get(given)?.pairs().clone();
        *lock(&get(file)?.info) = pairs;
        Ok(())
    }

    fn MPI_File_get_info (file: File, result: Out<Info>) [file] {
        let pairs = lock(&get(file)?.info).clone();
        result.check()?.set(info::make(pairs));
        Ok(())
    }

    fn MPI_File_set_view (
        file: File, start: Offset, element: Datatype, pattern: Datatype, representation: Text, given: Info
    ) [file] {
        let object = get(file)?;
        set_view(&object, checked_view(&object, start, [element, pattern], representation, given))
    }

    fn MPI_File_get_view (
        file: File, start: Out<Offset>, element: Out<Datatype>, pattern: Out<Datatype>, representation: TextOut
    ) [file] {
        let view = get(file)?.view();
        start.set(view.start);
        element.set(datatype::handle_of(&view.element));
        pattern.set(datatype::handle_of(&view.pattern));
        representation.set(&view.representation, MAX_REPRESENTATION)?;
        Ok(())
    }

    fn MPI_File_seek (file: File, offset: Offset, from: c_int) [file] {
        let object = get(file)?;
        let current = *lock(&object.position);
        let place = sought(&object, offset, from, current)?;
        *lock(&object.position) = place;
        Ok(())
    }

    fn MPI_File_get_position (file: File, offset: Out<Offset>) [file] {
        offset.check()?.set(*lock(&get(file)?.position));
        Ok(())
    }

    fn MPI_File_seek_shared (file: File, offset: Offset, from: c_int) [file] {
        let object = get(file)?;
        by_first(&object, || {
            let mut outcome = Ok(());
            object.shared.change(|current| match sought(&object, offset, from, current) {
                Ok(place) => place,
                Err(error) => {
                    outcome = Err(error);
                    current
                }
            })?;
            outcome
        })
    }

    fn MPI_File_get_position_shared (file: File, offset: Out<Offset>) [file] {
        offset.check()?.set(get(file)?.shared.change(|current| current)?);
        Ok(())
    }

    fn MPI_File_get_byte_offset (file: File, offset: Offset, place: Out<Offset>) [file] {
        let view = get(file)?.view();
        let first = u64::try_from(offset).map_err(|_| Error::new(class::ARG, "the offset is negative"))?;
        place.check()?.set(view.place(first * view.element.size as u64)? as Offset);
        Ok(())
    }

    fn MPI_File_get_type_extent (file: File, of: Datatype, extent: Out<Aint>) [file] {
        get(file)?;
        extent.check()?.set(datatype::get(of)?.extent);
        Ok(())
    }

    fn MPI_File_get_type_extent_c (file: File, of: Datatype, extent: Out<Count>) [file] {
        get(file)?;
        extent.check()?.set(datatype::get(of)?.extent as Count);
        Ok(())
    }

    fn MPI_File_set_atomicity (file: File, flag: c_int) [file] {
        let object = get(file)?;
        object.is_atomic.store(flag != 0, Ordering::Release);
        object.comm.local()?.barrier()?;
        Ok(())
    }

    fn MPI_File_get_atomicity (file: File, flag: Out<c_int>) [file] {
        flag.check()?.set(get(file)?.is_atomic.load(Ordering::Acquire).into());
        Ok(())
    }

    fn MPI_File_sync (file: File) [file] {
        let object = get(file)?;
        agreed(&object.comm, sync(&object))
    }

    fn MPI_File_set_errhandler (file: File, handler: Errhandler) [file] {
        let handler = errhandler::check(handler)?;
        match file {
            File::NULL => FILE_HANDLER.store(handler.0, Ordering::Release),
            _ => get(file)?.handler.store(handler.0, Ordering::Release),
        }
        Ok(())
    }

    fn MPI_File_get_errhandler (file: File, handler: Out<Errhandler>) [file] {
        let found = match file {
            File::NULL => FILE_HANDLER.load(Ordering::Acquire),
            _ => get(file)?.handler.load(Ordering::Acquire),
        };
        handler.check()?.set(Errhandler(found));
        Ok(())
    }

    fn MPI_File_call_errhandler (file: File, code: c_int) [file] {
        errhandler::raise("MPI_File_call_errhandler", file.into(), Error::new(code, ""));
        Ok(())
    }
}
