//! The `/etc` of sandboxes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Entries of the host's `/etc` that programs read; none of them names the host's users.
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
/// Makes a directory for sandboxes' `/etc`. It has copies, because one mount is much faster than a dozen.
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
        // Copy the target of a link, such as the local time's; links within a directory stay links.
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
    // Files that are not readable for all users of the host are left out.
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

/// Makes a copy readable for all, whatever the node's umask is: sandboxes run as other users.
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
