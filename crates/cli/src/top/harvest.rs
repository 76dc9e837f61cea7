//! What the measured calls of each node have now.

use dayfly_client::NodeStatus;
use dayfly_protocol::api::{CallResources, HarvestMode, HarvestStatus};

use crate::output::{self, Align, Table};

/// Returns a table of the nodes that harvest, with the reasons of those that cannot. `None` if no node harvests.
pub fn text(nodes: &[NodeStatus], bold: bool) -> Option<String> {
    let harvesting = |node: &NodeStatus| {
        let status = node.harvest.clone();
        status.map(|status| (output::plain(&node.address.name), status))
    };
    let all: Vec<(String, HarvestStatus)> = nodes.iter().filter_map(harvesting).collect();
    if all.is_empty() {
        return None;
    }
    let columns = [
        ("NODE", Align::Left),
        ("HARVEST", Align::Left),
        ("MEASURED CALLS", Align::Right),
        ("OWNED", Align::Right),
        ("USED", Align::Right),
        ("LENT", Align::Right),
        ("BORROWED", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for (name, status) in &all {
        let [owned, used, lent, borrowed] = match status.now {
            Some(now) => [now.owned, now.used, now.lent, now.borrowed].map(amount),
            None => std::array::from_fn(|_| "-".into()),
        };
        let calls = status.calls.to_string();
        table.row([
            name.clone(),
            status.mode.to_string(),
            calls,
            owned,
            used,
            lent,
            borrowed,
        ]);
    }
    let mut text = table.text(bold);
    for (name, status) in &all {
        if let Some(why) = nothing_lent(status) {
            text += &format!("\n{name}: {why}");
        }
    }
    Some(text)
}

/// Why a node lends nothing; `None` if it may lend.
fn nothing_lent(status: &HarvestStatus) -> Option<String> {
    match (&status.why, status.mode) {
        (Some(why), _) => Some(format!("nothing is harvested. {}", output::plain(why))),
        (None, HarvestMode::Watch) => Some("it lends nothing, since it only watches.".into()),
        _ => None,
    }
}

/// Cores and memory, such as `1.50, 256 MiB`.
fn amount(resources: CallResources) -> String {
    let cores = resources.milli_cores as f64 / 1_000.0;
    format!("{cores:.2}, {}", output::size(resources.memory_bytes))
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::HarvestedNow;
    use serde_json::json;

    use super::*;

    fn node(harvest: Option<HarvestStatus>) -> NodeStatus {
        let mut node: NodeStatus = serde_json::from_value(json!({
            "address": {
                "id": "00".repeat(16), "name": "rack\u{1b}1", "host": "h", "unix": null, "tcp": null, "key": "00".repeat(32),
            },
            "capacity": {"cores": 2, "workers": 8, "memory_bytes": 1},
            "free": {"cores": 2, "workers": 8, "memory_bytes": 1},
            "state": "up", "heartbeat_age_ms": 1, "leases": 0,
        }))
        .unwrap();
        node.harvest = harvest;
        node
    }

    #[test]
    fn harvesting_nodes_show_amounts_or_the_reason() {
        let mut watching = HarvestStatus::new(HarvestMode::Watch, None);
        watching.calls = 3;
        watching.now = Some(HarvestedNow {
            used: CallResources {
                milli_cores: 1_500,
                memory_bytes: 256 << 20,
            },
            ..HarvestedNow::default()
        });
        let broken = HarvestStatus::new(HarvestMode::On, Some("No groups.".into()));
        let text = text(&[node(None), node(Some(watching)), node(Some(broken))], false).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("NODE"), "{text}");
        assert!(
            lines[1].contains("watch") && lines[1].contains("1.50, 256 MiB"),
            "{text}"
        );
        assert!(lines[2].contains(" on ") && lines[2].ends_with('-'), "{text}");
        assert_eq!(lines[3], "rack\\u{1b}1: it lends nothing, since it only watches.");
        assert_eq!(lines[4], "rack\\u{1b}1: nothing is harvested. No groups.");
    }

    #[test]
    fn nodes_that_do_not_harvest_need_no_table() {
        assert_eq!(text(&[node(None)], false), None);
    }
}
