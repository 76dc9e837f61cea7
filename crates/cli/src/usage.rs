//! `dayfly usage`: resources that durable tasks used.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_protocol::tasks::UsageLine;
use serde::Serialize;

use crate::output::Align::{Left, Right};
use crate::{connect, output, values};

/// Show the resources that durable tasks used, by function, tenant, endpoint or day.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly usage
  dayfly usage --by day --from 2026-11-01 --until 2026-12-01
  dayfly usage --everybody --by tenant --csv > usage.csv

A task counts on the day of its end, in UTC, with the time that all its executions held workers at any site. The cost, in units of
account, is that of executions at other tenants' endpoints. `dayfly bill` shows the costs of leases at this site.")]
pub struct Arguments {
    /// Unit of each line
    #[arg(long, value_enum, default_value = "function")]
    by: By,
    /// Show the time from the beginning of this day, in UTC
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = values::day)]
    from: Option<u64>,
    /// Show the time up to the beginning of this day, in UTC
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = values::day)]
    until: Option<u64>,
    /// Show all tenants, for operators
    #[arg(long)]
    everybody: bool,
    /// Print comma-separated values (CSV), with times in milliseconds and amounts in billionths of the unit of account
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// One function of a tenant
    Function,
    /// One tenant
    Tenant,
    /// One endpoint
    Endpoint,
    /// One day
    Day,
}

/// A line of the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Line {
    what: String,
    tasks: u64,
    failed: u64,
    took_ms: u64,
    cost: u64,
}

fn gather(lines: &[UsageLine], by: By) -> Vec<Line> {
    let mut sums: BTreeMap<String, Line> = BTreeMap::new();
    for line in lines {
        let what = match by {
            // A removed function has no name.
            By::Function if line.name.is_empty() => format!("{} ({})", line.function, line.tenant),
            By::Function => format!("{} ({})", line.name, line.tenant),
            By::Tenant => line.tenant.clone(),
            By::Endpoint => line.endpoint.clone(),
            By::Day => output::date(line.day_ms),
        };
        let sum = sums.entry(what.clone()).or_default();
        sum.what = what;
        sum.tasks += line.tasks;
        sum.failed += line.failed;
        sum.took_ms += line.took_ms;
        sum.cost = sum.cost.saturating_add(line.cost);
    }
    sums.into_values().collect()
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let mut path = format!(
        "/v1/usage?from={}&everybody={}",
        arguments.from.unwrap_or(0),
        arguments.everybody
    );
    if let Some(until) = arguments.until {
        path += &format!("&until={until}");
    }
    let lines: Vec<UsageLine> = connect::manager(global)?.get(&path).map_err(|error| error.0)?;
    if global.json {
        output::line(&output::json(&lines)?);
        return Ok(());
    }
    let lines = gather(&lines, arguments.by);
    if arguments.csv {
        output::line("what,tasks,failed,took_ms,cost");
        for line in &lines {
            let what = output::plain(&line.what).replace('"', "\"\"");
            output::line(&format!(
                "\"{what}\",{},{},{},{}",
                line.tasks, line.failed, line.took_ms, line.cost
            ));
        }
        return Ok(());
    }
    if lines.is_empty() {
        output::line("No task has ended.");
        return Ok(());
    }
    let title = match arguments.by {
        By::Function => "FUNCTION",
        By::Tenant => "TENANT",
        By::Endpoint => "ENDPOINT",
        By::Day => "DAY",
    };
    let mut table = output::Table::new(&[
        (title, Left),
        ("TASKS", Right),
        ("FAILED", Right),
        ("TOOK", Right),
        ("COST", Right),
    ]);
    for line in &lines {
        table.row([
            output::plain(&line.what),
            line.tasks.to_string(),
            line.failed.to_string(),
            output::span(line.took_ms),
            output::amount(line.cost),
        ]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::ids::FunctionId;

    use super::*;

    #[test]
    fn usage_is_summed_by_the_requested_key() {
        let line = |day: u64, tenant: &str, name: &str, took_ms| UsageLine {
            day_ms: day * 86_400_000,
            tenant: tenant.into(),
            function: FunctionId([1; 16]),
            name: name.into(),
            endpoint: "local".into(),
            tasks: 2,
            failed: 1,
            took_ms,
            cost: 3,
        };
        let lines = [line(0, "a", "f", 5), line(1, "a", "g", 7), line(1, "b", "f", 9)];
        let sums = |by| -> Vec<(String, u64, u64, u64)> {
            let sums = gather(&lines, by);
            sums.into_iter()
                .map(|sum| (sum.what, sum.tasks, sum.took_ms, sum.cost))
                .collect()
        };
        assert_eq!(sums(By::Tenant), [("a".into(), 4, 12, 6), ("b".into(), 2, 9, 3)]);
        assert_eq!(
            sums(By::Day),
            [("1970-01-01".into(), 2, 5, 3), ("1970-01-02".into(), 4, 16, 6)]
        );
        assert_eq!(sums(By::Endpoint), [("local".into(), 6, 21, 9)]);
        assert_eq!(sums(By::Function).len(), 3);
    }
}
