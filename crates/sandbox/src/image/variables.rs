//! Environment variables and entry points of images.

use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// File with the variables of an image, by Charliecloud and others.
pub(super) const VARIABLES: &str = "ch/environment";
/// Start script of an image, by Apptainer and others.
const SCRIPT: &str = ".singularity.d/runscript";
/// Variable that contains the image's entry point, in JSON.
const ENTRY_POINT: &str = "DAYFLY_ENTRY_POINT";
/// Longest file of variables, in bytes.
const MAX_VARIABLES_BYTES: u64 = 64 << 10;

/// The variable with an image's entry point, if it has one.
pub(super) fn entry_point(config: &serde_json::Value) -> Option<(String, String)> {
    let words = |what: &str| {
        let words = config[what].as_array().map(Vec::as_slice).unwrap_or_default();
        Vec::from_iter(words.iter().filter_map(serde_json::Value::as_str))
    };
    let (program, command) = (words("Entrypoint"), words("Cmd"));
    let directory = config["WorkingDir"].as_str().unwrap_or_default();
    let all = [&program[..], &command[..], &[directory]].concat();
    let is_nothing = program.is_empty() && command.is_empty();
    let is_fine = !is_nothing && !all.iter().any(|word| word.contains('\0'));
    is_fine.then(|| entry_point_variable(&program, &command, directory))
}

fn entry_point_variable(program: &[&str], command: &[&str], directory: &str) -> (String, String) {
    let start = serde_json::json!({ "entry_point": program, "command": command, "directory": directory });
    (ENTRY_POINT.into(), start.to_string())
}

/// Variables and entry point of an image without a description, from files within it.
pub(super) fn variables_within(root: &Path) -> Vec<(String, String)> {
    let read = || -> std::io::Result<String> {
        let root = std::fs::File::open(root)?;
        // The image is untrusted: follow none of its links, and do not block on its files.
        let (flags, safely) = (
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        );
        let file = std::fs::File::from(rustix::fs::openat2(&root, VARIABLES, flags, Mode::empty(), safely)?);
        let mut text = String::new();
        match file.metadata()?.is_file() {
            true => file.take(MAX_VARIABLES_BYTES).read_to_string(&mut text).map(|_| text),
            false => Ok(text),
        }
    };
    let text = read().unwrap_or_default();
    let variables = text.lines().filter_map(variable);
    // The script starts only inside the image.
    let is_there = || -> std::io::Result<bool> {
        let root = std::fs::File::open(root)?;
        // Resolve its links as they would resolve inside.
        let safely = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = rustix::fs::openat2(&root, SCRIPT, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), safely)?;
        Ok(std::fs::File::from(found).metadata()?.is_file())
    };
    let script = is_there()
        .unwrap_or_default()
        .then(|| entry_point_variable(&[&format!("/{SCRIPT}")], &[], ""));
    variables.chain(script).collect()
}

/// Parses `NAME=VALUE`. Returns `None` for a name that images must not set.
pub(super) fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // An image must not set Dayfly's own variables.
    let is_its_own = !name.is_empty() && name.bytes().all(is_fine) && !name.starts_with("DAYFLY_");
    (is_its_own && !value.contains('\0')).then(|| (name.into(), value.into()))
}
