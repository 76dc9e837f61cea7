//! `dayfly token`: credentials of people and programs for the manager.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dayfly_command::Global;
use dayfly_protocol::api::Connection;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{NewToken, RevokedToken, Role, TokenRequest, TokenStatus};
use serde_json::json;

use crate::manager::write_private;
use crate::output::Align::Left;
use crate::{connect, output, reach, values};

/// Show, make and revoke tokens.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly token create laptop --tenant astro --valid-for 90d --output astro.json
  dayfly token list
  dayfly token revoke 5f0c9a1b2c3d4e5f
  dayfly token revoke 5f0c9a1b2c3d4e5f --keep-leases

A client needs only the file that `create` writes: DAYFLY_MANAGER=astro.json. The manager stores only a hash of each token. Everyone
who has the file can run code on the nodes that allow its tenant; `create` prints which nodes, and at which sandbox level.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show tokens, without their secrets
    List,
    /// Make a token, and write a connection file with it
    Create(Create),
    /// Revoke a token, by the id that `list` shows, and end its connections and leases
    Revoke {
        /// Id of the token
        id: String,
        /// Let leases made with it continue to their own end
        #[arg(long)]
        keep_leases: bool,
    },
}

/// Rights of a token's holder; each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// Lease workers, and see their costs
    User,
    /// Reclaim and resume nodes, and see and revoke leases of all tenants
    Operator,
    /// Make tenants and tokens, and set prices
    Administrator,
}

/// Make a token, and write a connection file with it.
#[derive(Debug, Args)]
struct Create {
    /// Purpose of the token; replaces the tenant's earlier token of this name
    #[arg(value_parser = values::name)]
    name: String,
    /// Tenant of the token [default: your own]
    #[arg(long, value_parser = values::name)]
    tenant: Option<String>,
    /// Rights of the token's holder
    #[arg(long, value_enum, default_value = "user")]
    role: Wanted,
    /// Allow only reading
    #[arg(long)]
    read_only: bool,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = values::duration)]
    valid_for: Duration,
    /// Path of the connection file, readable only by you [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        What::List => list(global),
        What::Create(wanted) => create(wanted, global),
        What::Revoke { id, keep_leases } => revoke(id, *keep_leases, global),
    }
}

fn list(global: &Global) -> Result<(), Failure> {
    let tokens: Vec<TokenStatus> = connect::manager(global)?.get("/v1/tokens").map_err(|error| error.0)?;
    if global.json {
        output::line(&output::json(&tokens)?);
        return Ok(());
    }
    let mut table = output::Table::new(&[
        ("ID", Left),
        ("TENANT", Left),
        ("NAME", Left),
        ("ROLE", Left),
        ("EXPIRES", Left),
    ]);
    for token in tokens {
        let role = match token.read_only {
            true => format!("{}, looking only", token.role),
            false => token.role.to_string(),
        };
        let expires = output::date(token.expires_at_ms);
        table.row([token.id, token.tenant, token.name, role, expires]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

fn create(wanted: &Create, global: &Global) -> Result<(), Failure> {
    let request = TokenRequest {
        tenant: wanted.tenant.clone(),
        name: wanted.name.clone(),
        role: match wanted.role {
            Wanted::User => Role::User,
            Wanted::Operator => Role::Operator,
            Wanted::Administrator => Role::Administrator,
        },
        read_only: wanted.read_only,
        valid_for_ms: wanted.valid_for.as_millis() as u64,
    };
    let client = connect::manager(global)?;
    let made: NewToken = client.post("/v1/tokens", &request).map_err(|error| error.0)?;
    let connection = Connection {
        manager: made.manager,
        ca_pem: made.ca_pem,
        token: made.token,
        others: made.others,
    };
    let file =
        serde_json::to_string_pretty(&connection).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let Some(path) = &wanted.output else {
        output::line(&file);
        return match global.json {
            true => Ok(()),
            false => reach::tell_by_name(&client, &made.status.tenant),
        };
    };
    if let Err(failure) = write_private(path, &file) {
        // Without its file the token cannot be used.
        let _ = client.delete::<TokenStatus>(&format!("/v1/tokens/{}", made.status.id));
        return Err(failure);
    }
    output::line(&if global.json {
        output::json(&json!({ "output": path, "token": made.status }))?
    } else {
        format!(
            "{} lets whoever has it act for {} until {}: DAYFLY_MANAGER={0}",
            path.display(),
            output::plain(&made.status.tenant),
            output::date(made.status.expires_at_ms)
        )
    });
    match global.json {
        true => Ok(()),
        false => reach::tell_by_name(&client, &made.status.tenant),
    }
}

fn revoke(id: &str, keep_leases: bool, global: &Global) -> Result<(), Failure> {
    let is_id = !id.is_empty() && id.chars().all(|c| c.is_ascii_hexdigit());
    if !is_id {
        let text = format!("`{id:.80}` is no id of a token; `dayfly token list` shows them");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let client = connect::manager(global)?;
    let path = format!("/v1/tokens/{id}?keep_leases={keep_leases}");
    let revoked: RevokedToken = client.delete(&path).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&revoked)?
    } else {
        format!(
            "The token {} of {} is worthless now. {}",
            output::plain(&revoked.token.name),
            output::plain(&revoked.token.tenant),
            what_became_of(revoked.leases_ended, revoked.leases_kept)
        )
    });
    Ok(())
}

/// Describes how many of a token's leases ended and continue.
fn what_became_of(ended: u32, kept: u32) -> String {
    match (ended, kept) {
        (0, 0) => "It had no leases.".into(),
        (1, 0) => "Its lease has ended.".into(),
        (ended, 0) => format!("Its {ended} leases have ended."),
        (_, 1) => "Its lease outlives it, until its own end.".into(),
        (_, kept) => format!("Its {kept} leases outlive it, until their own end."),
    }
}
