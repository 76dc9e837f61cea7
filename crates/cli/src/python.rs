//! Calls of Python functions by name, through the user's own interpreter, which pickles arguments and results.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use dayfly_client::{MANAGER_VARIABLE, Sandbox};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};

/// Prints the result as JSON, or as Python's `repr` if JSON cannot express it. Exits with 91 without the dayfly
/// package.
const PROGRAM: &str = r#"
import importlib, json, sys
try:
    import dayfly
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(91)
import traceback
from dayfly._text import shown
module, name, arguments, as_json, sandbox, image = sys.argv[1:]
sys.argv[1:] = []
sys.excepthook = lambda *error: sys.stderr.write(shown("".join(traceback.format_exception(*error))))
function = importlib.import_module(module)
for part in name.split("."):
    function = getattr(function, part)
arguments = json.loads(arguments)
named = arguments if isinstance(arguments, dict) else {}
listed = [] if named else arguments if isinstance(arguments, list) else [arguments]
with dayfly.connect() as client, client.lease(sandbox=sandbox or None, image=image or None) as lease:
    result = lease.submit(function, *listed, **named).result()
if as_json == "json":
    try:
        print(json.dumps({"result": result}))
    except (TypeError, ValueError):
        print(json.dumps({"result": None, "repr": repr(result)}))
else:
    text = result if isinstance(result, str) else repr(result)
    print(shown(text) if sys.stdout.isatty() else text)
"#;
/// Exit status of programs that need a package which the interpreter lacks.
pub const NO_PACKAGE: i32 = 91;

/// Runs a program of this interpreter to its end. The program uses the same manager and this executable.
pub fn started(mut command: Command, python: &Path, global: &Global) -> Result<ExitStatus, Failure> {
    set_environment(&mut command, global);
    command.status().map_err(|error| not_started(python, &error))
}

/// Replaces this process by a program of this interpreter, as [`started`]. Returns only when that fails.
pub fn replace(mut command: Command, python: &Path, global: &Global) -> Failure {
    set_environment(&mut command, global);
    not_started(python, &command.exec())
}

fn set_environment(command: &mut Command, global: &Global) {
    if let Some(manager) = &global.manager {
        command.env(MANAGER_VARIABLE, manager);
    }
    if let Ok(binary) = std::env::current_exe() {
        command.env("DAYFLY_BIN", binary);
    }
}

/// The failure of an interpreter that does not start.
pub fn not_started(python: &Path, error: &std::io::Error) -> Failure {
    let text = format!(
        "{} cannot be started: {error}; name an interpreter that has the dayfly package by --python",
        python.display()
    );
    Failure::new(Code::InvalidRequest, text)
}

/// Returns this program's exit status for that of a child.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(1));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Calls `module:function` on a leased worker.
pub fn invoke(
    python: &Path,
    module: &str,
    function: &str,
    arguments: &str,
    sandbox: Option<Sandbox>,
    image: Option<&str>,
    global: &Global,
) -> Result<(), Failure> {
    if let Err(error) = serde_json::from_str::<serde_json::Value>(arguments) {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!("--args {arguments} is no JSON: {error}"),
        ));
    }
    let format = if global.json { "json" } else { "text" };
    let mut command = Command::new(python);
    command
        .arg("-c")
        .arg(PROGRAM)
        .args([module, function, arguments, format])
        .args([sandbox.map_or("", Sandbox::name), image.unwrap_or_default()])
        .stdin(Stdio::null());
    let status = started(command, python, global)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NO_PACKAGE) => Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "{} has no dayfly package; name an interpreter that has it by --python",
                python.display()
            ),
        )),
        _ => Err(Failure::new(
            Code::FunctionError,
            format!("{module}:{function} failed ({status}); what it wrote above says why"),
        )),
    }
}
