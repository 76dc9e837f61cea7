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

mod podman;
mod unpack;
mod variables;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::tool::{self, Tool, ToolError};
pub use podman::remove_containers;
pub use unpack::Limits;
use variables::variables_within;

/// Longest name or path of an image, in bytes.
const MAX_REFERENCE_BYTES: usize = 1024;
/// Limit for looking an image up, which takes a fraction of a second.
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// Limit for unpacking, which takes minutes for the largest images on slow disks.
const LONG_LIMIT: Duration = Duration::from_secs(1800);

/// Why an image is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a valid name or path.
    #[error("`{0}` is not an image: {1}")]
    Reference(String, &'static str),
    /// No program to look names up.
    #[error(
        "`{0}` is the name of an image, and the node has neither Podman nor Charliecloud on its PATH; install one there, or name \
         the directory of a root file system"
    )]
    NoRuntime(String),
    /// No image of this name.
    #[error("the node has no image `{name}` ({why}); nodes never pull images: ask the node's owner to install it")]
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
    #[error("the image cannot be unpacked: {0}")]
    Broken(String),
    /// A system call failed.
    #[error("the image cannot be stored: {0}; check the free space of the node's state directory")]
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
pub struct ImageSource {
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
pub struct UnpackedImage {
    /// Its root directory, without a symbolic link in the path.
    pub root: PathBuf,
    /// Exact identity: `NAME@sha256:...`, or the path of an image that is used in place and may change.
    pub described: String,
    /// Variables for its programs.
    pub environment: Vec<(String, String)>,
}

/// Looks for an image, without unpacking it. Takes less than a minute.
pub fn find(reference: &Reference) -> Result<ImageSource, ImageError> {
    match reference {
        Reference::Path(path) => find_path(path),
        Reference::Name(name) if tool::exists("podman") => podman::find(name),
        Reference::Name(name) if tool::exists("ch-run") => find_in_charliecloud(name),
        Reference::Name(name) => Err(ImageError::NoRuntime(name.clone())),
    }
}

fn find_path(path: &Path) -> Result<ImageSource, ImageError> {
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
            return Ok(ImageSource { mark, name, form });
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
    Ok(ImageSource { mark, name, form })
}

/// Charliecloud keeps its images unpacked; they are used in place.
fn find_in_charliecloud(name: &str) -> Result<ImageSource, ImageError> {
    let storage = std::env::var_os("CH_IMAGE_STORAGE").map(PathBuf::from);
    let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
    let storage = storage.unwrap_or_else(|| format!("/var/tmp/{user}.ch").into());
    let root = storage.join("img").join(name.replace('/', "%").replace(':', "+"));
    let root = root.canonicalize().map_err(|error| ImageError::NotThere {
        name: name.into(),
        why: format!("Charliecloud has no {}: {error}", root.display()),
    })?;
    Ok(ImageSource {
        mark: root.display().to_string(),
        name: name.into(),
        form: Form::InPlace(root),
    })
}

impl ImageSource {
    /// Whether it is used in place, without unpacking.
    pub fn is_in_place(&self) -> bool {
        matches!(self.form, Form::InPlace(_))
    }

    /// Unpacks the image into the new directory `into`, unless it is used in place. First removes what a killed
    /// unpacking of the same `owner` left, so an owner must unpack one image at a time. Returns an error soon after
    /// `stop` becomes true.
    pub fn unpack(
        &self,
        into: &Path,
        limits: &Limits,
        owner: &str,
        stop: &AtomicBool,
    ) -> Result<UnpackedImage, ImageError> {
        match &self.form {
            Form::InPlace(root) => Ok(UnpackedImage {
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
                podman::unpack(id, into, limits, owner, stop)?;
                Ok(UnpackedImage {
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
                    limit: LONG_LIMIT,
                    stop,
                };
                tool.output(arguments)?;
                unpack::open_to_all(into, limits)?;
                let root = into.canonicalize()?;
                Ok(UnpackedImage {
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

#[cfg(test)]
mod tests {
    use super::variables::VARIABLES;
    use super::*;

    #[test]
    fn image_reference_with_option_or_escape_is_refused() {
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
    fn directory_image_is_used_in_place_with_variables() {
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
    fn invalid_image_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(find(&Reference::Path(file)), Err(ImageError::Reference(..))));
        let nowhere = find(&Reference::Path(dir.path().join("none"))).unwrap_err();
        assert!(nowhere.to_string().contains("none"), "{nowhere}");
    }
}
