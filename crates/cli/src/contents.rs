//! The content store of a manager, as its command line says.

use std::time::Duration;

use clap::Args;
use dayfly_manager::Options;
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::Place;

use crate::values;

/// The least that results are kept.
const SHORTEST: Duration = Duration::from_secs(3600);

/// What `dayfly up` and `dayfly manager` have in common.
#[derive(Debug, Args)]
pub struct ContentArguments {
    /// Where long arguments and results of tasks are kept: s3://BUCKET/PREFIX, with AWS_* variables for the rest, or
    /// file:///DIR [default: a directory in the state directory]
    #[arg(long, value_name = "URL", env = "DAYFLY_CONTENTS", hide_env_values = true)]
    contents: Option<String>,
    /// How much of them each tenant may have, such as 500G
    #[arg(long, value_name = "SIZE", default_value = "256G", value_parser = values::size)]
    most_contents: u64,
    /// How long tasks and their results are kept after their end, such as 12h or 30d; an hour at least
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = values::duration)]
    keep_results: Duration,
    /// How long entries of the audit log are kept, such as 90d
    #[arg(long, value_name = "DURATION", default_value = "400d", value_parser = values::duration)]
    keep_audit: Duration,
    /// How much of the audit log is kept: the oldest entries go first
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::size)]
    most_audit: u64,
    /// Start although the store is empty, older than it was, damaged or another one, and go on with what is there
    #[arg(long)]
    accept_loss: bool,
}

impl ContentArguments {
    pub fn apply(&self, options: &mut Options) -> Result<(), Failure> {
        options.contents = self.contents.as_deref().map(Place::parse).transpose()?;
        options.most_content_bytes = self.most_contents;
        options.keep_audit = self.keep_audit;
        options.most_audit_bytes = self.most_audit;
        options.accept_loss = self.accept_loss;
        if self.keep_results < SHORTEST {
            let text = "results are kept for an hour at least, so that whoever waits for them can fetch them";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        options.keep_results = self.keep_results;
        Ok(())
    }
}
