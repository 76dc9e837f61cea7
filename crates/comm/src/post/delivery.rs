//! The outcome of a send, and waiting for it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use super::PostError;

#[derive(Debug, Default)]
struct Outcome {
    result: Option<Result<(), PostError>>,
    waker: Option<Waker>,
}

type Slot = Arc<Mutex<Outcome>>;

fn locked(slot: &Slot) -> MutexGuard<'_, Outcome> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message on its way. It resolves when the message has left this rank, and its parts are released. To drop it
/// changes nothing: the message is sent all the same.
///
/// A sender that waits for it is held back by a slow receiver, since a message leaves only with the receiver's credit.
#[derive(Debug)]
pub struct Delivery(Slot);

impl Delivery {
    /// A pair of ends.
    pub(super) fn new() -> (Receipt, Self) {
        let slot = Slot::default();
        (Receipt(Some(slot.clone())), Self(slot))
    }

    /// Whether the message has left, or failed to.
    pub fn is_over(&self) -> bool {
        locked(&self.0).result.is_some()
    }

    /// Waits until the message has left.
    ///
    /// # Errors
    /// As the future; [`PostError::Deadline`] when the deadline is over. The message is on its way even then.
    pub fn wait(self, deadline: Instant) -> Result<(), PostError> {
        block_on(self, deadline)
    }
}

impl Future for Delivery {
    type Output = Result<(), PostError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = locked(&self.0);
        match &outcome.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                outcome.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The driver's end. The message counts as refused by a closed post if it is dropped.
#[derive(Debug)]
pub(super) struct Receipt(Option<Slot>);

impl Receipt {
    /// Reports the outcome.
    pub fn report(mut self, result: Result<(), PostError>) {
        self.set(result);
    }

    fn set(&mut self, result: Result<(), PostError>) {
        if let Some(slot) = self.0.take() {
            let waker = {
                let mut outcome = locked(&slot);
                outcome.result = Some(result);
                outcome.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.set(Err(PostError::Closed));
    }
}

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future in this thread, without a runtime.
pub(super) fn block_on<T>(
    future: impl Future<Output = Result<T, PostError>>,
    deadline: Instant,
) -> Result<T, PostError> {
    let mut future = pin!(future);
    let waker = Arc::new(Parked(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PostError::Deadline);
        }
        std::thread::park_timeout(left);
    }
}
