//! The program that is measured beside ours, and its ranks under Open MPI.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Plan, Result, arguments, failed, second_words};
use crate::error::Error;

/// Writes a program. Returns its path, and whether it was there already.
pub(super) fn write(folder: &Path, name: &str, source: &str) -> Result<(PathBuf, bool)> {
    std::fs::create_dir_all(folder).map_err(Error::os("make the cache"))?;
    let file = folder.join(name);
    let there = std::fs::read_to_string(&file).is_ok_and(|text| text == source);
    if !there {
        std::fs::write(&file, source).map_err(Error::os("write the program"))?;
    }
    Ok((file, there))
}

/// Returns the MPI program, and compiles it if it is new or has changed.
pub(super) fn compile(folder: &Path) -> Result<PathBuf> {
    let (file, there) = write(folder, "openmpi.c", include_str!("../openmpi.c"))?;
    let program = folder.join("openmpi");
    if there && program.exists() {
        return Ok(program);
    }
    let mut compiler = Command::new("mpicc");
    let done = compiler.arg("-O3").arg(&file).arg("-o").arg(&program).status();
    match done {
        Ok(status) if status.success() => Ok(program),
        _ => Err(failed(
            "mpicc cannot compile the program that is measured beside ours. Install with: sudo apt-get install \
             openmpi-bin libopenmpi-dev",
        )),
    }
}

/// Runs the ranks under `mpirun`. Returns the microseconds of an operation for each size.
pub(super) fn openmpi(plan: &Plan, program: &Path) -> Result<Vec<f64>> {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &plan.ranks.to_string()]);
    match plan.tcp {
        true => command.args(["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]),
        false => command.args(["--mca", "btl", "self,vader"]),
    };
    if plan.ranks <= std::thread::available_parallelism().map_or(1, usize::from) {
        command.args(["--bind-to", "core"]);
    }
    if let Some(python) = &plan.python {
        command.arg(python).arg(program).arg("mpi4py");
    } else {
        command.arg(program);
    }
    command.args(arguments(plan));
    // `mpirun` ends its ranks when it is asked to end.
    // SAFETY: makes one system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let output = command.output().map_err(Error::os("start mpirun"))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr)));
    }
    second_words(&String::from_utf8_lossy(&output.stdout), plan)
}
