//! What sandboxes find at `/etc`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What programs read of the host's settings, below `/etc`: nothing that says who works here.
const SETTINGS: [&str; 16] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "timezone",
    "nsswitch.conf",
    "host.conf",
    "hosts",
    "protocols",
    "services",
    "mime.types",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "fonts",
];
/// Makes a directory that sandboxes have as their `/etc`: copies, for one mount is made much faster than a dozen.
pub fn make_settings(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    for name in SETTINGS {
        let (from, to) = (Path::new("/etc").join(name), dir.join(name));
        if !from.exists() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // The file behind a link, such as the one to the local time; links within a directory stay links.
        copy(&from.canonicalize()?, &to)?;
    }
    let (user, group) = super::inner_ids();
    let passwd = format!("root:x:0:0:root:/:/bin/false\nworker:x:{user}:{group}:Dayfly worker:/tmp:/bin/sh\n");
    std::fs::write(dir.join("passwd"), passwd)?;
    std::fs::write(dir.join("group"), format!("root:x:0:\nworker:x:{group}:\n"))?;
    open_to_all(dir)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let metadata = std::fs::symlink_metadata(from)?;
    let kind = metadata.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(std::fs::read_link(from)?, to);
    }
    // What not everybody on the host may read is not for sandboxes either.
    if metadata.permissions().mode() & 0o004 == 0 || !(kind.is_dir() || kind.is_file()) {
        return Ok(());
    }
    if kind.is_dir() {
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    std::fs::copy(from, to).map(drop)
}

/// Whatever the node's file creation mask is: sandboxes run as somebody else.
fn open_to_all(path: &Path) -> std::io::Result<()> {
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if kind.is_dir() {
        for entry in std::fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    match kind.is_symlink() {
        true => Ok(()),
        false => std::fs::set_permissions(
            path,
            std::fs::Permissions::from_mode(if kind.is_dir() { 0o755 } else { 0o644 }),
        ),
    }
}
