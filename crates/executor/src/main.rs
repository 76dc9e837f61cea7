//! `dayfly-executor`: runs functions of shared libraries for the node that started it.

use dayfly_executor::native::NativeRuntime;

unsafe extern "C" {
    /// The C library's standard output, which functions print to.
    static mut stdout: *mut libc::FILE;
}

fn main() -> std::process::ExitCode {
    // SAFETY: nothing has been printed yet, and this process has one thread. Without line buffering, output would stay
    // in the worker until a page is full, and would be lost with it.
    unsafe { libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 0) };
    match dayfly_executor::run(&mut NativeRuntime::default()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dayfly-executor: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
