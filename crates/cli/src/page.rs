//! `dayfly page`: the manager's web page.

use std::time::Duration;

use clap::Args;
use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_protocol::api::Connection;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{NewToken, Role, SessionTicket, TokenRequest};
use serde_json::json;

use crate::{connect, output, values};

/// Print an address that opens the manager's web console in one browser: tasks, functions, endpoints, nodes, bills and more,
/// live.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly page
  xdg-open \"$(dayfly page)\"

The address works once, within ten minutes. The console then has a read-only token of your tenant; `--write` permits changes.
Browsers do not trust the manager's certificate authority: import ca.pem from its state directory, or compare the fingerprint
that the browser shows.")]
pub struct Arguments {
    /// How long the console stays logged in
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = values::duration)]
    valid_for: Duration,
    /// Permit the console to change something, with your own role
    #[arg(long)]
    write: bool,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let make = |role| {
        let request = TokenRequest {
            tenant: None,
            // Several pages may be open, and a token replaces an earlier one of the same name.
            name: format!("page-{}", std::process::id()),
            role,
            read_only: !arguments.write,
            valid_for_ms: arguments.valid_for.as_millis() as u64,
        };
        let made = client.post::<NewToken>("/v1/tokens", &request);
        made.map_err(|error| error.0)
    };
    // Try the highest role that the caller may grant.
    let mut made = make(Role::Administrator);
    for role in [Role::Operator, Role::User] {
        if matches!(&made, Err(failure) if failure.code == Code::Forbidden) {
            made = make(role);
        }
    }
    let made = made?;
    let page = Connection {
        manager: made.manager,
        ca_pem: made.ca_pem,
        token: made.token,
        others: made.others,
    };
    let page = Client::manager_at(&page).map_err(|error| error.0)?;
    let ticket: SessionTicket = page.post("/v1/session/tickets", &json!({})).map_err(|error| error.0)?;
    let address = format!("{}/#ticket={}", ticket.manager, ticket.ticket);
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
