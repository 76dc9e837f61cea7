//! `dayfly team`: named groups of tenants to share with.

use clap::{Args, Subcommand};
use dayfly_client::{Client, encoded};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::sharing::{Team, TeamSpec};

use crate::output::Align::Left;
use crate::{connect, output, values};

/// Group tenants, to share functions and endpoints with them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly team set astro alice bob --description 'the telescope'
  dayfly team add astro carol
  dayfly team drop astro bob
  dayfly team list
  dayfly endpoint setup --share-with team:astro

A function or endpoint that is shared with team:astro is shared with its current members: tenants gain access when they join, and
lose it when they leave. A team belongs to the tenant that made it.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show your teams, and the teams that you are a member of
    List,
    /// Make a team, or replace the members of one of yours
    Set(Set),
    /// Add tenants to a team of yours
    Add(Members),
    /// Remove tenants from a team of yours
    Drop(Members),
    /// Remove a team of yours
    Remove {
        /// Name of the team
        #[arg(value_parser = values::name)]
        name: String,
    },
}

#[derive(Debug, Args)]
struct Members {
    /// Name of the team
    #[arg(value_parser = values::name)]
    name: String,
    /// Names of tenants
    #[arg(value_name = "TENANT", value_parser = values::name)]
    members: Vec<String>,
}

#[derive(Debug, Args)]
struct Set {
    #[command(flatten)]
    members: Members,
    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
}

fn path(name: &str) -> String {
    format!("/v1/teams/{}", encoded(name))
}

fn all(client: &Client) -> Result<Vec<Team>, Failure> {
    client.get("/v1/teams").map_err(|error| error.0)
}

fn put(client: &Client, name: &str, spec: &TeamSpec) -> Result<Team, Failure> {
    client.put(&path(name), spec).map_err(|error| error.0)
}

/// Changes the members of a team.
fn change(client: &Client, name: &str, change: impl FnOnce(&mut Vec<String>)) -> Result<Team, Failure> {
    let found = all(client)?.into_iter().find(|team| team.name == name);
    let mut team = found.ok_or_else(|| Failure::new(Code::NotFound, format!("you have no team `{name}`")))?;
    change(&mut team.spec.members);
    put(client, name, &team.spec)
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let teams = match &arguments.what {
        What::List => {
            let teams = all(&client)?;
            output::line(&match (global.json, teams.is_empty()) {
                (true, _) => output::json(&teams)?,
                (false, true) => "No teams.".into(),
                (false, false) => table(&teams),
            });
            return Ok(());
        }
        What::Set(Set { members, description }) => {
            let spec = TeamSpec {
                description: description.clone(),
                members: members.members.clone(),
            };
            put(&client, &members.name, &spec)?
        }
        What::Add(Members { name, members }) => change(&client, name, |now| {
            now.extend(
                members
                    .iter()
                    .filter(|new| !now.contains(new))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
        })?,
        What::Drop(Members { name, members }) => change(&client, name, |now| now.retain(|one| !members.contains(one)))?,
        What::Remove { name } => client.delete(&path(name)).map_err(|error| error.0)?,
    };
    output::line(&match global.json {
        true => output::json(&teams)?,
        false => table(&[teams]),
    });
    Ok(())
}

fn table(teams: &[Team]) -> String {
    let mut table = output::Table::new(&[
        ("TEAM", Left),
        ("OWNER", Left),
        ("MEMBERS", Left),
        ("DESCRIPTION", Left),
    ]);
    for team in teams {
        table.row([
            output::plain(&team.name),
            output::plain(&team.owner),
            output::plain(&team.spec.members.join(", ")),
            output::plain(&team.spec.description),
        ]);
    }
    table.text(output::colours(&std::io::stdout()))
}
