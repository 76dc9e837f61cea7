//! Handles with MPICH's values, and the tables of objects behind them.
//!
//! The two highest bits of a handle say whether its object is predefined (1) or made at run time (2), the next four what
//! it is, and the rest its number. The values are those of MPICH's `mpi.h`.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, PoisonError, RwLock};

/// `MPI_Aint`.
pub type Aint = isize;
/// `MPI_Count`.
pub type Count = i64;
/// `MPI_Offset`.
pub type Offset = i64;

macro_rules! handles {
    ($( $(#[$meta:meta])* $name:ident null $null:literal )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(transparent)]
        pub struct $name(pub c_int);

        impl $name {
            pub const NULL: Self = Self($null);
        }
    )* };
}

handles! {
    /// `MPI_Comm`.
    Comm null 0x0400_0000
    /// `MPI_Group`.
    Group null 0x0800_0000
    /// `MPI_Datatype`.
    Datatype null 0x0c00_0000
    /// `MPI_Errhandler`.
    Errhandler null 0x1400_0000
    /// `MPI_Op`.
    Op null 0x1800_0000
    /// `MPI_Info`.
    Info null 0x1c00_0000
    /// `MPI_Win`.
    Win null 0x2000_0000
    /// `MPI_Request`.
    Request null 0x2c00_0000
    /// `MPI_Message`.
    Message null 0x2c00_0000
    /// `MPI_Session`.
    Session null 0x3800_0000
    /// A key of attributes.
    Keyval null 0x2400_0000
}

/// `MPI_File`: a pointer in MPICH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct File(pub usize);

impl Comm {
    pub const WORLD: Self = Self(0x4400_0000);
    pub const SELF: Self = Self(0x4400_0001);
}

impl Group {
    pub const EMPTY: Self = Self(0x4800_0000);
}

impl Message {
    /// `MPI_MESSAGE_NO_PROC`.
    pub const NO_PROC: Self = Self(0x6c00_0000);
}

impl Errhandler {
    pub const FATAL: Self = Self(0x5400_0000);
    pub const RETURN: Self = Self(0x5400_0001);
    pub const ABORT: Self = Self(0x5400_0003);
}

impl Info {
    /// `MPI_INFO_ENV`.
    pub const ENV: Self = Self(0x5c00_0001);
}

/// Special ranks and tags, and other numbers of MPICH.
pub const PROC_NULL: c_int = -1;
pub const ANY_SOURCE: c_int = -2;
pub const ROOT: c_int = -3;
pub const ANY_TAG: c_int = -1;
pub const UNDEFINED: c_int = -32766;

/// Freed numbers wait until this many are free, so that a stale handle is found out.
const MIN_FREE: usize = 64;
const NUMBER: c_int = 0x03ff_ffff;

/// Objects made at run time, by handle.
pub struct Table<T: ?Sized> {
    /// The handle of object 0.
    base: u32,
    /// Numbers below this one are those of predefined objects.
    first: usize,
    slots: RwLock<Slots<T>>,
}

struct Slots<T: ?Sized> {
    /// Number of the first slot. Numbers below this one are those of objects that are gone.
    start: usize,
    all: Vec<Option<Arc<T>>>,
    free: VecDeque<usize>,
}

impl<T: ?Sized> Table<T> {
    /// An empty table. `kind` is the number of the kind of object in MPICH's handles.
    pub const fn new(kind: u32) -> Self {
        Self::starting(kind, 0)
    }

    /// As [`Table::new`], with the number of the first object.
    pub const fn starting(kind: u32, first: usize) -> Self {
        Self {
            base: 0x8000_0000 | kind << 26,
            first,
            slots: RwLock::new(Slots {
                start: first,
                all: Vec::new(),
                free: VecDeque::new(),
            }),
        }
    }

    pub fn insert(&self, object: Arc<T>) -> c_int {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let number = match slots.free.len() > MIN_FREE {
            true => slots.free.pop_front(),
            false => None,
        };
        let number = match number {
            Some(number) => {
                slots.all[number] = Some(object);
                number
            }
            None => {
                slots.all.push(Some(object));
                slots.all.len() - 1
            }
        };
        (self.base | (slots.start + number) as u32) as c_int
    }

    /// The slot of a handle.
    fn number(&self, slots: &Slots<T>, handle: c_int) -> Option<usize> {
        match handle & !NUMBER == self.base as c_int {
            true => ((handle & NUMBER) as usize).checked_sub(slots.start),
            false => None,
        }
    }

    pub fn get(&self, handle: c_int) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.all.get(self.number(&slots, handle)?)?.clone()
    }

    pub fn remove(&self, handle: c_int) -> Option<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let number = self.number(&slots, handle)?;
        let object = slots.all.get_mut(number)?.take()?;
        slots.free.push_back(number);
        Some(object)
    }

    /// Removes all objects. Their numbers are not used again before half of all numbers were.
    pub fn clear(&self) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.free.clear();
        let removed = std::mem::take(&mut slots.all);
        slots.start += removed.len();
        if slots.start > NUMBER as usize / 2 {
            slots.start = self.first;
        }
        drop(slots);
        // An object that goes may use the table.
        drop(removed);
    }
}
