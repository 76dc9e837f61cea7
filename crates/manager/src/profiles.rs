//! Profiles of functions (`impl Control`): what nodes learnt about a tenant's calls.

use std::time::Duration;

use dayfly_protocol::api::{FunctionProfile, MAX_PROFILE_NAME_BYTES, NodeStatus, is_named};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::LoadFunction;
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_protocol::text::{self, encoded};
use futures_util::future::join_all;

use crate::cluster::AskedNode;
use crate::control::Control;
use crate::extractors::Caller;
use crate::forwarding::ClientAuthorization;
use crate::tenants::no_such_tenant;

/// A node reports from memory. One that takes longer is left out.
const RESPONSE_LIMIT: Duration = Duration::from_secs(2);
/// Most nodes that are asked for one request.
const MAX_ASKED: usize = 1_024;

impl Control {
    /// Returns what the nodes of all managers learnt about a tenant's calls of a function; without a tenant, about the
    /// caller's. A request of another manager, which has no `client`, gets that of this manager's nodes.
    ///
    /// # Errors
    /// `NotFound` if the caller sees no such tenant, if no node measures calls, or if none learnt from this function.
    pub async fn profiles(
        &self,
        caller: &Caller,
        client: Option<ClientAuthorization>,
        wanted: &str,
        tenant: Option<String>,
    ) -> Result<Vec<FunctionProfile>, Failure> {
        let owner = match &tenant {
            None => caller.bearer.tenant,
            Some(name) => {
                let found = self.cluster().tenants().named(name).map(|account| account.record().id);
                let found = found.filter(|tenant| caller.sees(*tenant));
                found.ok_or_else(|| no_such_tenant(name))?
            }
        };
        if wanted.len() > MAX_PROFILE_NAME_BYTES {
            let text = format!("a function's name has at most {MAX_PROFILE_NAME_BYTES} bytes");
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let Some(client) = client else {
            return Ok(self.own_profiles(owner, wanted).await);
        };
        let label = match self.registered_label(owner, wanted) {
            Some(label) => label,
            None => self.label_at_peers(&client, wanted).await,
        };
        let path = format!(
            "/v1/functions/{}/profile?tenant={}",
            encoded(&label),
            encoded(&self.tenant_name(owner))
        );
        let (mut found, others) = tokio::join!(
            self.own_profiles(owner, &label),
            self.peer_responses::<Vec<FunctionProfile>>(&client, &path)
        );
        let mut known: std::collections::HashSet<_> = found.iter().map(|row| row.node).collect();
        for rows in others {
            // A node that moves between managers reports to one of them.
            let new: Vec<_> = rows.into_iter().filter(|row| !known.contains(&row.node)).collect();
            known.extend(new.iter().map(|row| row.node));
            found.extend(new);
        }
        if found.is_empty() {
            return Err(nothing_learnt(wanted, &self.all_nodes(Some(client)).await));
        }
        found.sort_by(|a, b| {
            let key = |row: &FunctionProfile| (row.node_name.clone(), row.node, row.learnt.function.clone());
            key(a).cmp(&key(b))
        });
        Ok(found)
    }

    /// The label that a registered function has in the meters of workers, if this manager owns the tasks.
    fn registered_label(&self, tenant: TenantId, wanted: &str) -> Option<String> {
        let tasks = self.tasks().ok()?;
        let function = tasks.function_named(&tasks.submitter(tenant), wanted).ok()?;
        let form = function.spec.form.clone();
        let hash = function.hash;
        Some(LoadFunction { hash, form }.label())
    }

    /// That label, if another manager owns the tasks and has such a function. Otherwise the text itself.
    async fn label_at_peers(&self, client: &ClientAuthorization, wanted: &str) -> String {
        let path = format!("/v1/functions/{}", encoded(wanted));
        let found = self
            .peer_responses::<FunctionStatus>(client, &path)
            .await
            .into_iter()
            .next();
        found.map_or_else(
            || wanted.to_owned(),
            |FunctionStatus { hash, form, .. }| LoadFunction { hash, form }.label(),
        )
    }

    /// What this manager's nodes learnt.
    async fn own_profiles(&self, tenant: TenantId, wanted: &str) -> Vec<FunctionProfile> {
        let asked = self
            .cluster()
            .nodes_mut()
            .ask_profiles(MAX_ASKED, |request| ManagerMessage::Profiles {
                request,
                tenant,
                function: wanted.to_owned(),
            });
        let responses = asked.into_iter().map(|asked| async move {
            let AskedNode {
                node,
                name,
                mode,
                response,
            } = asked;
            let learnt = tokio::time::timeout(RESPONSE_LIMIT, response).await.ok()?.ok()?;
            // A node may have sent the profiles of other functions.
            let named = learnt.into_iter().filter(|learnt| is_named(&learnt.function, wanted));
            let rows = named.map(|learnt| FunctionProfile {
                node,
                node_name: name.clone(),
                mode,
                learnt,
            });
            Some(rows.collect::<Vec<_>>())
        });
        join_all(responses).await.into_iter().flatten().flatten().collect()
    }
}

/// The failure when no node of these learnt from a function.
fn nothing_learnt(wanted: &str, nodes: &[NodeStatus]) -> Failure {
    let wanted = text::line(wanted, 80);
    let harvesting: Vec<_> = nodes.iter().filter_map(|node| node.harvest.as_ref()).collect();
    let text = match harvesting.iter().find(|status| status.why.is_none()) {
        Some(_) => format!(
            "no node has learnt from calls of `{wanted}` yet. Nodes with --harvest measure calls of 20 ms and more in \
             warm workers, from the second call of each worker on; `dayfly status` shows how many"
        ),
        None => match harvesting.iter().find_map(|status| status.why.as_ref()) {
            Some(why) => format!("no node can measure calls. {}", text::line(why, 512)),
            None => "no node measures calls. Start nodes with `--harvest watch`, or let an operator run `dayfly node \
                     harvest NODE watch`"
                .to_owned(),
        },
    };
    Failure::new(Code::NotFound, text)
}
