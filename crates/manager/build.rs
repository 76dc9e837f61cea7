//! Embeds the built web console, if `DAYFLY_CONSOLE` names the directory that `scripts/build-console` made. Without it,
//! the manager serves the small page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Adds the files below a directory, with their names relative to `root`.
fn list(root: &Path, directory: &Path, found: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, found)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            found.push((name.to_string_lossy().into_owned(), path.clone()));
        }
    }
    Ok(())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DAYFLY_CONSOLE");
    let mut files = Vec::new();
    if let Some(root) = env::var_os("DAYFLY_CONSOLE").filter(|root| !root.is_empty()) {
        let root = PathBuf::from(root);
        println!("cargo:rerun-if-changed={}", root.display());
        list(&root, &root, &mut files).expect("DAYFLY_CONSOLE names a directory that can be read");
    }
    files.sort();
    let mut text = String::from("pub static FILES: &[(&str, &[u8])] = &[\n");
    for (name, path) in &files {
        let _ = writeln!(
            text,
            "    ({name:?}, include_bytes!({:?})),",
            path.display().to_string()
        );
    }
    text += "];\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("console.rs");
    fs::write(out, text).expect("OUT_DIR can be written");
}
