//! Which executor suits a request, and the check of a started one.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dayfly_protocol::api::Runtime;
use dayfly_protocol::environment::Environment;
use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::tool::{Tool, ToolError};

use crate::executors::Language;

/// Prints an interpreter's version.
const VERSION: &str = "import sys; print('%d.%d' % sys.version_info[:2])";
/// Prints it too, if the interpreter has the modules that an executor imports.
const PACKAGE: &str = "import sys, importlib.util as u\n\
    version = '%d.%d' % sys.version_info[:2]\n\
    if sys.version_info < (3, 11): sys.exit('Python ' + version + ' is older than 3.11')\n\
    for name in 'dayfly', 'cloudpickle':\n    \
        if u.find_spec(name) is None: sys.exit('this Python ' + version + ' has no package ' + name)\n\
    print(version)";
/// Limit for the interpreter's start.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// The language runtime for a request. A client's own interpreter is used if it exists here and workers may see it
/// (`sees`). Workers that see everything could start it anyway, so naming it grants nothing new.
pub fn language(runtime: &Runtime, pythons: &[PathBuf], sees: impl Fn(&Path) -> bool) -> Result<Language, Failure> {
    match runtime {
        Runtime::Native => Ok(Language::Native),
        Runtime::Python {
            executable,
            path,
            version,
            ..
        } => {
            let theirs = executable.as_ref().map(PathBuf::from);
            let theirs = theirs.filter(|path| path.is_absolute() && path.is_file());
            let theirs = theirs.filter(|path| pythons.contains(path) || sees(path));
            let local = theirs.is_some();
            let named = || {
                pythons
                    .iter()
                    .find(|python| name_matches(python, version))
                    .or(pythons.first())
            };
            let executable = theirs.or_else(|| named().cloned()).ok_or_else(|| {
                Failure::new(
                    Code::PythonMismatch,
                    match executable {
                        Some(executable) => format!(
                            "the client runs Python {version} at `{executable}`, which workers of this node do not see, and the node \
                             has no Python of its own; start it with --python PATH of a Python {} that has the dayfly package",
                            minor(version)
                        ),
                        None => "this node has no Python of its own; start it with --python PATH of an interpreter that has \
                                 the dayfly package"
                            .into(),
                    },
                )
            })?;
            Ok(Language::Python {
                executable,
                path: if local { path.clone() } else { Vec::new() },
                environment: None,
            })
        }
    }
}

/// Whether an interpreter's name, such as `python3.12`, matches a version, such as `3.12.1`.
fn name_matches(python: &Path, version: &str) -> bool {
    let name = python.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("python").is_some_and(|named| named == minor(version))
}

/// `major.minor` of an interpreter, as it reports it.
pub fn version_of(python: &Path, stop: &AtomicBool) -> Result<String, ToolError> {
    let tool = Tool {
        name: python.as_os_str(),
        limit: VERSION_LIMIT,
        stop,
    };
    tool.output(&["-I", "-c", VERSION])
}

/// `major.minor` of an interpreter that has the modules of executors. Its own module path counts, as for executors.
pub fn package_version(python: &Path) -> Result<String, ToolError> {
    let never = AtomicBool::new(false);
    let tool = Tool {
        name: python.as_os_str(),
        limit: VERSION_LIMIT,
        stop: &never,
    };
    tool.output(&["-c", PACKAGE])
}

/// Returns an error if no interpreter that such nodes would start can read the runtime's pickles: neither the client's
/// own, if workers may see it, nor one of theirs. Interpreters that are not on this machine are not checked.
pub fn check_version(runtime: &Runtime, pythons: &[PathBuf], sees: impl Fn(&Path) -> bool) -> Result<(), Failure> {
    let Runtime::Python {
        version,
        executable,
        environment: None,
        ..
    } = runtime
    else {
        return Ok(());
    };
    let theirs = executable.as_deref().map(Path::new);
    if version.is_empty() || theirs.is_some_and(|path| path.is_absolute() && path.is_file() && sees(path)) {
        return Ok(());
    }
    let never = AtomicBool::new(false);
    let versions: Result<Vec<String>, ToolError> = pythons.iter().map(|python| version_of(python, &never)).collect();
    let wanted = minor(version);
    match versions {
        Ok(versions) if !versions.is_empty() && versions.iter().all(|version| version != wanted) => Err(Failure::new(
            Code::PythonMismatch,
            format!(
                "the function is pickled by Python {version}, and nodes there run Python {}, which does not read it; name an \
                 environment (`environment=[...]`), which nodes build with Python {wanted}, or use Python {} here, or register \
                 the function as source (source=True)",
                versions.join(" and "),
                versions.join(" or ")
            ),
        )),
        _ => Ok(()),
    }
}

/// `3.11` of `3.11.7`.
pub fn minor(version: &str) -> &str {
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    &version[..end]
}

