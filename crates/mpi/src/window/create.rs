//! Windows that come and go, and what programs ask of them.

use std::ffi::{c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Memory, Owned, SharedPart, WINDOWS, WindowObject, get, register, unregister};
use crate::attribute;
use crate::comm_create;
use crate::communicator::{self, CommObject};
use crate::errhandler;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{Aint, Comm, Errhandler, Group, Info, PROC_NULL, Win};
use crate::info;
use crate::interface::window::{ALLOCATE, CREATE, DYNAMIC, SHARED};
use crate::pointer::{Buffer, Out, Text, TextOut};

const MAX_OBJECT_NAME: usize = 128;
/// Parts of shared windows begin at multiples of this.
const PAGE: usize = 4096;

fn own(comm: Comm) -> Result<Arc<CommObject>> {
    let object = communicator::get_intra(comm)?;
    Ok(Arc::new(CommObject::new(
        Some(comm_create::duplicate_local(&object)?),
        object.handler(),
    )))
}

fn length_of(size: i64) -> Result<usize> {
    usize::try_from(size).map_err(|_| Error::new(class::SIZE, format!("a window cannot have {size} bytes")))
}

fn unit_of(unit: i64) -> Result<usize> {
    let found = usize::try_from(unit).ok().filter(|unit| *unit > 0);
    found.ok_or_else(|| Error::new(class::DISP, format!("the unit of displacements is {unit}")))
}

fn make(
    comm: Arc<CommObject>,
    memory: Memory,
    shared: Vec<SharedPart>,
    flavor: i32,
    given: Info,
    win: Out<Win>,
) -> Result<()> {
    let pairs = info::optional(given)?
        .map(|info| info.pairs().clone())
        .unwrap_or_default();
    let window = Arc::new(WindowObject::new(comm, memory, shared, flavor));
    *window.info.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = pairs;
    register(&window);
    // Nobody accesses a window before all ranks have it.
    window.barrier()?;
    win.check()?.set(Win(WINDOWS.insert(window)));
    Ok(())
}

fn create(buffer: Buffer, size: i64, unit: i64, given: Info, comm: Comm, win: Out<Win>) -> Result<()> {
    let memory = Memory {
        base: buffer.address(),
        size: length_of(size)?,
        unit: unit_of(unit)?,
        _owned: Owned::Nothing,
    };
    make(own(comm)?, memory, Vec::new(), CREATE, given, win)
}

fn allocate(size: i64, unit: i64, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) -> Result<()> {
    let size = length_of(size)?;
    let mut words: Vec<u64> = Vec::new();
    words.try_reserve_exact(size.div_ceil(8).max(1)).map_err(|_| {
        Error::new(
            class::NO_MEM,
            format!("there is no memory for a window of {size} bytes"),
        )
    })?;
    words.resize(size.div_ceil(8).max(1), 0);
    let start = words.as_mut_ptr() as usize;
    let memory = Memory {
        base: start,
        size,
        unit: unit_of(unit)?,
        _owned: Owned::Bytes { _memory: words },
    };
    base.check()?.set(start);
    make(own(comm)?, memory, Vec::new(), ALLOCATE, given, win)
}

/// Maps memory that all ranks share: a file in the system's memory file system, whose name goes at once.
fn map(comm: &CommObject, length: usize) -> Result<usize> {
    let local = comm.local()?;
    let mut key = [0; 16];
    if local.rank() == 0 {
        // SAFETY: the room is as long as it is said to be.
        unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    }
    local.bcast(&mut key, 0)?;
    let path = format!("/dev/shm/dayfly-mpi-{:032x}", u128::from_ne_bytes(key));
    let open = |creates: bool| -> Result<std::fs::File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(creates)
            .open(&path)?;
        if creates {
            file.set_len(length as u64)?;
        }
        Ok(file)
    };
    let first = (local.rank() == 0).then(|| open(true));
    local.barrier()?;
    let file = first.unwrap_or_else(|| open(false));
    local.barrier()?;
    if local.rank() == 0 {
        // Every rank has opened it, or will report that it cannot.
        let _ = std::fs::remove_file(&path);
    }
    let file = file?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match start == libc::MAP_FAILED {
        true => Err(std::io::Error::last_os_error().into()),
        false => Ok(start as usize),
    }
}

