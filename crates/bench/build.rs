//! Compiles the functions that the benchmark invokes, so that it needs no compiler where it runs.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=functions/bench.c");
    println!("cargo:rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let library = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("bench.so");
    let status = Command::new(&compiler)
        .args(["-O3", "-shared", "-fPIC", "functions/bench.c", "-o"])
        .arg(&library)
        .status()
        .unwrap_or_else(|error| panic!("no C compiler `{compiler}`: {error}; install one (Debian: gcc) or set CC"));
    assert!(status.success(), "`{compiler}` could not compile functions/bench.c");
}
