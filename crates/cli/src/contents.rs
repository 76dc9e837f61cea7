//! The content store of a manager, as its command line says.

use clap::Args;
use mayfly_manager::Options;
use mayfly_protocol::error::Failure;
use mayfly_storage::Place;

use crate::values;

/// What `mayfly up` and `mayfly manager` have in common.
#[derive(Debug, Args)]
pub struct ContentArguments {
    /// Where long arguments and results of tasks are kept: s3://BUCKET/PREFIX, with AWS_* variables for the rest, or
    /// file:///DIR [default: a directory in the state directory]
    #[arg(long, value_name = "URL", env = "MAYFLY_CONTENTS", hide_env_values = true)]
    contents: Option<String>,
    /// How much of them each tenant may have, such as 500G
    #[arg(long, value_name = "SIZE", default_value = "256G", value_parser = values::size)]
    most_contents: u64,
}

impl ContentArguments {
    pub fn apply(&self, options: &mut Options) -> Result<(), Failure> {
        options.contents = self.contents.as_deref().map(Place::parse).transpose()?;
        options.most_content_bytes = self.most_contents;
        Ok(())
    }
}