fn allocate_shared(size: i64, unit: i64, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) -> Result<()> {
    let (size, unit) = (length_of(size)?, unit_of(unit)?);
    let comm = own(comm)?;
    let local = comm.local()?;
    let mut all = vec![0; 16 * local.size() as usize];
    local.allgather(
        &[(size as u64).to_ne_bytes(), (unit as u64).to_ne_bytes()].concat(),
        &mut all,
    )?;
    let words: Vec<usize> = all
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word) as usize)
        .collect();
    let total: usize = words.chunks_exact(2).map(|part| part[0].next_multiple_of(64)).sum();
    let length = total.next_multiple_of(PAGE).max(PAGE);
    let start = map(&comm, length)?;
    let mut next = start;
    let part = |part: &[usize]| {
        let found = SharedPart {
            start: next,
            size: part[0],
            unit: part[1],
        };
        next += part[0].next_multiple_of(64);
        found
    };
    let parts: Vec<SharedPart> = words.chunks_exact(2).map(part).collect();
    let mine = parts[comm.rank() as usize];
    base.check()?.set(mine.start);
    let memory = Memory {
        base: mine.start,
        size,
        unit,
        _owned: Owned::Mapping { start, length },
    };
    make(comm, memory, parts, SHARED, given, win)
}

fn shared_part(win: Win, rank: c_int) -> Result<SharedPart> {
    let window = get(win)?;
    if window.shared.is_empty() {
        return Err(Error::new(class::RMA_FLAVOR, "the window is not shared memory"));
    }
    let found = match rank {
        PROC_NULL => window
            .shared
            .iter()
            .find(|part| part.size > 0)
            .or(window.shared.first()),
        rank => usize::try_from(rank).ok().and_then(|rank| window.shared.get(rank)),
    };
    found
        .copied()
        .ok_or_else(|| Error::new(class::RANK, format!("the window has no rank {rank}")))
}

