//! Windows that come and go, and what programs ask of them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::{self, Layout, Part, Shared};
use super::{Memory, Owned, WINDOWS, WindowObject, get, register, unregister};
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
    shared: Option<Shared>,
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
    let handle = WINDOWS.insert(window.clone());
    window.handle.store(handle, Ordering::Release);
    win.check()?.set(Win(handle));
    Ok(())
}

fn create(buffer: Buffer, size: i64, unit: i64, given: Info, comm: Comm, win: Out<Win>) -> Result<()> {
    let memory = Memory {
        part: Part {
            start: buffer.address(),
            size: length_of(size)?,
            unit: unit_of(unit)?,
        },
        _owned: Owned::Nothing,
    };
    make(own(comm)?, memory, None, CREATE, given, win)
}

/// The sizes and units of the window's parts, of all ranks.
fn gather_parts(comm: &CommObject, size: usize, unit: usize) -> Result<Vec<(usize, usize)>> {
    let local = comm.local()?;
    let own = [(size as u64).to_ne_bytes(), (unit as u64).to_ne_bytes()].concat();
    let mut all = vec![0; own.len() * local.size() as usize];
    local.allgather(&own, &mut all)?;
    let words: Vec<usize> = all
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word) as usize)
        .collect();
    Ok(words.chunks_exact(2).map(|part| (part[0], part[1])).collect())
}

/// Whether all ranks run on this host.
fn is_on_one_host(comm: &CommObject) -> Result<bool> {
    let (control, local) = (comm.control()?, comm.local()?);
    let hosts = control.hosts_of_all();
    let mut all = local.members().iter().map(|member| hosts.get(*member as usize));
    let first = all.next().flatten();
    Ok(first.is_some() && all.all(|host| host == first))
}

/// A window in memory that all ranks share.
fn make_shared(
    comm: Arc<CommObject>,
    (shared, owned): (Shared, Owned),
    flavor: i32,
    given: Info,
    base: Out<usize>,
    win: Out<Win>,
) -> Result<()> {
    let part = shared.parts[comm.rank() as usize];
    base.set(part.start);
    let memory = Memory { part, _owned: owned };
    make(comm, memory, Some(shared), flavor, given, win)
}

fn no_memory(size: usize) -> Error {
    let text = format!("there is no memory for a window of {size} bytes");
    Error::new(class::NO_MEM, text)
}

fn allocate(size: i64, unit: i64, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) -> Result<()> {
    let (size, unit) = (length_of(size)?, unit_of(unit)?);
    base.check()?;
    let comm = own(comm)?;
    if is_on_one_host(&comm)? {
        let parts = gather_parts(&comm, size, unit)?;
        if let Some(mapped) = shared::map(&comm, &parts, Layout::Apart)? {
            return make_shared(comm, mapped, ALLOCATE, given, base, win);
        }
    }
    let mut words: Vec<u64> = Vec::new();
    let length = size.div_ceil(8).max(1);
    words.try_reserve_exact(length).map_err(|_| no_memory(size))?;
    words.resize(length, 0);
    let start = words.as_mut_ptr() as usize;
    let memory = Memory {
        part: Part { start, size, unit },
        _owned: Owned::Bytes { _memory: words },
    };
    base.set(start);
    make(comm, memory, None, ALLOCATE, given, win)
}

fn allocate_shared(size: i64, unit: i64, given: Info, comm: Comm, base: Out<usize>, win: Out<Win>) -> Result<()> {
    let (size, unit) = (length_of(size)?, unit_of(unit)?);
    base.check()?;
    let layout = match info::optional(given)?.and_then(|info| info.find("alloc_shared_noncontig")) {
        Some(value) if value == "true" => Layout::Apart,
        _ => Layout::Contiguous,
    };
    let comm = own(comm)?;
    let parts = gather_parts(&comm, size, unit)?;
    let mapped = shared::map(&comm, &parts, layout)?.ok_or_else(|| {
        let total: usize = parts.iter().map(|(size, _)| size).sum();
        let text =
            format!("the ranks have no memory of {total} bytes that all of them share: see /dev/shm on their hosts");
        Error::new(class::RMA_SHARED, text)
    })?;
    make_shared(comm, mapped, SHARED, given, base, win)
}

fn shared_part(win: Win, rank: c_int) -> Result<Part> {
    let window = get(win)?;
    let shared = window.shared.as_ref();
    let parts = &shared
        .ok_or_else(|| Error::new(class::RMA_FLAVOR, "the window is not shared memory"))?
        .parts;
    let found = match rank {
        PROC_NULL => parts.iter().find(|part| part.size > 0).or(parts.first()),
        rank => usize::try_from(rank).ok().and_then(|rank| parts.get(rank)),
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
        let part = Part { start: 0, size: 0, unit: 1 };
        let memory = Memory { part, _owned: Owned::Nothing };
        make(own(comm)?, memory, None, DYNAMIC, given, win)
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
