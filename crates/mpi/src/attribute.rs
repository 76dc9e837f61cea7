//! Attributes: values that programs attach to communicators, datatypes and windows.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::communicator;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Datatype, Keyval, Table, Win};
use crate::interface::{self, Number, key as keys};
use crate::pointer::{Buffer, Out};

/// A program's function that copies an attribute to a duplicate.
pub type CopyFunction = extern "C" fn(Number, Keyval, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// A program's function that is called when an attribute goes.
pub type DeleteFunction = extern "C" fn(Number, Keyval, *mut c_void, *mut c_void) -> c_int;

/// A key of attributes.
pub struct KeyObject {
    copy: Option<CopyFunction>,
    delete: Option<DeleteFunction>,
    state: AtomicUsize,
    freed: AtomicBool,
}

static KEYS: Table<KeyObject> = Table::new(9);

/// The attributes of one object, in the order in which they were set.
#[derive(Default)]
pub struct Attributes(Mutex<Vec<(Keyval, Arc<KeyObject>, usize)>>);

/// An object with attributes.
pub trait Holder {
    fn attributes(&self) -> &Attributes;
}

impl Attributes {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<(Keyval, Arc<KeyObject>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: Keyval) -> Option<usize> {
        self.all().iter().find(|(of, ..)| *of == key).map(|(.., value)| *value)
    }

    fn remove(&self, handle: Number, key: Keyval) -> Result<bool> {
        let found = self.all().iter().find(|(of, ..)| *of == key).cloned();
        let Some((_, object, value)) = found else {
            return Ok(false);
        };
        if let Some(delete) = object.delete {
            let state = object.state.load(Ordering::Acquire) as *mut c_void;
            // SAFETY is the program's: its own function, with its own values.
            let code = delete(handle, key, value as *mut c_void, state);
            if code != 0 {
                return Err(Error::new(code, ""));
            }
        }
        self.all().retain(|(of, ..)| *of != key);
        Ok(true)
    }

    /// Sets an attribute; the function of an earlier value is called.
    fn set(&self, handle: Number, key: Keyval, value: usize) -> Result<()> {
        let object = key_object(key)?;
        self.remove(handle, key)?;
        self.all().push((key, object, value));
        Ok(())
    }

    /// The attributes for a duplicate of an object.
    pub fn duplicate(&self, handle: Number) -> Result<Self> {
        let all = self.all().clone();
        let mut copies = Vec::new();
        for (key, object, value) in all {
            let Some(copy) = object.copy else {
                continue;
            };
            let (mut copied, mut flag) = (0usize, 0);
            let state = object.state.load(Ordering::Acquire) as *mut c_void;
            let code = copy(
                handle,
                key,
                state,
                value as *mut c_void,
                (&raw mut copied).cast(),
                &raw mut flag,
            );
            if code != 0 {
                return Err(Error::new(code, ""));
            }
            if flag != 0 {
                copies.push((key, object, copied));
            }
        }
        Ok(Self(Mutex::new(copies)))
    }
}

/// Removes all attributes of an object that ends, the last one first.
pub fn delete_all(holder: &impl Holder, handle: impl Into<Number>) -> Result<()> {
    let handle = handle.into();
    loop {
        let last = holder.attributes().all().last().map(|(key, ..)| *key);
        match last {
            Some(key) => holder.attributes().remove(handle, key)?,
            None => return Ok(()),
        };
    }
}

impl From<Comm> for Number {
    fn from(comm: Comm) -> Self {
        comm.0
    }
}

impl From<Datatype> for Number {
    fn from(datatype: Datatype) -> Self {
        datatype.0
    }
}

fn key_object(key: Keyval) -> Result<Arc<KeyObject>> {
    KEYS.get(key.0 as Number)
        .filter(|object| !object.freed.load(Ordering::Acquire))
        .ok_or_else(|| Error::new(class::KEYVAL, "the key of the attribute is invalid"))
}

pub fn create(
    copy: Option<CopyFunction>,
    delete: Option<DeleteFunction>,
    key: Out<Keyval>,
    state: Buffer,
) -> Result<()> {
    let is_dup = |function: &CopyFunction| Some(*function as usize) == interface::DUP_FUNCTION;
    let object = KeyObject {
        copy: if copy.as_ref().is_some_and(is_dup) {
            Some(dup_function)
        } else {
            copy
        },
        delete,
        state: AtomicUsize::new(state.address()),
        freed: AtomicBool::new(false),
    };
    key.check()?.set(Keyval(KEYS.insert(Arc::new(object)) as c_int));
    Ok(())
}

pub fn free(key: Out<Keyval>) -> Result<()> {
    // Attributes that exist keep the key; its number is not used again.
    key_object(key.get()?)?.freed.store(true, Ordering::Release);
    key.set(Keyval::NULL);
    Ok(())
}

fn get(holder: &impl Holder, key: Keyval, value: Out<usize>, flag: Out<c_int>) -> Result<()> {
    let found = holder.attributes().get(key);
    if found.is_none() {
        KEYS.get(key.0 as Number)
            .ok_or_else(|| Error::new(class::KEYVAL, "the key of the attribute is invalid"))?;
    }
    flag.set(found.is_some().into());
    if let Some(found) = found {
        value.set(found);
    }
    Ok(())
}

fn delete(holder: &impl Holder, handle: impl Into<Number>, key: Keyval) -> Result<()> {
    match holder.attributes().remove(handle.into(), key)? {
        true => Ok(()),
        false => Err(Error::new(class::KEYVAL, "the object has no such attribute")),
    }
}

/// Values of the predefined attributes, to whose addresses programs get pointers.
struct Predefined {
    tag_ub: c_int,
    host: c_int,
    io: c_int,
    wtime_is_global: c_int,
    last_used_code: AtomicUsize,
    appnum: c_int,
}

/// Value of `MPI_UNIVERSE_SIZE`: the number of processes that are useful at a time.
static UNIVERSE_SIZE: AtomicI32 = AtomicI32::new(1);

/// Sets `MPI_UNIVERSE_SIZE`: the number of ranks of the world, or that of this host's cores if there are more, since
/// spawned processes run beside their root.
pub fn set_universe_size(size: u32) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    UNIVERSE_SIZE.store((size as usize).max(cores) as c_int, Ordering::Release);
}

