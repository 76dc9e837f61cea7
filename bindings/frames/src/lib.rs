//! The native module of the Python package `dayfly-frames`: plans of frames, and results as Arrow.

mod arrow;
mod batch_functions;
mod errors;
mod expr;
mod frame;
mod functions;
mod join;
mod member;
mod names;
mod output;
mod session;
mod sql;
mod table;
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
    let spill = spill.map(|directory| Spill {
        directory,
        bytes: spill_bytes,
    });
    let options = RankOptions {
        threads,
        memory: Memory { bytes: memory, spill },
        stores: StoreOptions::new(stores).map_err(|failure| errors::raise(py, &failure))?,
        functions: Some(Functions::new(batch_functions::PythonFunctions)),
    };
    py.detach(|| dayfly_frame::serve_rank(&Invitation::from_json(invitation)?, &options))
        .map_err(|failure| errors::raise(py, &failure))
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