mpi! {
    fn MPI_Win_create (buffer: Buffer, size: Aint, unit: c_int, given: Info, comm: Comm, win: Out<Win>) [comm] {
        create(buffer, size as i64, unit.into(), given, comm, win)
    }

    fn MPI_Win_create_c (buffer: Buffer, size: Aint, unit: Aint, given: Info, comm: Comm, win: Out<Win>) [comm] {
        create(buffer, size as i64, unit as i64, given, comm, win)
    }

    fn MPI_Win_allocate (size: Aint, unit: c_int, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) [comm] {
        allocate(size as i64, unit.into(), given, comm, base, win)
    }

    fn MPI_Win_allocate_c (size: Aint, unit: Aint, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) [comm] {
        allocate(size as i64, unit as i64, given, comm, base, win)
    }

    fn MPI_Win_allocate_shared (
        size: Aint, unit: c_int, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>
    ) [comm] {
        allocate_shared(size as i64, unit.into(), given, comm, base, win)
    }

    fn MPI_Win_allocate_shared_c (
        size: Aint, unit: Aint, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>
    ) [comm] {
        allocate_shared(size as i64, unit as i64, given, comm, base, win)
    }

    fn MPI_Win_shared_query (win: Win, rank: c_int, size: Out<Aint>, unit: Out<c_int>, base: Out<usize>) [win] {
        let part = shared_part(win, rank)?;
        size.set(part.size as Aint);
        unit.set(part.unit as c_int);
        base.set(part.start);
        Ok(())
    }

    fn MPI_Win_shared_query_c (win: Win, rank: c_int, size: Out<Aint>, unit: Out<Aint>, base: Out<usize>) [win] {
        let part = shared_part(win, rank)?;
        size.set(part.size as Aint);
        unit.set(part.unit as Aint);
        base.set(part.start);
        Ok(())
    }

    fn MPI_Win_create_dynamic (given: Info, comm: Comm, win: Out<Win>) [comm] {
        let memory = Memory { base: 0, size: 0, unit: 1, _owned: Owned::Nothing };
        make(own(comm)?, memory, Vec::new(), DYNAMIC, given, win)
    }

    fn MPI_Win_attach (win: Win, start: Buffer, size: Aint) [win] {
        let window = get(win)?;
        if window.flavor != DYNAMIC {
            return Err(Error::new(class::RMA_FLAVOR, "the window is not dynamic"));
        }
        window.state().attached.insert(start.address(), length_of(size as i64)?);
        Ok(())
    }

    fn MPI_Win_detach (win: Win, start: Buffer) [win] {
        match get(win)?.state().attached.remove(&start.address()) {
            Some(_) => Ok(()),
            None => Err(Error::new(class::RMA_ATTACH, "that memory is not attached")),
        }
    }

    fn MPI_Win_free (win: Out<Win>) [win.get().unwrap_or(Win::NULL)] {
        let handle = win.get()?;
        let window = get(handle)?;
        // The other ranks are in the barrier, whatever this rank's accesses gave.
        let flushed = window.flush(None);
        window.barrier()?;
        attribute::delete_all(&*window, handle.0)?;
        unregister(&window);
        // An error needs the window's error handler.
        flushed?;
        WINDOWS.remove(handle.0);
        win.set(Win::NULL);
        Ok(())
    }

    fn MPI_Win_get_group (win: Win, result: Out<Group>) [win] {
        let members: group::Members = get(win)?.comm.processes()?;
        result.check()?.set(group::make(members));
        Ok(())
    }

    fn MPI_Win_set_name (win: Win, name: Text) [win] {
        *get(win)?.name.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = name.get()?;
        Ok(())
    }

    fn MPI_Win_get_name (win: Win, name: TextOut, length: Out<c_int>) [win] {
        let found = match win {
            Win::NULL => "MPI_WIN_NULL".into(),
            win => get(win)?.name.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone(),
        };
        length.set(name.set(&found, MAX_OBJECT_NAME)?);
        Ok(())
    }

    fn MPI_Win_set_info (win: Win, given: Info) [win] {
        let pairs = info::get(given)?.pairs().clone();
        *get(win)?.info.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = pairs;
        Ok(())
    }

    fn MPI_Win_get_info (win: Win, result: Out<Info>) [win] {
        let pairs = get(win)?.info.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        result.check()?.set(info::make(pairs));
        Ok(())
    }

    fn MPI_Win_set_errhandler (win: Win, handler: Errhandler) [win] {
        let handler = errhandler::check(handler)?;
        get(win)?.handler.store(handler.0, Ordering::Release);
        Ok(())
    }

    fn MPI_Win_get_errhandler (win: Win, handler: Out<Errhandler>) [win] {
        let found = get(win)?.handler.load(Ordering::Acquire);
        handler.check()?.set(Errhandler(found));
        Ok(())
    }

    fn MPI_Win_call_errhandler (win: Win, code: c_int) [win] {
        get(win)?;
        errhandler::raise("MPI_Win_call_errhandler", win.into(), Error::new(code, ""));
        Ok(())
    }

    fn MPI_Alloc_mem (size: Aint, given: Info, base: Out<usize>) [()] {
        info::optional(given)?;
        let size = length_of(size as i64)?;
        // SAFETY: allocates, or returns NULL.
        let start = unsafe { libc::malloc(size.max(1)) };
        if start.is_null() {
            return Err(Error::new(class::NO_MEM, format!("there is no memory of {size} bytes")));
        }
        base.check()?.set(start as usize);
        Ok(())
    }

    fn MPI_Free_mem (base: Buffer) [()] {
        // SAFETY: the program passes what `MPI_Alloc_mem` gave it.
        unsafe { libc::free(base.start().cast::<c_void>()) };
        Ok(())
    }
}
