//! The properties of an executor that decide which leases it can serve.

use std::path::PathBuf;
use std::sync::Arc;

use dayfly_protocol::api::Sandbox;
use dayfly_sandbox::isolation::BindMount;

use crate::environments::BuiltEnvironment;
use crate::images::Image;

/// Properties of an executor, which determine the leases that it can serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExecutorKind {
    /// Language runtime.
    pub language: Language,
    /// Its access to the host; `None` for an executor that is not isolated.
    pub host_access: Option<HostAccess>,
}

impl ExecutorKind {
    /// Isolation of its workers.
    pub fn sandbox(&self) -> Sandbox {
        match &self.host_access {
            None => Sandbox::Process,
            Some(host_access) if host_access.image.is_some() => Sandbox::Container,
            Some(_) => Sandbox::Isolated,
        }
    }

    /// Whether its workers have the host's network.
    pub fn has_network(&self) -> bool {
        self.host_access.as_ref().is_none_or(|host_access| host_access.network)
    }
}

/// What an isolated executor may see of its host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostAccess {
    /// Files and directories.
    pub shown: Vec<BindMount>,
    /// Whether it shares the network.
    pub network: bool,
    /// The image in place of the host's programs and libraries, for a container.
    pub image: Option<Arc<Image>>,
}

/// Language runtime of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Language {
    Native,
    Python {
        executable: PathBuf,
        /// Directories on its module path.
        path: Vec<String>,
        /// The built environment of the interpreter, if it belongs to one.
        environment: Option<Arc<BuiltEnvironment>>,
    },
}
