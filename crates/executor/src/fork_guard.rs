//! Functions that fork and return on both sides. The child has the worker's memory and channel, and must not write on
//! the channel: it ends where its function returns.

use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Installs the detection of forks of this process.
pub fn install() {
    // SAFETY: the handler stores into a static, which a forked child may do. It fails only for lack of memory, before
    // any call.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Ends this process if a function forked it. Call it before anything is written to a client.
#[inline(always)]
pub fn exit_if_forked() {
    if CHILD.load(Ordering::Relaxed) {
        exit();
    }
}

#[cold]
fn exit() -> ! {
    // SAFETY: ends the child without the exit handlers of the worker that it copies.
    unsafe { libc::_exit(0) }
}
