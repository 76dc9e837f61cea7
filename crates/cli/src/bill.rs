//! `dayfly bill` and `dayfly audit`: costs, and the log of changes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_lease::Cost;
use dayfly_protocol::api::{NodeStatus, Usage};
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::tenancy::{AuditEntry, BillLine, BillPage};
use serde::Serialize;

use crate::output::Align::{Left, Right};
use crate::{connect, output, values};

/// Show the costs of leases: your own, or, for operators, those of all tenants.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly bill                             costs per day, and the latest leases
  dayfly bill --since 12h --limit 100
  dayfly bill --by tenant --from 2026-11-01 --until 2026-12-01
  dayfly bill --tenant astro --csv > astro.csv
  dayfly bill --by function

The bill contains every lease that existed in the requested time, with its total cost. The bill of a running lease is some
seconds old. Dates are in UTC. With `--by function`, costs outside functions (memory, polling, loading of code) are in a separate
line. `dayfly usage` shows the costs of durable tasks at other endpoints.")]
pub struct Arguments {
    /// Tenant to show [default: your own; all for operators]
    #[arg(long, value_parser = values::name)]
    tenant: Option<String>,
    /// Show the time from the beginning of this day, in UTC
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = values::day)]
    from: Option<u64>,
    /// Show the time since this long ago, such as 12h or 7d
    #[arg(long, value_name = "DURATION", conflicts_with = "from", value_parser = values::duration)]
    since: Option<Duration>,
    /// Show the time up to the beginning of this day, in UTC
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = values::day)]
    until: Option<u64>,
    /// Unit of each line
    #[arg(long, value_enum, default_value = "lease")]
    by: By,
    /// Maximum number of rows of a table, latest first; JSON and CSV contain all
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Print comma-separated values (CSV), with amounts in billionths of the unit of account and times in microseconds
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Unit of a line of the bill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// One lease
    Lease,
    /// All leases of a tenant
    Tenant,
    /// All leases on a node
    Node,
    /// All leases granted on a day
    Day,
    /// One function of a tenant: the time in it, at the prices of the leases
    Function,
}

/// A line of the bill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Line {
    what: String,
    /// Time of the grant of its latest lease.
    #[serde(skip)]
    granted_at_ms: u64,
    tenant: String,
    leases: u64,
    calls: u64,
    failures: u64,
    computing_us: u64,
    polling_us: u64,
    allocated_us: u64,
    allocation: u64,
    computing: u64,
    polling: u64,
    total: u64,
    borrowing: u64,
    lent_core_us: u64,
    borrowed_core_us: u64,
    lent_mib_s: u64,
    borrowed_mib_s: u64,
}

impl Line {
    fn add(&mut self, line: &BillLine) {
        self.merge(&Self {
            granted_at_ms: line.granted_at_ms,
            leases: 1,
            calls: line.usage.calls,
            failures: line.usage.failures,
            computing_us: line.usage.computing_us,
            polling_us: line.usage.polling_us,
            allocated_us: line.usage.allocated_us,
            allocation: line.allocation,
            computing: line.computing,
            polling: line.polling,
            total: line.total,
            borrowing: line.borrowing,
            lent_core_us: line.loans.lent_core_us,
            borrowed_core_us: line.loans.borrowed_core_us,
            lent_mib_s: line.loans.lent_mib_s,
            borrowed_mib_s: line.loans.borrowed_mib_s,
            ..Self::default()
        });
    }

