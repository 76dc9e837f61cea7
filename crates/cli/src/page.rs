//! `dayfly page`: the manager's web page.

use std::time::Duration;

use clap::Args;
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{NewToken, Role, TokenRequest};
use serde_json::json;

use crate::{connect, output, values};

/// Print the address of the manager's web page, which shows nodes, leases, usage, bills and latencies live.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly page
  xdg-open \"$(dayfly page)\"

The address contains a read-only token of your tenant; treat it like a password. Browsers do not trust the manager's certificate
authority: import ca.pem from its state directory, or compare the fingerprint that the browser shows.")]
pub struct Arguments {
    /// How long the address is valid
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = values::duration)]
    valid_for: Duration,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let make = |role| {
        let request = TokenRequest {
            tenant: None,
            // Several pages may be open, and a token replaces an earlier one of the same name.
            name: format!("page-{}", std::process::id()),
            role,
            read_only: true,
            valid_for_ms: arguments.valid_for.as_millis() as u64,
        };
        let made = client.post::<NewToken>("/v1/tokens", &request);
        made.map_err(|error| error.0)
    };
    // Try the highest role that the caller may grant.
    let made = match make(Role::Operator) {
        Err(failure) if failure.code == Code::Forbidden => make(Role::User)?,
        made => made?,
    };
    let address = format!("{}/#token={}", made.manager, made.token);
    if global.json {
        let expires_at_ms = made.status.expires_at_ms;
        output::line(&output::json(
            &json!({ "page": address, "expires_at_ms": expires_at_ms }),
        )?);
    } else {
        output::line(&address);
    }
    Ok(())
}
