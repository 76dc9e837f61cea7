//! The native module of the Python package `dayfly-frames`.

use pyo3::prelude::*;

mod arrow;
mod errors;
mod expr;
mod frame;
mod join;
mod session;
mod table;
mod wait;

/// Joins the group of an invitation as a rank, and executes tasks until its session closes.
#[pyfunction]
#[pyo3(signature = (invitation, threads, memory_bytes=None, spill=None))]
fn serve(
    py: Python<'_>,
    invitation: &str,
    threads: usize,
    memory_bytes: Option<u64>,
    spill: Option<std::path::PathBuf>,
) -> PyResult<()> {
    let invitation = errors::invitation(py, invitation)?;
    let options = dayfly_frame::RankOptions {
        threads,
        memory_bytes,
        spill,
    };
    py.detach(|| dayfly_frame::serve_rank(&invitation, &options))
        .map_err(|failure| errors::raise(py, &failure))
}

#[pymodule]
mod _frames {
    #[pymodule_export]
    use super::expr::Expr;
    #[pymodule_export]
    use super::frame::Frame;
    #[pymodule_export]
    use super::serve;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::table::Table;
}
