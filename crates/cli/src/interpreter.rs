//! The Python interpreter that this program was installed with. A node runs Python functions in it unless --python
//! names another.

use std::path::{Path, PathBuf};

use dayfly_node::runtimes;

/// Set by the `dayfly` command of the Python package.
pub const VARIABLE: &str = "DAYFLY_PYTHON";

/// Returns an interpreter with the dayfly package. The error states in one line what is missing.
pub fn own() -> Result<PathBuf, String> {
    let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty());
    if let Some(named) = named.map(PathBuf::from) {
        let found = on_path(&named).ok_or_else(|| format!("{VARIABLE} names {}, which is not there", named.display()));
        return with_package(&found?);
    }
    let program = std::env::current_exe().and_then(|program| program.canonicalize());
    if let Some(beside) = program.ok().and_then(|program| of_package(&program)) {
        return with_package(&beside);
    }
    let python = on_path(Path::new("python3")).ok_or("there is no python3 on the PATH")?;
    with_package(&python)
}

fn with_package(python: &Path) -> Result<PathBuf, String> {
    match runtimes::package_version(python) {
        Ok(_) => Ok(python.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the interpreter of a program in the Python package, at
/// `PREFIX/lib/pythonX.Y/site-packages/dayfly/bin/dayfly`.
fn of_package(program: &Path) -> Option<PathBuf> {
    let packages = program.parent()?.parent()?.parent()?;
    let is_packages = matches!(packages.file_name()?.to_str()?, "site-packages" | "dist-packages");
    let library = packages.parent().filter(|_| is_packages)?;
    let named = library.file_name()?;
    let bin = library.parent()?.parent()?.join("bin");
    let mut names = [bin.join(named), bin.join("python3"), bin.join("python")].into_iter();
    names.find(|python| python.is_file())
}

/// Returns a program's full path, because nodes compare interpreters by path.
pub fn on_path(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return std::path::absolute(program).ok().filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_in_a_package_finds_its_interpreter() {
        let dir = tempfile::tempdir().expect("a directory");
        let (bin, package) = (
            dir.path().join("bin"),
            dir.path().join("lib/python3.12/site-packages/dayfly/bin"),
        );
        std::fs::create_dir_all(&bin).expect("made");
        std::fs::create_dir_all(&package).expect("made");
        let program = package.join("dayfly");
        assert_eq!(of_package(&program), None);
        for name in ["python", "python3", "python3.12"] {
            std::fs::write(bin.join(name), "").expect("written");
            assert_eq!(of_package(&program), Some(bin.join(name)));
        }
        assert_eq!(of_package(&dir.path().join("target/debug/dayfly")), None);
    }
}
