//! The native module of the Python package `dayfly-frames`: plans of frames, and results as Arrow.

mod arrow;
mod batch_functions;
mod errors;
mod expr;
mod frame;
mod functions;
mod join;
mod label;
mod member;
mod names;
mod output;
mod session;
mod slot;
mod sql;
mod table;
mod tasks;
mod types;
mod wait;

use std::collections::BTreeMap;
use std::path::PathBuf;

use dayfly_comm::Invitation;
use dayfly_frame::{Functions, Memory, RankOptions, Spill, StoreOptions};
use pyo3::prelude::*;

/// Executes the tasks of a session as one rank of its group, until the session closes.
#[pyfunction]
fn serve(
    py: Python<'_>,
    invitation: &str,
    threads: usize,
    memory: Option<u64>,
    spill: Option<PathBuf>,
    spill_bytes: Option<u64>,
    stores: BTreeMap<String, String>,
) -> PyResult<()> {
    let options = rank_options(py, threads, memory, spill.map(|spill| (spill, spill_bytes)), stores)?;
    py.detach(|| dayfly_frame::serve_rank(&Invitation::from_json(invitation)?, &options))
        .map_err(|failure| errors::raise(py, &failure))
}

/// Options of a rank that executes functions in this interpreter. `spill` is a directory, and its bound in bytes.
fn rank_options(
    py: Python<'_>,
    threads: usize,
    memory: Option<u64>,
    spill: Option<(PathBuf, Option<u64>)>,
    stores: BTreeMap<String, String>,
) -> PyResult<RankOptions> {
    let spill = spill.map(|(directory, bytes)| Spill { directory, bytes });
    Ok(RankOptions {
        threads,
        memory: Memory { bytes: memory, spill },
        stores: StoreOptions::new(stores).map_err(|failure| errors::raise(py, &failure))?,
        functions: Some(Functions::new(batch_functions::PythonFunctions)),
    })
}

/// Whether object stores have an option of this name.
#[pyfunction]
fn is_store_option(name: &str) -> bool {
    StoreOptions::knows(name)
}

#[pymodule]
mod _frames {
    #[pymodule_export]
    use super::expr::Expr;
    #[pymodule_export]
    use super::frame::Frame;
    #[pymodule_export]
    use super::is_store_option;
    #[pymodule_export]
    use super::label::Label;
    #[pymodule_export]
    use super::member::Member;
    #[pymodule_export]
    use super::output::Encoder;
    #[pymodule_export]
    use super::serve;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::table::{Batches, Table};
}