    fn merge(&mut self, other: &Self) {
        let parts = [
            (&mut self.leases, other.leases),
            (&mut self.calls, other.calls),
            (&mut self.failures, other.failures),
            (&mut self.computing_us, other.computing_us),
            (&mut self.polling_us, other.polling_us),
            (&mut self.allocated_us, other.allocated_us),
            (&mut self.allocation, other.allocation),
            (&mut self.computing, other.computing),
            (&mut self.polling, other.polling),
            (&mut self.total, other.total),
            (&mut self.borrowing, other.borrowing),
            (&mut self.lent_core_us, other.lent_core_us),
            (&mut self.borrowed_core_us, other.borrowed_core_us),
            (&mut self.lent_mib_s, other.lent_mib_s),
            (&mut self.borrowed_mib_s, other.borrowed_mib_s),
        ];
        for (sum, part) in parts {
            *sum = sum.saturating_add(part);
        }
        self.granted_at_ms = self.granted_at_ms.max(other.granted_at_ms);
    }
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let billed = fetch(&client, arguments)?;
    if global.json && arguments.by == By::Lease {
        output::line(&output::json(&billed)?);
        return Ok(());
    }
    let names = match arguments.by {
        By::Node => names(&client)?,
        _ => BTreeMap::new(),
    };
    let lines = gather(&billed, arguments.by, &names);
    if global.json {
        output::line(&output::json(&lines)?);
    } else if arguments.csv {
        output::line(&csv(&lines, arguments.by));
    } else {
        let most = arguments.limit as usize;
        if arguments.by == By::Lease && !billed.is_empty() {
            let days = gather(&billed, By::Day, &names);
            output::line(&format!("{}\n", table(days, By::Day, most)));
        }
        let shown = lines.len().min(most);
        let total = lines.iter().fold(0u64, |sum, line| sum.saturating_add(line.total));
        if shown < lines.len() {
            eprintln!("({shown} of {} rows; --limit shows more.)", lines.len());
        }
        let loans = loans(&lines);
        let rows = table(lines, arguments.by, most);
        output::line(&format!("{rows}\n\n{} in all{loans}", output::amount(total)));
    }
    Ok(())
}

fn fetch(client: &Client, arguments: &Arguments) -> Result<Vec<BillLine>, Failure> {
    let mut lines = Vec::new();
    let mut after = None;
    loop {
        let mut asked = vec![format!("from={}", arguments.begin_ms())];
        asked.extend(arguments.until.map(|until| format!("until={until}")));
        asked.extend(arguments.tenant.as_ref().map(|name| format!("tenant={name}")));
        asked.extend(after.map(|after: String| format!("after={after}")));
        let page: BillPage = client
            .get(&format!("/v1/bill?{}", asked.join("&")))
            .map_err(|error| error.0)?;
        lines.extend(page.lines);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(lines),
        }
    }
}

impl Arguments {
    /// Returns the start of the billed time.
    fn begin_ms(&self) -> u64 {
        let since_ms = |since: Duration| output::now_ms().saturating_sub(since.as_millis() as u64);
        self.from.or(self.since.map(since_ms)).unwrap_or(0)
    }
}

fn names(client: &Client) -> Result<BTreeMap<NodeId, String>, Failure> {
    let nodes: Vec<NodeStatus> = client.get("/v1/nodes").map_err(|error| error.0)?;
    Ok(nodes
        .into_iter()
        .map(|node| (node.address.id, node.address.name))
        .collect())
}

fn gather(lines: &[BillLine], by: By, names: &BTreeMap<NodeId, String>) -> Vec<Line> {
    let mut gathered: BTreeMap<(u64, String), Line> = BTreeMap::new();
    for line in lines {
        let what = match by {
            By::Lease => line.lease.to_string(),
            By::Tenant => line.tenant_name.clone(),
            By::Node => names.get(&line.node).cloned().unwrap_or_else(|| line.node.to_string()),
            By::Day => output::date(line.granted_at_ms),
            By::Function => return gather_functions(lines),
        };
        // Leases are ordered by grant time, other lines by name.
        let order = if by == By::Lease { line.granted_at_ms } else { 0 };
        let sum = gathered.entry((order, what.clone())).or_insert_with(|| Line {
            what,
            tenant: line.tenant_name.clone(),
            ..Line::default()
        });
        if sum.tenant != line.tenant_name {
            sum.tenant = "several".into();
        }
        sum.add(line);
    }
    gathered.into_values().collect()
}

/// Name of the line for costs outside functions.
const NO_FUNCTION: &str = "-";

