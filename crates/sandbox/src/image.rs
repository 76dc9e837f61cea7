//! Images: root file systems for sandboxes of level `container`, in the forms that sites have.
//!
//! A container runtime only looks an image up and unpacks it, once for each image; it starts nothing. A process in an
//! image runs like every isolated process ([`crate::isolation`]). Nothing is pulled from a network: the node's owner
//! installs the images.
//!
//! | written as | meaning |
//! |---|---|
//! | the path of a directory | a root file system, used in place: of debootstrap, Charliecloud, an Apptainer sandbox |
//! | the path of a file, `.sqfs`, `.squashfs` | a root file system packed by Charliecloud or `mksquashfs`; needs `unsquashfs` |
//! | the path of a file, `.sif` | an image of Apptainer; needs `apptainer` or `singularity` |
//! | a name | an image in Podman's storage or, without Podman, in Charliecloud's |

mod unpack;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};

use crate::tool::{self, Tool, ToolError};
pub use unpack::Limits;

/// Longest name or path of an image, in bytes.
const MAX_REFERENCE_BYTES: usize = 1024;
/// Limit for looking an image up, which takes a fraction of a second.
const QUICK: Duration = Duration::from_secs(60);
/// Limit for unpacking, which takes minutes for the largest images on slow disks.
const LONG: Duration = Duration::from_secs(1800);
/// Label of the containers that are created to export an image's files. They are never started.
const LABEL: &str = "dayfly.node";
/// File with the variables of an image, by Charliecloud and others.
const VARIABLES: &str = "ch/environment";
/// Start script of an image, by Apptainer and others.
const SCRIPT: &str = ".singularity.d/runscript";
/// Variable that contains the image's entry point, in JSON.
const ENTRY_POINT: &str = "DAYFLY_ENTRY_POINT";
/// Longest file of variables, in bytes.
const MAX_VARIABLES_BYTES: u64 = 64 << 10;

/// Why an image is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a valid name or path.
    #[error("`{0}` is no image: {1}")]
    Reference(String, &'static str),
    /// No program to look names up.
    #[error(
        "`{0}` is the name of an image, and the node has neither Podman nor Charliecloud on its PATH; install one there, or name \
         the directory of a root file system"
    )]
    NoRuntime(String),
    /// No image of this name.
    #[error("the node has no image `{name}` ({why}); nodes pull nothing by themselves: their owner puts images there")]
    NotThere {
        /// The requested name.
        name: String,
        /// The program's message.
        why: String,
    },
    /// A program is missing or failed.
    #[error("the node cannot use the image: {0}")]
    Tool(#[from] ToolError),
    /// The image exceeds [`Limits`].
    #[error("the image is too large: {0}; make it smaller, or unpack it and name the directory")]
    TooLarge(String),
    /// Not a root file system.
    #[error("the image does not unpack: {0}")]
    Broken(String),
    /// A system call failed.
    #[error("the image cannot be kept: {0}; has the node room in its state directory?")]
    System(#[from] std::io::Error),
}

/// A checked name of an image, which is safe to pass to programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A directory or file.
    Path(PathBuf),
    /// A name in the storage of a container runtime.
    Name(String),
}

impl Reference {
    /// Parses a reference: an absolute path, or a name such as `registry.example.org/project/tool:1.2`.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        // Show only a part: it may be anything.
        let wrong = |why| Err(ImageError::Reference(text.chars().take(100).collect(), why));
        if text.is_empty() || text.len() > MAX_REFERENCE_BYTES {
            return wrong("give a name or a path of at most 1,024 bytes");
        }
        if text.starts_with('/') {
            let path = Path::new(text);
            let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
            return match path.parent().is_some() && path.components().all(is_plain) && !text.contains('\0') {
                true => Ok(Self::Path(path.into())),
                false => wrong("give an absolute path without `..`, and not the root directory itself"),
            };
        }
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
        let parts = text.split('/');
        match text.bytes().all(is_fine)
            && parts
                .into_iter()
                .all(|part| part.starts_with(|first: char| first.is_ascii_alphanumeric()))
        {
            true => Ok(Self::Name(text.into())),
            false => wrong(
                "a name is of letters, digits and any of `._-/:@`, and every part of it begins with a letter or digit",
            ),
        }
    }
}

