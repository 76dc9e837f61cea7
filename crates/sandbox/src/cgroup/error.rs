//! Why a group of a worker cannot be used.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a group of a worker cannot be made, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group was removed, with or without its worker.
    #[error("the control group of `{0}` is gone; its worker is no longer measured")]
    Vanished(PathBuf),
    /// The system refuses.
    #[error("`{file}` of a control group: {error}; may this node's user use it?")]
    Refused {
        /// The file or directory.
        file: PathBuf,
        /// The system's error.
        error: Error,
    },
    /// The file's content is not what the kernel writes.
    #[error(
        "`{file}` of a control group contains `{text}`, which is not understood; report this with the kernel's version"
    )]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Its content.
        text: String,
    },
    /// It has no group in a hierarchy with this controller.
    #[error("no control group with the controller {0} was made for this worker")]
    Missing(&'static str),
}

impl GroupError {
    /// The error of a call on a file.
    pub(super) fn of(file: &Path, error: impl Into<Error>) -> Self {
        let error = error.into();
        // Files of a removed group that are still open fail with ENODEV.
        let gone = error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
        match gone {
            true => Self::Vanished(file.to_path_buf()),
            false => Self::Refused {
                file: file.to_path_buf(),
                error,
            },
        }
    }

    /// Whether the group is gone.
    pub fn is_vanished(&self) -> bool {
        matches!(self, Self::Vanished(_))
    }

    /// Whether the kernel could not reclaim memory for a lower limit.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.kind() == ErrorKind::ResourceBusy)
    }
}
