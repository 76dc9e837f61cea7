//! The root directory of a sandbox: the steps that build it, in order.

use std::ffi::{CString, OsString, c_ulong};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::{Base, BindMount, CODE_DIR, Isolation};
use crate::SandboxError;

/// Host directories that every program needs.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Hardware description, which numerical libraries read.
const MACHINE: &str = "/sys/devices/system";
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Directories that an image must not provide: the kernel's files, memory, and Dayfly's own.
const NOT_AN_IMAGES: [&str; 5] = ["/dev", "/dayfly", "/proc", "/sys", "/tmp"];
/// Most entries of an image that are shown individually: those of its root directory, and of directories into which
/// another path is shown. The root directory in memory has room for these.
const MAX_ENTRIES: usize = 2048;

/// One step. Paths are absolute on the host, beneath the stage on which they are made.
#[derive(Debug)]
pub enum Step {
    Directory(CString),
    File(CString),
    Link {
        to: CString,
        at: CString,
    },
    Memory {
        at: CString,
        options: CString,
    },
    Bind {
        from: CString,
        at: CString,
        protect: c_ulong,
    },
    Processes {
        at: CString,
    },
}

/// A root directory under construction.
pub struct Root {
    stage: PathBuf,
    pub steps: Vec<Step>,
    shown: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// Number of image entries so far.
    entries: usize,
}

pub const READ_ONLY: c_ulong = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;

impl Root {
    /// The root directory of a process that runs `program`.
    pub fn of(isolation: &Isolation, program: &Path) -> Result<Self, SandboxError> {
        let mut root = Self {
            stage: isolation.stage.clone(),
            steps: Vec::new(),
            shown: Vec::new(),
            writable: Vec::new(),
            entries: 0,
        };
        root.fill(isolation, program)?;
        Ok(root)
    }

    fn fill(&mut self, isolation: &Isolation, program: &Path) -> Result<(), SandboxError> {
        let memory = |at: &str, bytes: u64, inodes: u64| (PathBuf::from(at), bytes, inodes);
        // The root holds only directories and links; functions write into the two others.
        for (at, bytes, inodes) in [
            memory("/", 1 << 20, 4096),
            memory("/tmp", isolation.scratch_bytes, isolation.scratch_bytes >> 12),
            memory("/dev/shm", isolation.scratch_bytes, isolation.scratch_bytes >> 12),
        ] {
            self.parents(&at)?;
            if at != Path::new("/") {
                let directory = self.inside(&at)?;
                self.steps.push(Step::Directory(directory));
            }
            let mode = if at == Path::new("/") { "0755" } else { "1777" };
            let options = format!("mode={mode},size={bytes},nr_inodes={}", inodes.max(64));
            let options = CString::new(options).map_err(|_| SandboxError::ZeroByte(at.clone()))?;
            let at = self.inside(&at)?;
            self.steps.push(Step::Memory { at, options });
        }
        match &isolation.base {
            Base::Host { settings } => {
                for path in SYSTEM.iter().map(Path::new) {
                    match std::fs::read_link(path) {
                        Ok(to) => self.link(&to, path)?,
                        Err(_) if path.is_dir() => self.bind(path, path, READ_ONLY)?,
                        Err(_) => {}
                    }
                }
                self.bind(settings, Path::new("/etc"), READ_ONLY)?;
            }
            Base::Image(image) => {
                let places: Vec<&Path> = isolation.shown.iter().map(|shown| shown.path.as_path()).collect();
                self.unfold(image, Path::new("/"), &places)?;
            }
        }
        let machine = Path::new(MACHINE);
        if machine.is_dir() {
            self.bind(machine, machine, READ_ONLY)?;
        }
        for path in DEVICES.iter().map(Path::new) {
            // Device nodes of the host, which need no restriction.
            self.bind(path, path, 0)?;
        }
        for (to, at) in [
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
        ] {
            self.link(Path::new(to), Path::new(at))?;
        }
        self.bind(&isolation.code, Path::new(CODE_DIR), READ_ONLY)?;
        self.parents(Path::new("/proc/self"))?;
        let at = self.inside(Path::new("/proc"))?;
        self.steps.push(Step::Processes { at });
        let mut shown: Vec<&BindMount> = isolation.shown.iter().collect();
        // Outer paths before inner ones, so that redundant inner paths can be left out.
        shown.sort_by_key(|shown| (shown.path.components().count(), &shown.path));
        for shown in shown {
            self.show(&shown.path, &shown.from, shown.writable)?;
        }
        match &isolation.base {
            // Links resolve as for the node's user.
            Base::Host { .. } => self.show(program, &program.canonicalize()?, false),
            Base::Image(_) => Ok(()),
        }
    }

