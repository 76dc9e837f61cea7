//! Memory of the caller that calls read and write in place, and counters of the copies that were needed all the same.

use std::sync::{Arc, Mutex, PoisonError};

use dayfly_fabric::Buffer;

/// Where a [`Loan`] returns to.
type Home = Arc<Mutex<Option<Buffer>>>;

/// A buffer that a call writes its output into. When the call ends, in whatever way, the buffer returns to the
/// [`ReturnedBuffer`] that was made with it.
#[derive(Debug)]
pub struct OutputBuffer(Box<Loan>);

#[derive(Debug)]
struct Loan {
    /// `Some` until it is dropped.
    buffer: Option<Buffer>,
    home: Home,
}

/// The caller's half of an [`OutputBuffer`].
#[derive(Debug)]
pub struct ReturnedBuffer(Home);

impl OutputBuffer {
    /// Returns a buffer to pass to a call, and the place that it returns to. The output may be as long as the buffer.
    pub fn new(buffer: Buffer) -> (Self, ReturnedBuffer) {
        let home = Home::default();
        let loan = Loan {
            buffer: Some(buffer),
            home: Arc::clone(&home),
        };
        (Self(Box::new(loan)), ReturnedBuffer(home))
    }

    /// Returns the buffer. It is missing only while the value is dropped.
    pub(crate) fn buffer(&mut self) -> Option<&mut Buffer> {
        self.0.buffer.as_mut()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.0.buffer.as_ref().map_or(&[], Buffer::as_slice)
    }

    pub(crate) fn is_in(&self, is_home_of: impl Fn(&Buffer) -> bool) -> bool {
        self.0.buffer.as_ref().is_some_and(is_home_of)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.buffer.take();
    }
}

impl ReturnedBuffer {
    /// Takes the buffer back; `None` while a call uses it.
    pub fn take(&self) -> Option<Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Bytes of payloads of a pool that did not travel in place. In place are inputs in buffers of
/// [`Pool::allocate`](super::Pool::allocate) that the worker shares and that do not fit in a slot, outputs in an
/// [`OutputBuffer`] of that memory, and outputs that the caller reads where they were received. The transports TCP and
/// TLS send from any buffer; what the kernel copies is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopiedBytes {
    /// Bytes of inputs.
    pub input: u64,
    /// Bytes of outputs.
    pub output: u64,
}
