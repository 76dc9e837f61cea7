//! Checks that belong to no single crate, in `tests/`: which crate may depend on which (`dependencies.rs`), and that
//! the documentation says something about every error (`documentation.rs`).

use std::path::{Path, PathBuf};

/// The root of the checkout, where the workspace's `Cargo.toml` stands.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // This crate stands two levels below it, by the layout that ARCHITECTURE.md describes.
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The README's Rust, which is compiled as it stands.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
