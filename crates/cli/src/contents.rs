//! Options of a manager's content store.

use std::time::Duration;

use clap::Args;
use dayfly_manager::Options;
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::StoreUrl;

use crate::values;

/// Shortest retention of results.
const SHORTEST: Duration = Duration::from_secs(3600);

/// Options shared by `dayfly up` and `dayfly manager`.
#[derive(Debug, Args)]
pub struct ContentArguments {
    /// Store for large arguments and results of tasks: s3://BUCKET/PREFIX, with AWS_* variables for the other settings,
    /// or file:///DIR [default: a directory in the state directory]
    #[arg(long, value_name = "URL", env = "DAYFLY_CONTENTS", hide_env_values = true)]
    contents: Option<String>,
    /// Limit of each tenant's stored content, such as 500G
    #[arg(long, value_name = "SIZE", default_value = "256G", value_parser = values::size)]
    most_contents: u64,
    /// Retention of tasks and results after their end, such as 12h or 30d; at least one hour
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = values::duration)]
    keep_results: Duration,
    /// Retention of audit log entries, such as 90d
    #[arg(long, value_name = "DURATION", default_value = "400d", value_parser = values::duration)]
    keep_audit: Duration,
    /// Size limit of the audit log; the oldest entries are deleted first
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::size)]
    most_audit: u64,
    /// Start with the existing data although the store is empty, outdated, damaged or a different one
    #[arg(long)]
    accept_loss: bool,
}

impl ContentArguments {
    pub fn apply(&self, options: &mut Options) -> Result<(), Failure> {
        options.contents = self.contents.as_deref().map(StoreUrl::parse).transpose()?;
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
