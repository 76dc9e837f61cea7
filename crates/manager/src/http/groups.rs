//! Handlers for groups of ranks: where they meet, and which do.

use axum::routing::get;
use axum::{Json, Router};
use dayfly_protocol::api::{ErrorBody, GroupStatus, MeetingPlace};
use dayfly_protocol::tenancy::Role;

use super::Api;
use crate::extractors::{Call, Read};
use crate::group_prefixes::split;

/// Groups of one list.
const MAX_GROUPS: usize = 1_000;

/// Routes of groups.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/rendezvous", get(show_rendezvous))
        .route("/v1/groups", get(list_groups))
}

/// Returns where the ranks of groups meet, and the prefix for the names of the caller's groups.
#[utoipa::path(get, path = "/v1/rendezvous", security(("bearer" = [])),
    responses((status = 200, body = MeetingPlace), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_rendezvous(call: Call<Read>) -> Json<MeetingPlace> {
    Json(MeetingPlace {
        rendezvous: call.control.rendezvous().clone(),
        group_prefix: call.control.group_prefixes().prefix(call.caller.bearer.tenant),
    })
}

/// Lists groups whose ranks meet at this manager, by name; at most 1,000. These are the groups of the caller's tenant,
/// whose names begin with its prefix, and all groups for operators.
#[utoipa::path(get, path = "/v1/groups", security(("bearer" = [])),
    responses((status = 200, body = [GroupStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_groups(call: Call<Read>) -> Json<Vec<GroupStatus>> {
    let control = &call.control;
    let own = call.caller.bearer.tenant;
    let is_operator = call.caller.role >= Role::Operator;
    let prefixes = control.group_prefixes();
    let seen = if is_operator {
        String::new()
    } else {
        prefixes.prefix(own)
    };
    let groups = control.groups().groups(&seen, MAX_GROUPS);
    let names = if is_operator && !groups.is_empty() {
        let cluster = control.cluster();
        let tenants = cluster.tenants().values();
        prefixes.names(tenants.map(|tenant| (tenant.record().id, tenant.record().name.clone())))
    } else {
        prefixes.names([(own, control.tenant_name(own))])
    };
    let statuses = groups.into_iter().map(|group| {
        let (prefix, rest) = split(&group.name);
        let tenant = names.get(prefix).cloned();
        GroupStatus {
            name: if tenant.is_some() { rest } else { &group.name }.into(),
            tenant,
            run: group.run,
            size: group.size,
            ranks: group.ranks,
            formed: group.is_formed,
            lost_rank: group.lost.as_ref().map(|(rank, _)| *rank),
            why: group.lost.map(|(_, why)| why),
        }
    });
    Json(statuses.collect())
}