/// The greatest tag.
pub const MAX_TAG: c_int = i32::MAX;

fn predefined(key: Keyval) -> Option<usize> {
    static VALUES: OnceLock<Predefined> = OnceLock::new();
    let values = VALUES.get_or_init(|| Predefined {
        tag_ub: MAX_TAG,
        host: crate::handle::PROC_NULL,
        io: crate::handle::ANY_SOURCE,
        wtime_is_global: 0,
        last_used_code: AtomicUsize::new(0),
        appnum: crate::dynamic::appnum(),
    });
    let address = |value: &c_int| std::ptr::from_ref(value) as usize;
    Some(match key.0 {
        keys::TAG_UB => address(&values.tag_ub),
        keys::HOST => address(&values.host),
        keys::IO => address(&values.io),
        keys::WTIME_IS_GLOBAL => address(&values.wtime_is_global),
        keys::UNIVERSE_SIZE => UNIVERSE_SIZE.as_ptr() as usize,
        keys::LAST_USED_CODE => {
            let last = crate::error::last_used_code() as usize;
            values.last_used_code.store(last, Ordering::Release);
            std::ptr::from_ref(&values.last_used_code) as usize
        }
        keys::APPNUM => address(&values.appnum),
        _ => return None,
    })
}

pub fn set_of_comm(comm: Comm, key: Keyval, value: Buffer) -> Result<()> {
    communicator::get(comm)?.attributes().set(comm.0, key, value.address())
}

pub fn get_of_comm(comm: Comm, key: Keyval, value: Out<usize>, flag: Out<c_int>) -> Result<()> {
    let object = communicator::get(comm)?;
    match predefined(key) {
        Some(address) => {
            value.set(address);
            flag.set(1);
            Ok(())
        }
        None => get(&*object, key, value, flag),
    }
}

