//! The files in a node's state directory.

use super::*;

/// The id of a node is derived from its key, so it needs no file and cannot be taken over.
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
            private_file::write(path, &key.to_pkcs8()).map_err(state)?;
            Ok(key)
        }
        Err(error) => Err(state(error)),
    }
}

pub(super) fn make_private(path: &Path) -> Result<(), NodeError> {
    private_file::make_directory(path).map_err(|error| NodeError::State {
        path: path.into(),
        error,
    })
}