/// Lines of functions with their computing costs, and one line for the rest of every lease. The sum equals that of the
/// leases.
fn gather_functions(lines: &[BillLine]) -> Vec<Line> {
    let mut gathered: BTreeMap<(String, String), Line> = BTreeMap::new();
    let mut add = |tenant: &str, what: &str, part: &Line| {
        let key = (tenant.to_owned(), what.to_owned());
        let sum = gathered.entry(key).or_insert_with(|| Line {
            what: what.into(),
            tenant: tenant.into(),
            ..Line::default()
        });
        sum.merge(part);
    };
    for line in lines {
        let mut rest = Line::default();
        rest.add(line);
        for function in &line.functions {
            let used = Usage {
                computing_us: function.computing_us,
                ..Usage::default()
            };
            let cost = Cost::of(&line.prices, &used, 0, line.workers, line.cores_per_worker, 0);
            let cost = cost.computing.min(rest.computing);
            let part = Line {
                granted_at_ms: line.granted_at_ms,
                leases: 1,
                calls: function.calls,
                failures: function.failures,
                computing_us: function.computing_us,
                computing: cost,
                total: cost,
                ..Line::default()
            };
            let pairs = [
                (&mut rest.calls, part.calls),
                (&mut rest.failures, part.failures),
                (&mut rest.computing_us, part.computing_us),
                (&mut rest.computing, cost),
                (&mut rest.total, cost),
            ];
            for (left, taken) in pairs {
                *left = left.saturating_sub(taken);
            }
            add(&line.tenant_name, &function.function, &part);
        }
        add(&line.tenant_name, NO_FUNCTION, &rest);
    }
    gathered.into_values().collect()
}

/// Returns a line about what was lent and borrowed, if anything was.
fn loans(lines: &[Line]) -> String {
    let mut sum = Line::default();
    for line in lines {
        sum.merge(line);
    }
    let quantities = [
        ("lent", sum.lent_core_us, sum.lent_mib_s),
        ("borrowed", sum.borrowed_core_us, sum.borrowed_mib_s),
    ];
    let parts: Vec<String> = quantities
        .into_iter()
        .filter(|(_, core_us, mib_s)| core_us | mib_s != 0)
        .map(|(what, core_us, mib_s)| {
            let core_hours = core_us as f64 / 3.6e9;
            let gib_hours = mib_s as f64 / 1024.0 / 3600.0;
            format!("{what} {core_hours:.3} core hours and {gib_hours:.3} GiB hours")
        })
        .collect();
    match parts.as_slice() {
        [] => String::new(),
        parts => format!("\n{}, for {}", parts.join(", "), output::amount(sum.borrowing)),
    }
}

fn heading(by: By) -> &'static str {
    match by {
        By::Lease => "lease",
        By::Tenant => "tenant",
        By::Node => "node",
        By::Day => "day",
        By::Function => "function",
    }
}

