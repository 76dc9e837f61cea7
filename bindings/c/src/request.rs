//! Group operations in the background.

use std::sync::Arc;

use dayfly_client::Error;
use dayfly_comm::{Scope, Status};
use dayfly_protocol::error::Failure;

use crate::group::{GroupState, dfly_group};
use crate::handle::{Birth, Handle, get_mut, put, put_required, take};
use crate::message::dfly_message;
use crate::status::{dfly_status, guard, misuse};

/// A heap allocation at a fixed address, freed when this is dropped. A scope may borrow it until then.
struct Kept<T>(*mut T);

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, freed once, and the scope that borrowed it has ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

trait Anything {}
impl<T> Anything for Kept<T> {}

/// An operation in progress.
struct UnderWay {
    // Drop order: the scope ends before its memory, and both before the group.
    scope: Scope<'static>,
    request: dayfly_comm::Request,
    _work: Box<dyn Anything>,
    _state: Arc<GroupState>,
}

enum State {
    UnderWay(UnderWay),
    Over(dfly_message),
    Failed,
}

/// A group operation in the background. It progresses whenever this process waits for any operation of its group. One
/// thread at a time may use it. It may outlive its group.
pub struct dfly_request {
    birth: Birth,
    state: State,
}

impl Handle for dfly_request {
    const NAME: &'static str = "request";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_request {
    /// Starts an operation on memory that the request owns, or that the C caller promised to keep valid.
    pub(crate) fn start<T: 'static>(
        group: &dfly_group,
        work: T,
        start: impl for<'env> FnOnce(&Scope<'env>, &'env mut T) -> Result<dayfly_comm::Request, Failure>,
    ) -> Result<Self, Error> {
        let state = Arc::clone(&group.state);
        let work = Kept(Box::into_raw(Box::new(work)));
        // SAFETY: both have fixed addresses, and are dropped after the scope.
        let (lasting, memory) = unsafe { (&*Arc::as_ptr(&state), &mut *work.0) };
        // SAFETY: the scope is dropped before what it borrows: below if starting fails, else with the request.
        let scope = unsafe { lasting.communicator.detached_scope() };
        let request = start(&scope, memory)?;
        Ok(Self {
            birth: Birth::now(),
            state: State::UnderWay(UnderWay {
                scope,
                request,
                _work: Box::new(work),
                _state: state,
            }),
        })
    }

    /// Returns a request that has already completed.
    pub(crate) fn over() -> Self {
        Self {
            birth: Birth::now(),
            state: State::Over(dfly_message::NONE),
        }
    }

    fn ask(
        &mut self,
        ask: impl FnOnce(&Scope<'static>, dayfly_comm::Request) -> Result<Option<Status>, Failure>,
    ) -> Result<Option<dfly_message>, Error> {
        let going = match &self.state {
            State::UnderWay(going) => going,
            State::Over(message) => return Ok(Some(*message)),
            State::Failed => return Err(misuse("this request has failed, which was told; free it")),
        };
        match ask(&going.scope, going.request) {
            Ok(None) => Ok(None),
            Ok(Some(status)) => {
                let message = dfly_message::from(status);
                self.state = State::Over(message);
                Ok(Some(message))
            }
            Err(failure) => {
                self.state = State::Failed;
                Err(failure.into())
            }
        }
    }

    fn wait(&mut self) -> Result<dfly_message, Error> {
        let over = self.ask(|scope, request| scope.wait(request).map(Some))?;
        Ok(over.unwrap_or(dfly_message::NONE))
    }
}

/// Waits until an operation completes. After an error the operation has ended. `message` receives the envelope of a
/// receive and may be NULL. Errors: DFLY_TIMED_OUT after the group's deadline, and the errors of the operation.
///
/// # Safety
/// `request` is a request, `message` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_request_wait(request: *mut dfly_request, message: *mut dfly_message) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { get_mut(request) }?.wait()?;
        // SAFETY: as the caller promises.
        unsafe { put(message, found) };
        Ok(())
    })
}

/// Waits until all `count` requests complete. Returns the first error and stops waiting; the remaining requests stay
/// valid.
///
/// # Safety
/// `requests` points to `count` requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_request_wait_all(requests: *const *mut dfly_request, count: usize) -> dfly_status {
    guard(|| {
        if requests.is_null() && count > 0 {
            return Err(misuse("the requests are NULL").into());
        }
        for at in 0..count {
            // SAFETY: as the caller promises.
            unsafe { get_mut(*requests.add(at)) }?.wait()?;
        }
        Ok(())
    })
}

/// Progresses the group without waiting. `over` is set to whether the operation has completed. `message` receives the
/// envelope of a completed receive and may be NULL. Errors: those of the operation.
///
/// # Safety
/// `request` is a request, `message` NULL or writable, `over` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_request_test(
    request: *mut dfly_request,
    message: *mut dfly_message,
    over: *mut bool,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let request = unsafe { get_mut(request) }?;
        // SAFETY: as the caller promises.
        unsafe { put_required(over, "the place for whether it is over", false) }?;
        if let Some(found) = request.ask(|scope, request| scope.test(request))? {
            // SAFETY: as the caller promises.
            unsafe {
                put(message, found);
                put(over, true);
            }
        }
        Ok(())
    })
}

/// Frees a request. An operation in progress is cancelled; its memory may then be reused, and its content is undefined.
/// If one rank cancels a collective, it does not complete on the others. NULL is a no-op.
///
/// # Safety
/// `request` is NULL or a request that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_request_free(request: *mut dfly_request) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(request) });
        Ok(())
    });
}
