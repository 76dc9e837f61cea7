//! What the sandbox of a lease sees of the node: code, the node's socket, and the connector's socket.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dayfly_protocol::ids::CodeHash;

use crate::connector::Connector;
use crate::executor_sandbox;
use crate::sandbox_socket::SandboxSocket;

/// The state of one lease's sandbox. Code and the request for the socket outlive an executor.
#[derive(Debug, Default)]
pub(super) struct SandboxState {
    /// Directory of the code for isolated workers, while there is an executor.
    code_dir: Option<PathBuf>,
    /// Code that they may load.
    codes: BTreeSet<CodeHash>,
    /// Whether they see the node's socket.
    wants_socket: bool,
    socket: Option<SandboxSocket>,
    /// The connector of isolated workers without a network.
    connector: Option<Connector>,
}

impl SandboxState {
    /// Shows code from the node's store `kept` to the workers, now and in later sandboxes.
    pub fn show_code(&mut self, kept: &Path, hash: CodeHash) -> std::io::Result<()> {
        if !self.codes.insert(hash) {
            return Ok(());
        }
        match &self.code_dir {
            Some(dir) => executor_sandbox::show_code(kept, dir, &hash),
            None => Ok(()),
        }
    }

    /// Prepares `dir` as the code directory of a new executor.
    pub fn set_code_dir(&mut self, kept: &Path, dir: &Path) -> std::io::Result<()> {
        for hash in &self.codes {
            executor_sandbox::show_code(kept, dir, hash)?;
        }
        self.code_dir = Some(dir.to_path_buf());
        Ok(())
    }

    /// Keeps the connector of a new executor.
    pub fn set_connector(&mut self, connector: Option<Connector>) {
        self.connector = connector;
    }

    /// Requests the node's socket. Returns the directory to open it in now; `None` if it is open, or there is no
    /// executor.
    pub fn request_socket(&mut self) -> Option<PathBuf> {
        self.wants_socket = true;
        match &self.socket {
            Some(_) => None,
            None => self.code_dir.clone(),
        }
    }

    /// Whether a new sandbox needs the node's socket.
    pub fn wants_socket(&self) -> bool {
        self.wants_socket
    }

    /// Keeps a socket open while this directory is in use.
    pub fn set_socket(&mut self, dir: &Path, socket: SandboxSocket) {
        if self.code_dir.as_deref() == Some(dir) {
            self.socket = Some(socket);
        }
    }

    /// Closes everything after the end of an executor.
    pub fn clear(&mut self) {
        self.code_dir = None;
        self.socket = None;
        self.connector = None;
    }
}