/// An available image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Changes whenever the image does.
    pub mark: String,
    name: String,
    form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    InPlace(PathBuf),
    Podman {
        id: String,
        digest: String,
        bytes: u64,
        environment: Vec<(String, String)>,
    },
    Packed {
        path: PathBuf,
        tool: &'static str,
    },
}

/// An image that sandboxes can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Its root directory, without a symbolic link in the path.
    pub root: PathBuf,
    /// Exact identity: `NAME@sha256:...`, or the path of an image that is used in place and may change.
    pub described: String,
    /// Variables for its programs.
    pub environment: Vec<(String, String)>,
}

/// Looks for an image, without unpacking it. Takes less than a minute.
pub fn find(reference: &Reference) -> Result<Found, ImageError> {
    match reference {
        Reference::Path(path) => find_path(path),
        Reference::Name(name) if tool::exists("podman") => find_in_podman(name),
        Reference::Name(name) if tool::exists("ch-run") => find_in_charliecloud(name),
        Reference::Name(name) => Err(ImageError::NoRuntime(name.clone())),
    }
}

fn find_path(path: &Path) -> Result<Found, ImageError> {
    let name = path.display().to_string();
    let not_there = |error: std::io::Error| ImageError::NotThere {
        name: name.clone(),
        why: error.to_string(),
    };
    let real = path.canonicalize().map_err(not_there)?;
    let metadata = real.metadata().map_err(not_there)?;
    let kind = real.extension().unwrap_or_default().to_string_lossy().into_owned();
    let tool = match kind.as_str() {
        _ if metadata.is_dir() => {
            let (mark, form) = (name.clone(), Form::InPlace(real));
            return Ok(Found { mark, name, form });
        }
        "sqfs" | "squashfs" => "unsquashfs",
        "sif" if tool::exists("singularity") && !tool::exists("apptainer") => "singularity",
        "sif" => "apptainer",
        _ => {
            return Err(ImageError::Reference(
                name,
                "name a directory, or a file whose name ends in .sqfs or .sif",
            ));
        }
    };
    let times = (
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    );
    let mark = format!(
        "{name} {} {} {} {times:?}",
        metadata.dev(),
        metadata.ino(),
        metadata.len()
    );
    let form = Form::Packed { path: real, tool };
    Ok(Found { mark, name, form })
}

fn find_in_podman(name: &str) -> Result<Found, ImageError> {
    let never = AtomicBool::new(false);
    let said = podman(QUICK, &never).words(&["image", "inspect", "--", name]);
    let said = said.map_err(|error| match error {
        ToolError::Failed { why, .. } => ImageError::NotThere {
            name: name.into(),
            why: format!("Podman says: {why}"),
        },
        other => other.into(),
    })?;
    let strange = || ToolError::Failed {
        tool: "podman image inspect".into(),
        why: "what it says of the image is not understood; is it an old release?".into(),
    };
    let all: serde_json::Value = serde_json::from_str(&said).map_err(|_| strange())?;
    let image = &all[0];
    let text = |value: &serde_json::Value| value.as_str().map(str::to_string);
    // The id is passed to Podman again, and becomes part of a path.
    let is_hash = |id: &String| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = text(&image["Id"]).filter(is_hash).ok_or_else(strange)?;
    let digest = text(&image["Digest"]).unwrap_or_else(|| format!("sha256:{id}"));
    let variables = image["Config"]["Env"].as_array().map(Vec::as_slice).unwrap_or_default();
    let variables = variables.iter().filter_map(|one| variable(one.as_str()?));
    let environment = variables.chain(entry_point(&image["Config"])).collect();
    Ok(Found {
        // Copies of an earlier release have no entry point.
        mark: format!("podman {id} 2"),
        name: name.into(),
        form: Form::Podman {
            digest,
            bytes: image["Size"].as_u64().unwrap_or(0),
            environment,
            id,
        },
    })
}

