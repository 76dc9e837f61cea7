//! The files that make a node what it is.

use super::*;

/// A node is known by its key, so that its id needs no file of its own and nobody can take it over.
pub(super) fn id_of(key: &SigningKey) -> NodeId {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(key.public().0);
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    NodeId(id)
}

pub(super) fn load_key(path: &Path) -> Result<SigningKey, NodeError> {
    let state = |error| NodeError::State {
        path: path.into(),
        error,
    };
    match std::fs::read(path) {
        Ok(bytes) => SigningKey::from_pkcs8(&bytes).map_err(|_| NodeError::Key(path.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let seed = random().map_err(|failure| NodeError::System(std::io::Error::other(failure)))?;
            let key = SigningKey::from_seed(seed);
            write_private(path, &key.to_pkcs8()).map_err(state)?;
            Ok(key)
        }
        Err(error) => Err(state(error)),
    }
}

/// Writes a file that only this user can read, whole or not at all.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&part, path)
}

pub(super) fn make_private(path: &Path) -> Result<(), NodeError> {
    let state = |error| NodeError::State {
        path: path.into(),
        error,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(state)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(state)
}