    /// Shows the contents of an image's directory. Directories above a place where another path is shown are made anew,
    /// with the image's entries in them. So nothing is made or mounted through a link of the image, which would lead
    /// into the host.
    fn unfold(&mut self, image: &Path, at: &Path, places: &[&Path]) -> Result<(), SandboxError> {
        let unreadable = |error| SandboxError::Image(image.to_path_buf(), error);
        let entries: std::io::Result<Vec<_>> = std::fs::read_dir(image).map_err(unreadable)?.collect();
        for entry in entries.map_err(unreadable)? {
            let at = at.join(entry.file_name());
            if NOT_AN_IMAGES.iter().any(|own| at == Path::new(own)) || places.contains(&at.as_path()) {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                let text = "the image has too many entries beside it; show it somewhere else";
                return Err(SandboxError::NotShown(at, text));
            }
            let kind = entry.file_type().map_err(unreadable)?;
            match places.iter().find(|place| place.starts_with(&at)) {
                Some(_) if kind.is_dir() => {
                    let directory = self.inside(&at)?;
                    self.steps.push(Step::Directory(directory));
                    self.unfold(&entry.path(), &at, places)?;
                }
                Some(place) => {
                    let text = "the image has something else than a directory above it; show it somewhere else";
                    return Err(SandboxError::NotShown(place.to_path_buf(), text));
                }
                None if kind.is_symlink() => {
                    let to = std::fs::read_link(entry.path()).map_err(unreadable)?;
                    self.link(&to, &at)?;
                }
                None if kind.is_dir() || kind.is_file() => self.mount(&entry.path(), &at, kind.is_dir(), READ_ONLY)?,
                // Leave devices and other special files out.
                None => {}
            }
        }
        Ok(())
    }

    fn show(&mut self, path: &Path, from: &Path, writable: bool) -> Result<(), SandboxError> {
        let is_plain = path.is_absolute()
            && path.parent().is_some()
            && path
                .components()
                .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !is_plain {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "give an absolute path without `..`, and not the root directory itself",
            ));
        }
        let is_kernels = |kept: &&str| path.starts_with(kept) || from.starts_with(kept);
        if ["/proc", "/sys", "/dev"].iter().any(is_kernels) {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "the kernel's own files are not shown",
            ));
        }
        if !from.exists() {
            return Err(SandboxError::NotShown(
                path.to_path_buf(),
                "there is no such file or directory",
            ));
        }
        let inside = |outer: &PathBuf| path.starts_with(outer);
        if self.writable.iter().any(inside) || (!writable && self.shown.iter().any(inside)) {
            return Ok(());
        }
        if writable {
            if self.shown.iter().any(inside) {
                // Its place exists already, in a shown directory.
                let (from, at) = (text(from)?, self.inside(path)?);
                let protect = libc::MS_NOSUID | libc::MS_NODEV;
                self.steps.push(Step::Bind { from, at, protect });
            } else {
                self.bind_exactly(from, path, libc::MS_NOSUID | libc::MS_NODEV)?;
            }
            self.writable.push(path.to_path_buf());
            return Ok(());
        }
        self.bind_exactly(from, path, READ_ONLY)
    }

    fn inside(&self, path: &Path) -> Result<CString, SandboxError> {
        let mut whole = self.stage.as_os_str().as_bytes().to_vec();
        if path != Path::new("/") {
            whole.extend(path.as_os_str().as_bytes());
        }
        text(Path::new(&OsString::from_vec(whole)))
    }

    /// Makes the directories above a path.
    fn parents(&mut self, path: &Path) -> Result<(), SandboxError> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for directory in above.into_iter().filter(|directory| *directory != Path::new("/")) {
            let directory = self.inside(directory)?;
            self.steps.push(Step::Directory(directory));
        }
        Ok(())
    }

    /// Shows a path that the node itself names. Links are followed.
    fn bind(&mut self, from: &Path, at: &Path, protect: c_ulong) -> Result<(), SandboxError> {
        self.bind_exactly(&from.canonicalize()?, at, protect)
    }

    fn bind_exactly(&mut self, from: &Path, at: &Path, protect: c_ulong) -> Result<(), SandboxError> {
        self.parents(at)?;
        self.shown.push(at.to_path_buf());
        self.mount(from, at, from.is_dir(), protect)
    }

    /// Makes a mount point and mounts over it.
    fn mount(&mut self, from: &Path, at: &Path, is_dir: bool, protect: c_ulong) -> Result<(), SandboxError> {
        let (from, at) = (text(from)?, self.inside(at)?);
        self.steps.push(match is_dir {
            true => Step::Directory(at.clone()),
            false => Step::File(at.clone()),
        });
        self.steps.push(Step::Bind { from, at, protect });
        Ok(())
    }

    fn link(&mut self, to: &Path, at: &Path) -> Result<(), SandboxError> {
        self.parents(at)?;
        let (to, at) = (text(to)?, self.inside(at)?);
        self.steps.push(Step::Link { to, at });
        Ok(())
    }
}

pub fn text(path: &Path) -> Result<CString, SandboxError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| SandboxError::ZeroByte(path.to_path_buf()))
}
