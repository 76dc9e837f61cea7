//! The minimum cost of starting a process.

use super::Baseline;
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Starts the program `true` and waits for its end.
pub struct Spawn {
    program: PathBuf,
}

impl Spawn {
    /// Finds the program.
    pub fn new() -> Result<Self, Error> {
        let places = ["/bin/true", "/usr/bin/true"];
        match places.iter().map(PathBuf::from).find(|p| p.exists()) {
            Some(program) => Ok(Spawn { program }),
            None => Err(Error::Os {
                what: "find the program `true` in /bin or /usr/bin",
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }
}

impl Block for Spawn {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        timed(calls, samples, || {
            let mut command = Command::new(&self.program);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().map(drop).map_err(Error::os("start a process"))
        })
    }
}

impl Baseline for Spawn {
    fn name(&self) -> &str {
        "process_spawn"
    }
    fn about(&self) -> String {
        "start a process that does nothing, and wait for its end".into()
    }
}
