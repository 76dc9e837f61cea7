//! Statuses.

use std::ffi::c_int;

use crate::datatype;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{ANY_SOURCE, ANY_TAG, Count, Datatype, PROC_NULL, UNDEFINED};
pub use crate::interface::Status;
use crate::pointer::Out;

/// Where a status is written: nowhere for `MPI_STATUS_IGNORE`, which is 1 in MPICH and 0 in the standard.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct StatusOut(*mut Status);

impl StatusOut {
    fn place(self, at: usize) -> Out<Status> {
        match self.0 as usize {
            0 | 1 => Out::none(),
            _ => Out::at(self.0.wrapping_add(at)),
        }
    }

    /// Writes the status of one completion; its error stays as it is.
    pub fn set(self, completion: &Completion) {
        self.set_at(0, completion);
    }

    pub fn set_at(self, at: usize, completion: &Completion) {
        let place = self.place(at);
        if let Ok(old) = place.get() {
            place.set(Status {
                error: old.error,
                ..Status::of(completion)
            });
        }
    }

    /// Writes a status with its error, for functions that complete several operations.
    pub fn set_with_error(self, at: usize, completion: &Completion, error: c_int) {
        self.place(at).set(Status {
            error,
            ..Status::of(completion)
        });
    }
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct Completion {
    pub source: c_int,
    pub tag: c_int,
    pub bytes: u64,
    pub cancelled: bool,
    pub error: Option<Error>,
}

impl Completion {
    /// Of a send, a collective, or nothing at all.
    pub fn empty() -> Self {
        Self {
            source: ANY_SOURCE,
            tag: ANY_TAG,
            bytes: 0,
            cancelled: false,
            error: None,
        }
    }

    /// Whether it says nothing, as that of a send.
    pub fn is_empty(&self) -> bool {
        let Self {
            source,
            tag,
            bytes,
            cancelled,
            error,
        } = self;
        (*source, *tag, *bytes) == (ANY_SOURCE, ANY_TAG, 0) && !cancelled && error.is_none()
    }

    /// Of a receive from `MPI_PROC_NULL`.
    pub fn nobody() -> Self {
        Self {
            source: PROC_NULL,
            ..Self::empty()
        }
    }

    /// Its error, if it failed.
    pub fn check(self) -> Result<Self> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

impl Status {
    fn of(completion: &Completion) -> Self {
        let mut status = Self {
            count_high_and_cancelled: completion.cancelled.into(),
            source: completion.source,
            tag: completion.tag,
            ..Self::EMPTY
        };
        status.set_bytes(completion.bytes);
        status
    }

    /// For a function of the program to fill.
    pub fn empty() -> Self {
        Self::of(&Completion::empty())
    }

    pub fn completion(&self) -> Completion {
        Completion {
            source: self.source,
            tag: self.tag,
            bytes: self.bytes(),
            cancelled: self.count_high_and_cancelled & 1 != 0,
            error: None,
        }
    }

    fn bytes(&self) -> u64 {
        u64::from(self.count_low as u32) | u64::from(self.count_high_and_cancelled as u32 >> 1) << 32
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.count_low = bytes as u32 as c_int;
        let cancelled = self.count_high_and_cancelled & 1;
        self.count_high_and_cancelled = ((bytes >> 32) as c_int) << 1 | cancelled;
    }
}

/// The elements of a datatype in a message, if that is a whole number.
fn count(status: Out<Status>, of: Datatype) -> Result<Option<Count>> {
    let (bytes, size) = (status.get()?.bytes(), datatype::get(of)?.size as u64);
    Ok(match (bytes, size) {
        (0, _) => Some(0),
        (_, 0) => None,
        (bytes, size) if bytes % size != 0 => None,
        (bytes, size) => Some((bytes / size) as Count),
    })
}

fn elements(status: Out<Status>, of: Datatype) -> Result<Option<Count>> {
    let bytes = status.get()?.bytes() as usize;
    Ok(datatype::get(of)?.elements_in(bytes).map(|found| found as Count))
}

fn small(count: Option<Count>) -> c_int {
    count.and_then(|count| c_int::try_from(count).ok()).unwrap_or(UNDEFINED)
}

fn set_elements(status: Out<Status>, of: Datatype, elements: Count) -> Result<()> {
    let of = datatype::get(of)?;
    let mut changed = status.get()?;
    changed.set_bytes(of.bytes_of_elements(datatype::count_of(elements)?) as u64);
    status.set(changed);
    Ok(())
}

fn change(status: Out<Status>, change: impl FnOnce(&mut Status)) -> Result<()> {
    let mut changed = status.get()?;
    change(&mut changed);
    status.set(changed);
    Ok(())
}

mpi! {
    fn MPI_Get_count (status: Out<Status>, of: Datatype, result: Out<c_int>) [()] {
        result.check()?.set(small(count(status, of)?));
        Ok(())
    }

    fn MPI_Get_count_c (status: Out<Status>, of: Datatype, result: Out<Count>) [()] {
        result.check()?.set(count(status, of)?.unwrap_or(UNDEFINED.into()));
        Ok(())
    }

    fn MPI_Get_elements (status: Out<Status>, of: Datatype, result: Out<c_int>) [()] {
        result.check()?.set(small(elements(status, of)?));
        Ok(())
    }

    fn MPI_Get_elements_x (status: Out<Status>, of: Datatype, result: Out<Count>) [()] {
        result.check()?.set(elements(status, of)?.unwrap_or(UNDEFINED.into()));
        Ok(())
    }

    fn MPI_Get_elements_c (status: Out<Status>, of: Datatype, result: Out<Count>) [()] {
        result.check()?.set(elements(status, of)?.unwrap_or(UNDEFINED.into()));
        Ok(())
    }

    fn MPI_Status_set_elements (status: Out<Status>, of: Datatype, count: c_int) [()] {
        set_elements(status, of, count.into())
    }

    fn MPI_Status_set_elements_x (status: Out<Status>, of: Datatype, count: Count) [()] {
        set_elements(status, of, count)
    }

    fn MPI_Status_set_elements_c (status: Out<Status>, of: Datatype, count: Count) [()] {
        set_elements(status, of, count)
    }

    fn MPI_Status_set_cancelled (status: Out<Status>, flag: c_int) [()] {
        change(status, |status| {
            status.count_high_and_cancelled = status.count_high_and_cancelled & !1 | c_int::from(flag != 0);
        })
    }

    fn MPI_Test_cancelled (status: Out<Status>, flag: Out<c_int>) [()] {
        flag.check()?.set(status.get()?.completion().cancelled.into());
        Ok(())
    }

    fn MPI_Status_get_source (status: Out<Status>, value: Out<c_int>) [()] {
        value.check()?.set(status.get()?.source);
        Ok(())
    }

    fn MPI_Status_get_tag (status: Out<Status>, value: Out<c_int>) [()] {
        value.check()?.set(status.get()?.tag);
        Ok(())
    }

    fn MPI_Status_get_error (status: Out<Status>, value: Out<c_int>) [()] {
        value.check()?.set(status.get()?.error);
        Ok(())
    }

    fn MPI_Status_set_source (status: Out<Status>, value: c_int) [()] {
        change(status, |status| status.source = value)
    }

    fn MPI_Status_set_tag (status: Out<Status>, value: c_int) [()] {
        change(status, |status| status.tag = value)
    }

    fn MPI_Status_set_error (status: Out<Status>, value: c_int) [()] {
        change(status, |status| status.error = value)
    }
}

/// The error of a request that does not exist.
pub fn no_request() -> Error {
    Error::new(class::REQUEST, "the handle is no request")
}
