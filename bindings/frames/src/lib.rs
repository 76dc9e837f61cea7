//! The native module of the Python package `dayfly-frames`.

use pyo3::prelude::*;
use dayfly_frame as _;

#[pymodule]
mod _frames {}