/// `major.minor` of an environment's Python, for a client of this version; empty if the node may choose.
pub fn python_of<'a>(environment: &'a Environment, version: &'a str) -> &'a str {
    match environment.python.as_str() {
        "" => minor(version),
        python => python,
    }
}

/// Returns an error unless an executor with this description can read the client's pickles.
pub fn check(wanted: &Runtime, described: &str) -> Result<(), Failure> {
    let Runtime::Python {
        version, cloudpickle, ..
    } = wanted
    else {
        return Ok(());
    };
    // Source code suits every version.
    if version.is_empty() {
        return Ok(());
    }
    let mut words = described.split_whitespace();
    let mut after = |name: &str| {
        words
            .find(|word| *word == name)
            .and_then(|_| words.next())
            .unwrap_or("unknown")
    };
    let (python, pickler) = (after("python"), after("cloudpickle"));
    let major = |version: &str| version.split('.').next().unwrap_or_default().to_string();
    if minor(python) != minor(version) {
        return Err(Failure::new(
            Code::PythonMismatch,
            format!(
                "the client runs Python {version} and this node's workers Python {python}, which do not read each other's \
                 functions; start the node with --python of a Python {}, or use Python {} in the client",
                minor(version),
                minor(python)
            ),
        ));
    }
    if major(pickler) != major(cloudpickle) {
        return Err(Failure::new(
            Code::PythonMismatch,
            format!(
                "the client has cloudpickle {cloudpickle} and this node's workers cloudpickle {pickler}; install the same \
                 major version on both"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(version: &str) -> Runtime {
        Runtime::Python {
            version: version.into(),
            cloudpickle: "3.1.0".into(),
            executable: None,
            path: Vec::new(),
            environment: None,
            code: None,
        }
    }

    #[test]
    fn other_minor_python_version_is_refused() {
        let failure = check(&python("3.12.1"), "python 3.11.7 cloudpickle 3.1.1").unwrap_err();
        assert_eq!(failure.code, Code::PythonMismatch);
        assert!(failure.message.contains("3.12.1") && failure.message.contains("3.11.7"));
        assert!(check(&python("3.11.2"), "python 3.11.7 cloudpickle 3.1.1").is_ok());
    }

    #[test]
    fn other_major_cloudpickle_version_is_refused() {
        let failure = check(&python("3.11.2"), "python 3.11.7 cloudpickle 2.0.0").unwrap_err();
        assert!(failure.message.contains("3.1.0") && failure.message.contains("2.0.0"));
    }

    #[test]
    fn python_version_without_interpreter_at_site_is_refused() {
        let own = |_: &Path| true;
        let site = [PathBuf::from("python3")];
        let there = version_of(&site[0], &AtomicBool::new(false)).unwrap();
        assert_eq!(check_version(&python(&format!("{there}.1")), &site, own), Ok(()));
        let failure = check_version(&python("3.7.1"), &site, own).unwrap_err();
        assert_eq!(failure.code, Code::PythonMismatch);
        assert!(failure.message.contains("3.7.1") && failure.message.contains(&there));
        // Interpreters elsewhere are not checked.
        assert_eq!(
            check_version(&python("3.7.1"), &["/nowhere/python".into()], own),
            Ok(())
        );
        assert_eq!(check_version(&python("3.7.1"), &[], own), Ok(()));
        assert_eq!(check_version(&Runtime::any_python(), &site, own), Ok(()));
        // A client's own interpreter is used where that is permitted.
        let mut theirs = python("3.7.1");
        if let Runtime::Python { executable, .. } = &mut theirs {
            *executable = Some("/bin/sh".into());
        }
        assert_eq!(check_version(&theirs, &site, own), Ok(()));
        assert!(check_version(&theirs, &site, |_| false).is_err());
    }

    #[test]
    fn environment_python_defaults_to_the_functions_version() {
        let of = |python: &str| Environment {
            python: python.into(),
            requirements: Vec::new(),
        };
        assert_eq!(python_of(&of(""), "3.11.7"), "3.11");
        assert_eq!(python_of(&of("3.12"), "3.11.7"), "3.12");
        assert_eq!(python_of(&of(""), ""), "");
    }

    #[test]
    fn missing_python_error_names_the_option() {
        let failure = language(&python("3.11.2"), &[], |_| true).unwrap_err();
        assert_eq!(failure.code, Code::PythonMismatch);
        assert!(failure.message.contains("--python"));
    }

    #[test]
    fn interpreter_named_after_wanted_version_is_chosen() {
        let pythons = ["/usr/bin/python3.11".into(), "/usr/bin/python3.12".into()];
        let Ok(Language::Python { executable, .. }) = language(&python("3.12.4"), &pythons, |_| true) else {
            panic!("a Python was due");
        };
        assert_eq!(executable, Path::new("/usr/bin/python3.12"));
    }
}
