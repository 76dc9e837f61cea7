//! A function may fork, and return on both sides. The child has the worker's memory and its channel, and must not answer on it: it
//! ends where its function returns.

use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Notices every fork of this process from now on.
pub fn watch() {
    // SAFETY: the handler stores into a static, which a forked child may do. It fails for want of memory alone, before
    // anything was called.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Ends this process if a function forked it. To be called before anything is written where a client reads.
#[inline(always)]
pub fn leave() {
    if CHILD.load(Ordering::Relaxed) {
        end();
    }
}

#[cold]
fn end() -> ! {
    // SAFETY: ends the child without the exit handlers of the worker that it is a copy of.
    unsafe { libc::_exit(0) }
}
