//! The record of an endpoint's jobs, which the next process of the endpoint continues with.

use std::path::Path;

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

/// The record of the jobs, in the endpoint's directory.
const FILE: &str = "blocks.json";

/// The contents of the file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobFile {
    /// Number of the last block.
    pub last: u64,
    pub blocks: Vec<BlockRecord>,
}

/// One block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    pub name: String,
    /// Id of the job; empty while it is being submitted.
    pub job: String,
    pub nodes: u32,
    pub submitted_at_ms: u64,
    /// 0 before the start.
    pub started_at_ms: u64,
}

impl JobFile {
    /// Reads the file in an endpoint's directory. Returns an empty record if there is none.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| error.to_string()),
        };
        text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))
            .map_err(|error| {
                let path = path.display();
                let text =
                    format!("{path} cannot be read: {error}; look for jobs of this endpoint, and remove the file");
                Failure::new(Code::StoreFailed, text)
            })
    }

    /// Replaces the file. An error is logged.
    pub fn write(&self, directory: &Path) {
        let path = directory.join(FILE);
        let fresh = path.with_extension("new");
        let written = serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::from)
            .and_then(|json| std::fs::write(&fresh, json))
            .and_then(|()| std::fs::rename(&fresh, &path));
        if let Err(error) = written {
            tracing::error!(path = %path.display(), %error, "the record of the jobs cannot be written");
        }
    }
}
