//! Gives the library the name that the MPI standard prescribes, and chooses the standard's values in
//! `../mpi/src/interface.rs`.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmpi_abi.so.1");
    println!("cargo:rustc-check-cfg=cfg(face, values(\"mpich\", \"standard\"))");
    println!("cargo:rustc-cfg=face=\"standard\"");
    println!("cargo:rerun-if-changed=build.rs");
}