fn podman(limit: Duration, stop: &AtomicBool) -> Tool<'_> {
    let name = OsStr::new("podman");
    Tool { name, limit, stop }
}

/// Charliecloud keeps its images unpacked; they are used in place.
fn find_in_charliecloud(name: &str) -> Result<Found, ImageError> {
    let storage = std::env::var_os("CH_IMAGE_STORAGE").map(PathBuf::from);
    let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
    let storage = storage.unwrap_or_else(|| format!("/var/tmp/{user}.ch").into());
    let root = storage.join("img").join(name.replace('/', "%").replace(':', "+"));
    let root = root.canonicalize().map_err(|error| ImageError::NotThere {
        name: name.into(),
        why: format!("Charliecloud has no {}: {error}", root.display()),
    })?;
    Ok(Found {
        mark: root.display().to_string(),
        name: name.into(),
        form: Form::InPlace(root),
    })
}

impl Found {
    /// Whether it is used in place, without unpacking.
    pub fn is_in_place(&self) -> bool {
        matches!(self.form, Form::InPlace(_))
    }

    /// Unpacks the image into the new directory `into`, unless it is used in place. First removes what a killed
    /// unpacking of the same `owner` left, so an owner must unpack one image at a time. Returns an error soon after
    /// `stop` becomes true.
    pub fn unpack(&self, into: &Path, limits: &Limits, owner: &str, stop: &AtomicBool) -> Result<Unpacked, ImageError> {
        match &self.form {
            Form::InPlace(root) => Ok(Unpacked {
                root: root.clone(),
                described: self.name.clone(),
                environment: variables_within(root),
            }),
            Form::Podman {
                id,
                digest,
                bytes,
                environment,
            } => {
                limits.check(*bytes, 0)?;
                std::fs::create_dir(into)?;
                unpack_from_podman(id, into, limits, owner, stop)?;
                Ok(Unpacked {
                    root: into.canonicalize()?,
                    described: pinned(&self.name, digest),
                    environment: environment.clone(),
                })
            }
            Form::Packed { path, tool } => {
                let digest = format!("sha256:{}", digest_of(path)?);
                let (to, from) = (into.display().to_string(), path.display().to_string());
                let arguments: &[&str] = match *tool {
                    "unsquashfs" => &["-no-progress", "-quiet", "-no-xattrs", "-dest", &to, &from],
                    _ => &["build", "--sandbox", &to, &from],
                };
                let tool = Tool {
                    name: OsStr::new(tool),
                    limit: LONG,
                    stop,
                };
                tool.words(arguments)?;
                unpack::open_to_all(into, limits)?;
                let root = into.canonicalize()?;
                Ok(Unpacked {
                    described: pinned(&self.name, &digest),
                    environment: variables_within(&root),
                    root,
                })
            }
        }
    }
}

/// A name that always means exactly this image.
fn pinned(name: &str, digest: &str) -> String {
    match name.ends_with(digest) {
        true => name.into(),
        false => format!("{name}@{digest}"),
    }
}

fn unpack_from_podman(
    id: &str,
    into: &Path,
    limits: &Limits,
    owner: &str,
    stop: &AtomicBool,
) -> Result<(), ImageError> {
    tidy(owner)?;
    // Podman exports files only from containers, so create one without starting it.
    let label = format!("{LABEL}={owner}");
    let create = [
        "create",
        "--pull=never",
        "--network=none",
        "--label",
        &label,
        "--",
        id,
        "none",
    ];
    let container = podman(QUICK, stop).words(&create)?;
    let container = container.lines().last().unwrap_or_default();
    let unpacked = podman(LONG, stop).run(&["export", "--", container], |out| unpack::tar(out, into, limits));
    let removed = tidy(owner);
    unpacked?;
    removed
}

/// Removes what an unpacking of a killed node left in Podman's storage.
pub fn tidy(owner: &str) -> Result<(), ImageError> {
    if !tool::exists("podman") {
        return Ok(());
    }
    let never = AtomicBool::new(false);
    let podman = podman(QUICK, &never);
    let left = podman.words(&["ps", "--all", "--quiet", "--filter", &format!("label={LABEL}={owner}")])?;
    for container in left.lines() {
        podman.words(&["rm", "--force", "--", container])?;
    }
    Ok(())
}

