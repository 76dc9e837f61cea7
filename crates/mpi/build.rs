//! Gives the library the name by which programs that were linked with MPICH ask for it, and chooses MPICH's values in
//! `src/interface.rs`.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmpi.so.12");
    println!("cargo:rustc-check-cfg=cfg(face, values(\"mpich\", \"standard\"))");
    println!("cargo:rustc-cfg=face=\"mpich\"");
    println!("cargo:rerun-if-changed=build.rs");
}
