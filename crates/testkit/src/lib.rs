//! Checks of the whole workspace, in `tests/`: which crate may depend on which (`dependencies.rs`), and that the
//! documentation has a section for every error (`documentation.rs`).

use std::path::{Path, PathBuf};

/// Returns the root of the checkout, which contains the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // This crate is two levels below the root, as ARCHITECTURE.md describes.
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Compiles the Rust code of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
