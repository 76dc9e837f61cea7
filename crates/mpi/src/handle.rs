//! Handles, and the tables of objects behind them.
//!
//! In the handle of an object that is made at run time, the bits above the lowest 26 say what it is, as in MPICH: the two
//! highest are those of [`interface::DYNAMIC`], and the next four are the kind. The rest is its number.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, PoisonError, RwLock};

use crate::interface::{self, Number};
pub use crate::interface::{ANY_SOURCE, ANY_TAG, PROC_NULL, ROOT, UNDEFINED};

/// `MPI_Aint`.
pub type Aint = isize;
/// `MPI_Count`.
pub type Count = i64;
/// `MPI_Offset`.
pub type Offset = i64;

macro_rules! handles {
    ($( $(#[$meta:meta])* $name:ident($number:ty) null $null:ident )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(transparent)]
        pub struct $name(pub $number);

        impl $name {
            pub const NULL: Self = Self(interface::$null);
        }
    )* };
}

handles! {
    /// `MPI_Comm`.
    Comm(Number) null COMM_NULL
    /// `MPI_Group`.
    Group(Number) null GROUP_NULL
    /// `MPI_Datatype`.
    Datatype(Number) null DATATYPE_NULL
    /// `MPI_Errhandler`.
    Errhandler(Number) null ERRHANDLER_NULL
    /// `MPI_Op`.
    Op(Number) null OP_NULL
    /// `MPI_Info`.
    Info(Number) null INFO_NULL
    /// `MPI_Win`.
    Win(Number) null WIN_NULL
    /// `MPI_Request`.
    Request(Number) null REQUEST_NULL
    /// `MPI_Message`.
    Message(Number) null MESSAGE_NULL
    /// `MPI_Session`.
    Session(Number) null SESSION_NULL
    /// A key of attributes.
    Keyval(c_int) null KEYVAL_INVALID
    /// `MPI_File`: a pointer in both interfaces.
    File(usize) null FILE_NULL
}

impl Comm {
    pub const WORLD: Self = Self(interface::COMM_WORLD);
    pub const SELF: Self = Self(interface::COMM_SELF);
}

impl Group {
    pub const EMPTY: Self = Self(interface::GROUP_EMPTY);
}

impl Message {
    /// `MPI_MESSAGE_NO_PROC`.
    pub const NO_PROC: Self = Self(interface::MESSAGE_NO_PROC);
}

impl Errhandler {
    pub const FATAL: Self = Self(interface::ERRORS_ARE_FATAL);
    pub const RETURN: Self = Self(interface::ERRORS_RETURN);
    pub const ABORT: Self = Self(interface::ERRORS_ABORT);
}

impl Info {
    /// `MPI_INFO_ENV`.
    pub const ENV: Self = Self(interface::INFO_ENV);
}

/// Freed numbers wait until this many are free, so that a stale handle is found out.
const MIN_FREE: usize = 64;
const NUMBER: Number = 0x03ff_ffff;

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
    /// An empty table. `kind` is the number of the kind of object in handles.
    pub const fn new(kind: u32) -> Self {
        Self::starting(kind, 0)
    }

    /// As [`Table::new`], with the number of the first object.
    pub const fn starting(kind: u32, first: usize) -> Self {
        Self {
            base: interface::DYNAMIC | kind << 26,
            first,
            slots: RwLock::new(Slots {
                start: first,
                all: Vec::new(),
                free: VecDeque::new(),
            }),
        }
    }

    pub fn insert(&self, object: Arc<T>) -> Number {
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
        (self.base | (slots.start + number) as u32) as Number
    }

    /// The slot of a handle.
    fn number(&self, slots: &Slots<T>, handle: Number) -> Option<usize> {
        match handle & !NUMBER == self.base as Number {
            true => ((handle & NUMBER) as usize).checked_sub(slots.start),
            false => None,
        }
    }

    pub fn get(&self, handle: Number) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.all.get(self.number(&slots, handle)?)?.clone()
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.all.iter().flatten().cloned().collect()
    }

    pub fn remove(&self, handle: Number) -> Option<Arc<T>> {
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