fn digest_of(path: &Path) -> Result<String, ImageError> {
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            length => hash.update(&chunk[..length]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The variable with an image's entry point, if it has one.
fn entry_point(config: &serde_json::Value) -> Option<(String, String)> {
    let words = |what: &str| {
        let words = config[what].as_array().map(Vec::as_slice).unwrap_or_default();
        Vec::from_iter(words.iter().filter_map(serde_json::Value::as_str))
    };
    let (program, command) = (words("Entrypoint"), words("Cmd"));
    let directory = config["WorkingDir"].as_str().unwrap_or_default();
    let all = [&program[..], &command[..], &[directory]].concat();
    let is_nothing = program.is_empty() && command.is_empty();
    let is_fine = !is_nothing && !all.iter().any(|word| word.contains('\0'));
    is_fine.then(|| started_by(&program, &command, directory))
}

fn started_by(program: &[&str], command: &[&str], directory: &str) -> (String, String) {
    let start = serde_json::json!({ "entry_point": program, "command": command, "directory": directory });
    (ENTRY_POINT.into(), start.to_string())
}

/// Variables and entry point of an image without a description, from files within it.
fn variables_within(root: &Path) -> Vec<(String, String)> {
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
        .then(|| started_by(&[&format!("/{SCRIPT}")], &[], ""));
    variables.chain(script).collect()
}

fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // An image must not set Dayfly's own variables.
    let is_its_own = !name.is_empty() && name.bytes().all(is_fine) && !name.starts_with("DAYFLY_");
    (is_its_own && !value.contains('\0')).then(|| (name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_read_and_options_and_ways_out_are_not() {
        for name in [
            "debian:12",
            "localhost/a_b/c.d:1-2",
            "x@sha256:00ff",
            "registry.example.org:5000/p/t",
        ] {
            assert_eq!(Reference::parse(name).unwrap(), Reference::Name(name.into()));
        }
        assert_eq!(
            Reference::parse("/images/a").unwrap(),
            Reference::Path("/images/a".into())
        );
        let long = "a".repeat(2000);
        for wrong in [
            "",
            "-x",
            "--privileged",
            "a/-x",
            "..",
            "../a",
            "a/../b",
            "a//b",
            "a b",
            "a\nb",
            "a;b",
            "$(x)",
            "./a",
            "/",
            "/a/../b",
            "/a\0b",
            "a\0b",
            "~/x",
            ".hidden",
            "é",
            &long,
        ] {
            let error = Reference::parse(wrong).unwrap_err();
            assert!(matches!(error, ImageError::Reference(..)), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn a_directory_is_used_where_it_lies_and_tells_its_variables() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("ch")).unwrap();
        std::fs::write(
            root.join(VARIABLES),
            "PATH=/opt/bin\nDAYFLY_X=1\nno variable\n=x\nA=b=c\n",
        )
        .unwrap();
        let found = find(&Reference::Path(root.clone())).unwrap();
        assert!(found.is_in_place());
        let unpacked = found
            .unpack(Path::new("/nowhere"), &Limits::default(), "me", &AtomicBool::new(false))
            .unwrap();
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(unpacked.environment, [pair("PATH", "/opt/bin"), pair("A", "b=c")]);
        assert_eq!(unpacked.root, root);
        // A link of the image is not followed.
        std::fs::remove_file(root.join(VARIABLES)).unwrap();
        std::os::unix::fs::symlink("/proc/self/environ", root.join(VARIABLES)).unwrap();
        assert_eq!(variables_within(&root), []);
    }

    #[test]
    fn what_is_no_image_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(find(&Reference::Path(file)), Err(ImageError::Reference(..))));
        let nowhere = find(&Reference::Path(dir.path().join("none"))).unwrap_err();
        assert!(nowhere.to_string().contains("none"), "{nowhere}");
    }
}
