//! `dayfly queries`: queries of data frames that run, or have run within the last hour.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::id_pattern::{IdPattern, abbreviate};
use dayfly_protocol::queries::{QueryPart, QueryState, QueryStatus};

use crate::output::Align::{Left, Right};
use crate::{connect, output, values};

/// Show the queries of data frames that run, or have run within the last hour, and cancel them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  dayfly queries
  dayfly queries --state running
  dayfly queries show ...7409644e0db7        stages and ranks
  dayfly queries cancel ...7409644e0db7
  dayfly queries --json | jq '.[] | select(.skew > 2) | .text'

A query is shown once it has run for a second. SKEW is the computing time of the slowest rank over the mean. The state `lost` means
that the client has not reported for 15 seconds. Operators see and cancel the queries of all tenants.")]
pub struct Arguments {
    /// Only queries in this state
    #[arg(long, value_name = "STATE", value_parser = state())]
    state: Option<QueryState>,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show a query with its text, and what each stage and each rank has done
    Show(Named),
    /// Have the client of a query cancel it
    Cancel(Named),
}

#[derive(Debug, Args)]
struct Named {
    /// Id, or at least six digits of its beginning or end
    #[arg(value_name = "ID", value_parser = values::id)]
    id: IdPattern,
}

fn state() -> impl TypedValueParser<Value = QueryState> {
    PossibleValuesParser::new(QueryState::ALL.map(QueryState::name)).try_map(|name| name.parse::<QueryState>())
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        None => list(arguments.state, global),
        Some(What::Show(named)) => show(&named.id, global),
        Some(What::Cancel(named)) => cancel(&named.id, global),
    }
}

fn list(state: Option<QueryState>, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let filter = state.map_or_else(String::new, |state| format!("?state={state}"));
    let queries: Vec<QueryStatus> = client.get(&format!("/v1/queries{filter}")).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&queries)?
    } else if queries.is_empty() {
        "No queries.".into()
    } else {
        table(&queries).text(output::colours(&std::io::stdout()))
    });
    Ok(())
}

fn table(queries: &[QueryStatus]) -> output::Table {
    let mut table = output::Table::new(&[
        ("QUERY", Left),
        ("STATE", Left),
        ("TENANT", Left),
        ("TIME", Right),
        ("TASKS", Right),
        ("ROWS", Right),
        ("RECEIVED", Right),
        ("SPILLED", Right),
        ("SKEW", Right),
        ("TEXT", Left),
    ]);
    for query in queries {
        let total = query.total;
        table.row([
            abbreviate(&query.id),
            state_of(query),
            query.tenant.clone(),
            output::span(query.elapsed_ms),
            format!("{}/{}", total.ended, total.tasks),
            total.rows.to_string(),
            output::size(total.received_bytes),
            output::size(total.spilled_bytes),
            skew_of(query),
            shortened(&query.text),
        ]);
    }
    table
}

fn state_of(query: &QueryStatus) -> String {
    match query.is_cancelling {
        true => format!("{}, is cancelled", query.state),
        false => query.state.name().into(),
    }
}

fn skew_of(query: &QueryStatus) -> String {
    query.skew.map_or_else(|| "-".into(), |skew| format!("{skew:.1}"))
}

/// Characters of a query's text in the list.
const MAX_LISTED_CHARS: usize = 60;

/// The beginning of a text, in one line.
fn shortened(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(MAX_LISTED_CHARS) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words,
    }
}

fn show(given: &IdPattern, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let query: QueryStatus = client.get(&format!("/v1/queries/{given}")).map_err(|error| error.0)?;
    output::line(&match global.json {
        true => output::json(&query)?,
        false => described(&query),
    });
    Ok(())
}

fn described(query: &QueryStatus) -> String {
    let leases: Vec<String> = query.leases.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "Query {}\n  state      {}\n  tenant     {}\n  began      {} UTC\n  time       {}\n  computed   {}\n  skew       {}\n  lost runs  {}\n",
        query.id,
        state_of(query),
        output::plain(&query.tenant),
        output::time(query.started_at_ms),
        output::span(query.elapsed_ms),
        output::span(query.total.core_us / 1_000),
        skew_of(query),
        query.lost_runs,
    );
    if let Some(cost) = query.cost {
        text += &format!("  cost       {}\n", output::amount(cost));
    }
    if let Some(error) = &query.error {
        text += &format!("  error      {}\n", output::plain(error));
    }
    text += &format!("  leases     {}\n\n{}", leases.join(", "), output::lines(&query.text));
    let bold = output::colours(&std::io::stdout());
    for (name, parts) in [("STAGE", &query.stages), ("RANK", &query.ranks)] {
        if !parts.is_empty() {
            text += &format!("\n\n{}", part_table(name, parts).text(bold));
        }
    }
    text
}

fn part_table(name: &'static str, parts: &[QueryPart]) -> output::Table {
    let mut table = output::Table::new(&[
        (name, Right),
        ("TASKS", Right),
        ("ROWS", Right),
        ("RECEIVED", Right),
        ("SPILLED", Right),
        ("COMPUTED", Right),
    ]);
    for QueryPart { number, work } in parts {
        table.row([
            number.to_string(),
            format!("{}/{}", work.ended, work.tasks),
            work.rows.to_string(),
            output::size(work.received_bytes),
            output::size(work.spilled_bytes),
            output::span(work.core_us / 1_000),
        ]);
    }
    table
}

fn cancel(given: &IdPattern, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let query: QueryStatus = client
        .delete(&format!("/v1/queries/{given}"))
        .map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&query)?
    } else if query.is_cancelling {
        format!("Query {}: its client cancels it at its next report.", query.id)
    } else {
        format!("Query {} has ended: {}.", query.id, query.state)
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_texts_are_one_short_line() {
        assert_eq!(shortened("SELECT 1,\n\t 2"), "SELECT 1, 2");
        let long = shortened(&"\u{e9} ".repeat(100));
        assert_eq!(long.chars().count(), MAX_LISTED_CHARS + 3);
        assert!(long.ends_with("..."));
    }
}
