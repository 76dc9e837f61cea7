//! `dayfly top`: the activity of leases and nodes, live.

mod harvest;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use dayfly_client::{Client, LeaseStatus, NodeStatus};
use dayfly_command::Global;
use dayfly_protocol::api::Usage;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::LeaseId;
use serde::Serialize;

use crate::output::{Align, Table};
use crate::status::{node_name, workers};
use crate::{connect, output, values};

/// Minimum interval. Nodes report the usage of leases about once per second.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Show the activity of leases, and of nodes that harvest, live.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly top
  dayfly top --once                       one interval
  dayfly top --json --interval 10s        a line of JSON every ten seconds

Computing is the share of the workers' time inside functions, polling the share in which hot workers wait for work. A lease is
charged for both. For nodes that harvest, operators see the cores and the memory that measured calls own, use, lend and borrow.")]
pub struct Arguments {
    /// Refresh interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = values::duration)]
    interval: Duration,
    /// Show one interval and exit
    #[arg(long)]
    once: bool,
}

/// Activity of a lease in an interval.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    lease: LeaseStatus,
    node_name: String,
    calls_per_s: f64,
    computing_percent: f64,
    polling_percent: f64,
}

#[derive(Debug, Serialize)]
struct Look {
    nodes: Vec<NodeStatus>,
    leases: Vec<Row>,
}

/// Usage of a lease at the start of the interval.
struct Before {
    at: Instant,
    usage: HashMap<LeaseId, Usage>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let interval = arguments.interval.max(MIN_INTERVAL);
    let live = !global.json && !arguments.once && output::colours(&std::io::stdout());
    let mut before = None;
    look(&client, &mut before)?;
    loop {
        std::thread::sleep(interval);
        let seen = look(&client, &mut before)?;
        if global.json {
            output::line(&output::json(&seen)?);
        } else if live {
            // Move the cursor home, print the text, then erase below it. Clearing the screen first would flicker.
            let text = seen.text(true).replace('\n', "\x1b[K\n");
            output::bytes(format!("\x1b[H{text}\x1b[K\x1b[J\n").as_bytes());
        } else {
            output::line(&format!("{}\n", seen.text(false)));
        }
        if arguments.once {
            return Ok(());
        }
    }
}

fn look(client: &Client, before: &mut Option<Before>) -> Result<Look, Failure> {
    let nodes = client.nodes().map_err(|error| error.0)?;
    let mut leases = client.leases().map_err(|error| error.0)?;
    leases.retain(|lease| lease.state.is_live());
    let at = Instant::now();
    let usage = leases.iter().map(|lease| (lease.lease, lease.usage)).collect();
    let earlier = before.replace(Before { at, usage });
    let rows = leases
        .into_iter()
        .map(|lease| row(lease, &nodes, earlier.as_ref(), at))
        .collect();
    Ok(Look { nodes, leases: rows })
}

fn row(lease: LeaseStatus, nodes: &[NodeStatus], earlier: Option<&Before>, at: Instant) -> Row {
    let seconds = earlier.map_or(0.0, |before| at.duration_since(before.at).as_secs_f64());
    // All usage of a new lease is from this interval.
    let used = earlier
        .and_then(|before| before.usage.get(&lease.lease))
        .copied()
        .unwrap_or_default();
    let rate = |now: u64, then: u64| {
        if seconds > 0.0 {
            now.saturating_sub(then) as f64 / seconds
        } else {
            0.0
        }
    };
    // The node reports at its own times, so the share can appear to exceed 100 %.
    let share = |now: u64, then: u64| (rate(now, then) / 1e4 / f64::from(lease.workers.max(1))).min(100.0);
    Row {
        node_name: node_name(lease.node, nodes),
        calls_per_s: rate(lease.usage.calls, used.calls),
        computing_percent: share(lease.usage.computing_us, used.computing_us),
        polling_percent: share(lease.usage.polling_us, used.polling_us),
        lease,
    }
}

impl Look {
    fn text(&self, bold: bool) -> String {
        let sum = |of: fn(&NodeStatus) -> MilliCores| self.nodes.iter().map(of).sum::<MilliCores>();
        // The sum of an empty iterator of floats is -0.
        let calls = self.leases.iter().fold(0.0, |sum, row| sum + row.calls_per_s);
        let summary = format!(
            "{}, {} of {} hot cores and {} of {} warm workers free; {}, {calls:.0} calls/s",
            output::count(self.nodes.len() as u64, "node"),
            sum(|node| node.free.cores.into()),
            sum(|node| node.capacity.cores.into()),
            sum(|node| node.free.workers),
            sum(|node| node.capacity.workers),
            output::count(self.leases.len() as u64, "lease"),
        );
        let mut parts = vec![summary];
        parts.extend(harvest::text(&self.nodes, bold));
        if self.leases.is_empty() {
            return parts.join("\n\n");
        }
        let columns = [
            ("LEASE", Align::Left),
            ("NODE", Align::Left),
            ("WORKERS", Align::Right),
            ("CALLS/S", Align::Right),
            ("COMPUTING %", Align::Right),
            ("POLLING %", Align::Right),
            ("CALLS", Align::Right),
            ("FAILED", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for row in &self.leases {
            table.row([
                row.lease.lease.to_string(),
                row.node_name.clone(),
                workers(&row.lease),
                format!("{:.0}", row.calls_per_s),
                format!("{:.1}", row.computing_percent),
                format!("{:.1}", row.polling_percent),
                row.lease.usage.calls.to_string(),
                row.lease.usage.failures.to_string(),
            ]);
        }
        parts.push(table.text(bold));
        parts.join("\n\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_leases_make_zero_calls() {
        let look = Look {
            nodes: Vec::new(),
            leases: Vec::new(),
        };
        assert!(look.text(false).ends_with(" 0 calls/s"), "{}", look.text(false));
    }
}