fn csv(lines: &[Line], by: By) -> String {
    let heading = format!(
        "{},payer,leases,calls,failures,computing_us,polling_us,allocated_us,lent_core_us,borrowed_core_us,lent_mib_s,\
         borrowed_mib_s,allocation,computing,polling,borrowing,total",
        heading(by)
    );
    // Ids, dates and most names contain no comma or quote. Only the name of a node may need quoting.
    let quoted = |text: &str| match text.contains(['"', ',']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let row = |line: &Line| {
        let numbers = [
            line.leases,
            line.calls,
            line.failures,
            line.computing_us,
            line.polling_us,
            line.allocated_us,
            line.lent_core_us,
            line.borrowed_core_us,
            line.lent_mib_s,
            line.borrowed_mib_s,
            line.allocation,
            line.computing,
            line.polling,
            line.borrowing,
            line.total,
        ];
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let [what, tenant] = [&line.what, &line.tenant].map(|text| quoted(&output::plain(text)));
        format!("{what},{tenant},{}", numbers.join(","))
    };
    let rows = std::iter::once(heading).chain(lines.iter().map(row));
    rows.collect::<Vec<_>>().join("\n")
}

/// Returns at most `most` rows: the latest, or those with the highest costs.
fn table(mut lines: Vec<Line>, by: By, most: usize) -> String {
    match by {
        By::Lease | By::Day => lines.sort_by_key(|line| Reverse(line.granted_at_ms)),
        By::Tenant | By::Node | By::Function => lines.sort_by_key(|line| Reverse(line.total)),
    }
    lines.truncate(most);
    let mut table = output::Table::new(&[
        (
            match by {
                By::Lease => "LEASE",
                By::Tenant => "TENANT",
                By::Node => "NODE",
                By::Day => "DAY",
                By::Function => "FUNCTION",
            },
            Left,
        ),
        ("PAYS", Left),
        ("LEASES", Right),
        ("CALLS", Right),
        ("COMPUTING", Right),
        ("POLLING", Right),
        ("ALLOCATION", Right),
        ("COST", Right),
        ("LAST GRANT", Left),
    ]);
    for line in &lines {
        table.row([
            line.what.clone(),
            line.tenant.clone(),
            line.leases.to_string(),
            line.calls.to_string(),
            output::span(line.computing_us / 1000),
            output::span(line.polling_us / 1000),
            output::span(line.allocated_us / 1000),
            output::amount(line.total),
            output::time(line.granted_at_ms),
        ]);
    }
    table.text(output::colours(&std::io::stdout()))
}

/// Show who changed accounts, prices, nodes and other tenants' leases.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly audit                         the last 100 entries
  dayfly audit --limit 1000 --before 5200
  dayfly audit --above 1200 --json     all entries after number 1200")]
pub struct AuditArguments {
    /// Maximum number of entries, latest first [default: 100; no limit with --above]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Show only entries before this number
    #[arg(long, value_name = "N")]
    before: Option<u64>,
    /// Show all entries after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    above: u64,
}

/// Maximum number of entries of a request.
const AUDIT_PAGE: u64 = 1_000;
/// Number of entries without --limit and --above.
const AUDIT_SHOWN: u64 = 100;

/// Returns the requested entries, read page by page from the end.
fn audit_entries(arguments: &AuditArguments, client: &Client) -> Result<Vec<AuditEntry>, Failure> {
    let mut wanted = match (arguments.limit, arguments.above) {
        (Some(limit), _) => limit,
        (None, 0) => AUDIT_SHOWN,
        (None, _) => u64::MAX,
    };
    let mut before = arguments.before.unwrap_or(u64::MAX);
    let mut pages: Vec<Vec<AuditEntry>> = Vec::new();
    while wanted > 0 {
        let (above, limit) = (arguments.above, wanted.min(AUDIT_PAGE));
        let page: Vec<AuditEntry> = client
            .get(&format!("/v1/audit?above={above}&before={before}&limit={limit}"))
            .map_err(|error| error.0)?;
        let Some(first) = page.first() else { break };
        before = first.number;
        wanted -= (page.len() as u64).min(wanted);
        pages.push(page);
    }
    Ok(pages.into_iter().rev().flatten().collect())
}

pub fn audit(arguments: &AuditArguments, global: &Global) -> Result<(), Failure> {
    let entries = audit_entries(arguments, &connect::manager(global)?)?;
    if global.json {
        output::line(&output::json(&entries)?);
        return Ok(());
    }
    let mut table = output::Table::new(&[
        ("NUMBER", Right),
        ("WHEN", Left),
        ("TOKEN", Left),
        ("WHAT", Left),
        ("TO", Left),
        ("HOW", Left),
    ]);
    for entry in entries {
        table.row([
            entry.number.to_string(),
            output::time(entry.at_ms),
            entry.token,
            entry.action,
            entry.subject,
            entry.details,
        ]);
    }
    output::line(&table.text(output::colours(&std::io::stdout())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{FunctionUsage, LeaseState, LoanUsage, Mode};
    use dayfly_protocol::cores::MilliCores;
    use dayfly_protocol::ids::{LeaseId, TenantId};
    use dayfly_protocol::tenancy::Prices;

    use super::*;

    fn line(lease: u8, tenant: &str, granted_at_ms: u64, total: u64) -> BillLine {
        BillLine {
            lease: LeaseId([lease; 16]),
            tenant: TenantId([1; 16]),
            tenant_name: tenant.into(),
            node: NodeId([1; 16]),
            state: LeaseState::Released,
            granted_at_ms,
            ended_at_ms: 1,
            workers: 1,
            cores_per_worker: MilliCores::ONE,
            memory_bytes: 1,
            mode: Mode::Warm,
            usage: Usage {
                calls: 2,
                ..Usage::default()
            },
            functions: Vec::new(),
            loans: LoanUsage::default(),
            prices: Prices::default(),
            allocation: 0,
            computing: total,
            polling: 0,
            borrowing: 0,
            total,
        }
    }

    #[test]
    fn function_lines_add_up_to_their_leases() {
        let mut lines = [line(1, "a", 5, 1_000), line(2, "a", 6, 1_000)];
        for line in &mut lines {
            line.prices.computing_per_s = 1_000_000;
            (line.usage.computing_us, line.usage.calls) = (1_000, 5);
            (line.allocation, line.total) = (70, 1_070);
            let function = |name: &str, computing_us, calls| FunctionUsage {
                function: name.into(),
                calls,
                failures: 0,
                computing_us,
            };
            line.functions = vec![function("area@1", 600, 3), function("mean@2", 100, 1)];
        }
        // A node cannot report more than the lease cost.
        lines[1].functions[0].computing_us = u64::MAX;
        let gathered = gather(&lines, By::Function, &BTreeMap::new());
        let sums: Vec<_> = gathered
            .iter()
            .map(|line| (line.what.as_str(), line.calls, line.total))
            .collect();
        assert_eq!(sums, [("-", 2, 440), ("area@1", 6, 1_600), ("mean@2", 2, 100)]);
        let total: u64 = gathered.iter().map(|line| line.total).sum();
        assert_eq!(total, lines.iter().map(|line| line.total).sum::<u64>());
    }

    #[test]
    fn loans_are_added_up_and_shown() {
        assert_eq!(loans(&gather(&[line(1, "a", 5, 1)], By::Lease, &BTreeMap::new())), "");
        let mut lines = [line(1, "a", 5, 1), line(2, "a", 6, 1)];
        lines[0].loans.lent_core_us = 3_600_000_000;
        lines[1].loans.borrowed_mib_s = 2 * 1024 * 3600;
        lines[1].loans.lent_core_us = 1_800_000_000;
        let gathered = gather(&lines, By::Tenant, &BTreeMap::new());
        assert_eq!(
            loans(&gathered),
            "\nlent 1.500 core hours and 0.000 GiB hours, borrowed 0.000 core hours and 2.000 GiB hours, for 0"
        );
        let text = csv(&gathered, By::Tenant);
        assert!(text.starts_with("tenant,payer,leases,"), "{text}");
        assert!(text.contains(",5400000000,0,0,7372800,"), "{text}");
    }

    #[test]
    fn table_shows_latest_leases_first_with_their_dates() {
        let day = 86_400_000;
        let lines = [
            line(3, "a", day, 10),
            line(1, "b", 2 * day, 20),
            line(2, "a", 3 * day, 40),
        ];
        let text = table(gather(&lines, By::Lease, &BTreeMap::new()), By::Lease, 2);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(
            rows[1].starts_with("0202") && rows[1].ends_with("1970-01-04 00:00:00"),
            "{text}"
        );
        assert!(rows[2].starts_with("0101"), "{text}");
        let text = table(gather(&lines, By::Tenant, &BTreeMap::new()), By::Tenant, 9);
        assert!(text.lines().nth(1).is_some_and(|row| row.starts_with("a ")), "{text}");
    }

    #[test]
    fn lines_add_up_for_every_grouping() {
        let day = 86_400_000;
        let lines = [line(3, "a", 5, 10), line(1, "b", 6, 20), line(2, "a", day, 40)];
        let sums = |by| -> Vec<(String, u64, u64)> {
            let gathered = gather(&lines, by, &BTreeMap::new());
            let sum = |line: &Line| (line.what.clone(), line.total, line.calls);
            gathered.iter().map(sum).collect()
        };
        assert_eq!(sums(By::Tenant), [("a".into(), 50, 4), ("b".into(), 20, 2)]);
        assert_eq!(
            sums(By::Day),
            [("1970-01-01".into(), 30, 4), ("1970-01-02".into(), 40, 2)]
        );
        assert_eq!(sums(By::Node).len(), 1);
        let totals: Vec<u64> = sums(By::Lease).iter().map(|line| line.1).collect();
        assert_eq!(totals, [10, 20, 40], "in the order of their grants");
    }

    #[test]
    fn name_with_comma_or_quote_is_quoted() {
        let names = BTreeMap::from([(NodeId([1; 16]), "rack \"7\", left".to_owned())]);
        let text = csv(&gather(&[line(1, "a", 5, 10)], By::Node, &names), By::Node);
        let row = text.lines().nth(1).unwrap();
        assert_eq!(row, "\"rack \"\"7\"\", left\",a,1,2,0,0,0,0,0,0,0,0,0,10,0,0,10");
    }
}
