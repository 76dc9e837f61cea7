//! `mayfly-executor`: runs functions of shared libraries for the node that started it.

use mayfly_executor::native::NativeRuntime;

fn main() -> std::process::ExitCode {
    match mayfly_executor::run(&mut NativeRuntime::default()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mayfly-executor: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