pub fn delete_of_comm(comm: Comm, key: Keyval) -> Result<()> {
    delete(&*communicator::get(comm)?, comm, key)
}

mpi! {
    fn MPI_Comm_create_keyval(
        copy: Option<CopyFunction>, delete: Option<DeleteFunction>, key: Out<Keyval>, state: Buffer
    ) [()] {
        create(copy, delete, key, state)
    }

    fn MPI_Comm_free_keyval(key: Out<Keyval>) [()] {
        free(key)
    }

    fn MPI_Comm_set_attr(comm: Comm, key: Keyval, value: Buffer) [comm] {
        set_of_comm(comm, key, value)
    }

    fn MPI_Comm_get_attr(comm: Comm, key: Keyval, value: Out<usize>, flag: Out<c_int>) [comm] {
        get_of_comm(comm, key, value, flag)
    }

    fn MPI_Comm_delete_attr(comm: Comm, key: Keyval) [comm] {
        delete_of_comm(comm, key)
    }

    fn MPI_Type_create_keyval(
        copy: Option<CopyFunction>, delete: Option<DeleteFunction>, key: Out<Keyval>, state: Buffer
    ) [()] {
        create(copy, delete, key, state)
    }

    fn MPI_Type_free_keyval(key: Out<Keyval>) [()] {
        free(key)
    }

    fn MPI_Type_set_attr(datatype: Datatype, key: Keyval, value: Buffer) [()] {
        crate::datatype::get(datatype)?.attributes().set(datatype.0, key, value.address())
    }

    fn MPI_Type_get_attr(datatype: Datatype, key: Keyval, value: Out<usize>, flag: Out<c_int>) [()] {
        get(&*crate::datatype::get(datatype)?, key, value, flag)
    }

    fn MPI_Type_delete_attr(datatype: Datatype, key: Keyval) [()] {
        delete(&*crate::datatype::get(datatype)?, datatype, key)
    }

    fn MPI_Win_set_attr(win: Win, key: Keyval, value: Buffer) [win] {
        crate::window::get(win)?.attributes().set(win.0, key, value.address())
    }

    fn MPI_Win_get_attr(win: Win, key: Keyval, value: Out<usize>, flag: Out<c_int>) [win] {
        let window = crate::window::get(win)?;
        let found = match key.0 {
            keys::WIN_BASE => window.memory.part.start,
            keys::WIN_SIZE => std::ptr::from_ref(&window.values[0]) as usize,
            keys::WIN_DISP_UNIT => std::ptr::from_ref(&window.values[1]) as usize,
            keys::WIN_CREATE_FLAVOR => std::ptr::from_ref(&window.values[2]) as usize,
            keys::WIN_MODEL => std::ptr::from_ref(&window.values[3]) as usize,
            _ => return get(&*window, key, value, flag),
        };
        value.set(found);
        flag.set(1);
        Ok(())
    }

    fn MPI_Win_delete_attr(win: Win, key: Keyval) [win] {
        delete(&*crate::window::get(win)?, win.0, key)
    }

    fn MPI_Win_create_keyval(
        copy: Option<CopyFunction>, delete: Option<DeleteFunction>, key: Out<Keyval>, state: Buffer
    ) [()] {
        create(copy, delete, key, state)
    }

    fn MPI_Win_free_keyval(key: Out<Keyval>) [()] {
        free(key)
    }
}

/// Copies a value as it is. `MPI_DUP_FN` and its relatives are this symbol in MPICH.
#[cfg_attr(face = "mpich", unsafe(export_name = "MPIR_Dup_fn"))]
extern "C" fn dup_function(
    _handle: Number,
    _key: Keyval,
    _state: *mut c_void,
    value: *mut c_void,
    copied: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    Out::at(copied.cast::<usize>()).set(value as usize);
    Out::at(flag).set(1);
    0
}
