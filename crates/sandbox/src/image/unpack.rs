//! Unpacks the untrusted files of an image.

use std::fs::{Metadata, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::ImageError;

/// Bounds of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl Default for Limits {
    /// Larger than the images of whole scientific software stacks.
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            entries: 4_000_000,
        }
    }
}

impl Limits {
    /// Returns an error if either number exceeds its bound.
    pub fn check(&self, bytes: u64, entries: u64) -> Result<(), ImageError> {
        let text = match (bytes > self.bytes, entries > self.entries) {
            (true, _) => format!("{bytes} bytes, where {} are allowed", self.bytes),
            (_, true) => format!("more than {} files", self.entries),
            _ => return Ok(()),
        };
        Err(ImageError::TooLarge(text))
    }
}

/// Unpacks an archive into an empty directory: files, directories and links, readable for all users. Devices and other
/// special files are left out. An entry outside the directory is an error.
pub fn tar(archive: impl Read, into: &Path, limits: &Limits) -> Result<(), ImageError> {
    let broken = |error: std::io::Error| match error.raw_os_error() {
        // For example, the disk is full.
        Some(_) => ImageError::System(error),
        None => ImageError::Broken(error.to_string()),
    };
    let into = into.canonicalize()?;
    let mut archive = tar::Archive::new(archive);
    archive.set_unpack_xattrs(false);
    let (mut bytes, mut entries) = (0u64, 0);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        bytes = bytes.saturating_add(entry.size());
        entries += 1;
        limits.check(bytes, entries)?;
        let kind = entry.header().entry_type();
        let path = entry.path().map_err(broken)?.into_owned();
        let is_wanted =
            kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link() || kind.is_gnu_sparse();
        if !is_wanted && kind != tar::EntryType::Continuous {
            continue;
        }
        if !entry.unpack_in(&into).map_err(broken)? {
            return Err(ImageError::Broken(format!(
                "`{}` leads out of the image",
                path.display()
            )));
        }
        if kind.is_dir() {
            // A node that is not root must be able to continue in the new directory.
            let made = into.join(&path).canonicalize()?;
            if made.starts_with(&into) {
                std::fs::set_permissions(&made, Permissions::from_mode(0o755))?;
            }
        }
    }
    open_to_all(&into, limits)
}

/// Makes everything below a directory readable for all users: sandboxes run as users that the image does not know.
/// Removes special files.
pub fn open_to_all(dir: &Path, limits: &Limits) -> Result<(), ImageError> {
    let (mut bytes, mut entries) = (0u64, 0);
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        for entry in std::fs::read_dir(&dir)? {
            let (path, metadata) = {
                let entry = entry?;
                (entry.path(), entry.metadata()?)
            };
            bytes = bytes.saturating_add(metadata.len());
            entries += 1;
            limits.check(bytes, entries)?;
            let kind = metadata.file_type();
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() {
                let mode = if is_program(&metadata) { 0o755 } else { 0o644 };
                if metadata.permissions().mode() & 0o7777 != mode {
                    std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
                }
            } else if !kind.is_symlink() {
                std::fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}

fn is_program(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tar::{Builder, EntryType, Header};

    fn add(archive: &mut Builder<Vec<u8>>, kind: EntryType, mode: u32, path: &str, link: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        // Written directly: the library refuses to write hostile paths.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        archive.append(&header, content).unwrap();
    }

    /// Unpacks an archive beside a private file.
    fn unpacked(archive: Builder<Vec<u8>>, limits: &Limits) -> (tempfile::TempDir, PathBuf, Result<(), ImageError>) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "mine").unwrap();
        let result = tar(archive.into_inner().unwrap().as_slice(), &root, limits);
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        (dir, root, result)
    }

    #[test]
    fn unpacked_files_are_readable_and_devices_omitted() {
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, EntryType::Directory, 0o500, "closed/", "", b"");
        add(&mut archive, EntryType::Regular, 0o4700, "closed/program", "", b"#!");
        add(&mut archive, EntryType::Regular, 0o600, "closed/data", "", b"data");
        add(&mut archive, EntryType::Symlink, 0o777, "lib", "/usr/lib", b"");
        add(&mut archive, EntryType::Link, 0o600, "hard", "closed/data", b"");
        add(&mut archive, EntryType::Char, 0o666, "null", "", b"");
        add(&mut archive, EntryType::Fifo, 0o666, "fifo", "", b"");
        let (_dir, root, result) = unpacked(archive, &Limits::default());
        result.unwrap();
        let mode = |path: &str| root.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            [mode("closed"), mode("closed/program"), mode("closed/data")],
            [0o755, 0o755, 0o644]
        );
        assert_eq!(std::fs::read_link(root.join("lib")).unwrap(), Path::new("/usr/lib"));
        assert_eq!(std::fs::read_to_string(root.join("hard")).unwrap(), "data");
        assert!(!root.join("null").exists() && !root.join("fifo").exists());
    }

    #[test]
    fn image_that_escapes_its_root_is_refused() {
        type Make = dyn Fn(&mut Builder<Vec<u8>>);
        let hostile: [&Make; 4] = [
            &|archive| add(archive, EntryType::Regular, 0o644, "../secret", "", b"yours"),
            &|archive| {
                add(archive, EntryType::Symlink, 0o777, "out", "..", b"");
                add(archive, EntryType::Regular, 0o644, "out/secret", "", b"yours");
            },
            &|archive| {
                add(archive, EntryType::Link, 0o644, "hard", "../secret", b"");
                add(archive, EntryType::Regular, 0o644, "hard", "", b"yours");
            },
            &|archive| {
                add(archive, EntryType::Symlink, 0o777, "out", "..", b"");
                add(archive, EntryType::Directory, 0o755, "out/new/", "", b"");
            },
        ];
        for make in hostile {
            let mut archive = Builder::new(Vec::new());
            make(&mut archive);
            let (_dir, _root, result) = unpacked(archive, &Limits::default());
            assert!(matches!(result, Err(ImageError::Broken(_))), "{result:?}");
        }
    }

    #[test]
    fn image_beyond_its_limits_is_refused() {
        let small = Limits {
            bytes: 1000,
            entries: 10,
        };
        let mut archive = Builder::new(Vec::new());
        for name in ["a", "b", "c"] {
            add(&mut archive, EntryType::Regular, 0o644, name, "", &[0; 400]);
        }
        let (_dir, root, result) = unpacked(archive, &small);
        assert!(matches!(result, Err(ImageError::TooLarge(_))), "{result:?}");
        assert!(!root.join("c").exists());
        let mut archive = Builder::new(Vec::new());
        for number in 0..20 {
            add(&mut archive, EntryType::Regular, 0o644, &format!("f{number}"), "", b"");
        }
        let (_dir, _root, result) = unpacked(archive, &small);
        assert!(matches!(result, Err(ImageError::TooLarge(_))), "{result:?}");
    }

    #[test]
    fn invalid_archive_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let result = tar([7u8; 4096].as_slice(), dir.path(), &Limits::default());
        assert!(matches!(result, Err(ImageError::Broken(_))), "{result:?}");
    }
}
