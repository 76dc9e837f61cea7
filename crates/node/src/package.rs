//! Dayfly's Python package, which is shown in images: they have the interpreter, and the node has the package.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::isolation::BindMount;
use dayfly_sandbox::tool::Tool;

use crate::executors::ExternalProgram;

/// Path of the package inside an image.
pub const PYTHON_DIR: &str = "/dayfly/python";
/// Modules that executors import beside the interpreter's own library.
const MODULES: [&str; 2] = ["dayfly", "cloudpickle"];
/// Prints the modules' directories, without running the modules.
const FIND_MODULES: &str = "import sys, importlib.util as u\n\
    for name in sys.argv[1:]:\n    print(u.find_spec(name).submodule_search_locations[0])";
/// Limit for the interpreter's start.
const LIMIT: Duration = Duration::from_secs(10);

/// Paths of the package, by interpreter.
#[derive(Debug, Default)]
pub struct Packages {
    known: Mutex<HashMap<PathBuf, Vec<BindMount>>>,
}

impl Packages {
    /// Paths to show for this interpreter's modules. The first call blocks until the interpreter has started.
    pub fn of(&self, python: &Path) -> Result<Vec<BindMount>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = known.get(python) {
            return Ok(shown.clone());
        }
        let shown = find_modules(python)?;
        known.insert(python.into(), shown.clone());
        Ok(shown)
    }
}

fn find_modules(python: &Path) -> Result<Vec<BindMount>, Failure> {
    let without = |why: &dyn std::fmt::Display| {
        let text = format!(
            "the Python package that images are shown was not found with `{}`: {why}; start the node with --python PATH of an \
             interpreter that has the dayfly module",
            python.display()
        );
        Failure::new(Code::ExecutorFailed, text)
    };
    let never = AtomicBool::new(false);
    let tool = Tool {
        name: python.as_os_str(),
        limit: LIMIT,
        stop: &never,
    };
    let _external = ExternalProgram::begin();
    let said = tool.output(&[&["-P", "-c", FIND_MODULES], MODULES.as_slice()].concat());
    let said = said.map_err(|error| without(&error))?;
    let shown = said.lines().zip(MODULES).map(|(from, name)| {
        Ok(BindMount {
            path: Path::new(PYTHON_DIR).join(name),
            from: Path::new(from).canonicalize().map_err(|error| without(&error))?,
            writable: false,
        })
    });
    shown.collect()
}
