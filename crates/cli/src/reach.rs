//! The nodes and sandbox levels at which a tenant's code runs, shown after a tenant or token is made.

use std::collections::BTreeMap;

use dayfly_client::{Client, NodeStatus};
use dayfly_protocol::api::Sandbox;
use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::tenancy::Tenant;

use crate::output::plain;

/// Maximum number of nodes to name; beyond that only their number is shown.
const MAX_NAMED: usize = 5;

/// Writes to standard error where the connected nodes run a tenant's code, and at which sandbox levels.
pub fn tell(client: &Client, tenant: TenantId, name: &str) -> Result<(), Failure> {
    let nodes = client.nodes().map_err(|error| error.0)?;
    for line in lines(&nodes, tenant, name) {
        eprintln!("{line}");
    }
    Ok(())
}

/// As [`tell`], for a tenant known by name.
pub fn tell_by_name(client: &Client, name: &str) -> Result<(), Failure> {
    let tenants: Vec<Tenant> = client.get("/v1/tenants").map_err(|error| error.0)?;
    match tenants.iter().find(|tenant| tenant.name == name) {
        Some(tenant) => tell(client, tenant.id, name),
        None => Ok(()),
    }
}

fn lines(nodes: &[NodeStatus], tenant: TenantId, name: &str) -> Vec<String> {
    let mut by_levels: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let Some(sandboxes) = &node.sandboxes else { continue };
        let levels = sandboxes.of(tenant).iter().map(|level| level.name()).collect();
        by_levels.entry(levels).or_default().push(plain(&node.address.name));
    }
    if by_levels.is_empty() {
        return vec![format!(
            "No node is connected now. One that joins isolates code of {name}, unless {name} made its join token or it is started \
             with --run-tenants-as-me."
        )];
    }
    let line = |(levels, nodes): (Vec<&str>, Vec<String>)| {
        let more = nodes.len().saturating_sub(MAX_NAMED);
        let mut where_ = nodes[..nodes.len() - more].join(", ");
        if more > 0 {
            where_.push_str(&format!(" and {more} more"));
        }
        let at = levels.join("` or `");
        match levels.contains(&Sandbox::Process.name()) {
            true => format!(
                "Code of {name} runs on {where_} at sandbox `{at}`. At `process` it runs as the user of the node, and can do all that \
                 this user can."
            ),
            false => format!(
                "Code of {name} runs on {where_} at sandbox `{at}`, apart from the node's user and from other tenants."
            ),
        }
    };
    by_levels.into_iter().map(line).collect()
}
