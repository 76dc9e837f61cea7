//! Handlers for teams, and for the cost of tasks.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::{get, put};
use dayfly_durable_tasks::check_team;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::sharing::{MAX_SHARING_BODY_BYTES, Team, TeamSpec};
use dayfly_protocol::tasks::UsageLine;
use dayfly_protocol::tenancy::Role;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::extractors::{Call, JsonBody, PathOf, QueryOf, Read, Refusal, Write};

/// Routes of teams and usage.
pub fn routes() -> Router<Api> {
    let members = DefaultBodyLimit::max(MAX_SHARING_BODY_BYTES);
    Router::new()
        .route("/v1/teams", get(list_teams))
        .route("/v1/teams/{name}", put(set_team).layer(members).delete(remove_team))
        .route("/v1/usage", get(show_task_usage))
}

/// Lists the teams that the caller owns or is a member of.
#[utoipa::path(get, path = "/v1/teams", security(("bearer" = [])),
    responses((status = 200, body = [Team]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_teams(call: Call<Read>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        format,
        ..
    } = call;
    Ok(format.respond(control.tasks()?.teams(caller.bearer.tenant)))
}

/// Makes a team, or changes the caller's one of this name. Functions and endpoints are shared with its members as
/// `team:NAME`.
#[utoipa::path(put, path = "/v1/teams/{name}",
    params(("name" = String, Path, pattern = "^[A-Za-z][A-Za-z0-9._-]{0,63}$")), request_body = TeamSpec,
    security(("bearer" = [])), responses((status = 200, body = Team), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_team(call: Call<Write, PathOf<String>, (), JsonBody<TeamSpec>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        body: JsonBody(spec),
        format,
        ..
    } = call;
    let name = path;
    check_team(&name, &spec)?;
    control.audit().record(&caller, "team.set", &name, &spec).await?;
    let team: Team = control.tasks()?.set_team(caller.bearer.tenant, name, spec).await?;
    Ok(format.respond(team))
}

/// Removes a team of the caller. What is shared with it is no longer shared with its members.
#[utoipa::path(delete, path = "/v1/teams/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Team), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_team(call: Call<Write, PathOf<String>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        format,
        ..
    } = call;
    let name = path;
    control.audit().record(&caller, "team.remove", &name, &()).await?;
    Ok(format.respond(control.tasks()?.remove_team(caller.bearer.tenant, &name).await?))
}

/// Query of the cost of tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Days {
    /// Milliseconds since the Unix epoch: days that ended before are omitted.
    #[serde(default)]
    from: u64,
    /// Milliseconds since the Unix epoch: days that begin then or later are omitted.
    #[serde(default = "for_ever")]
    until: u64,
    /// Costs of all tenants. For operators.
    #[serde(default)]
    everybody: bool,
}

fn for_ever() -> u64 {
    i64::MAX as u64
}

/// Returns the cost of durable tasks by day, tenant, function and endpoint: of the own tenant, or with `everybody` of
/// all.
#[utoipa::path(get, path = "/v1/usage", params(Days), security(("bearer" = [])),
    responses((status = 200, body = [UsageLine]), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_task_usage(call: Call<Read, (), QueryOf<Days>>) -> Result<Response, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        format,
        ..
    } = call;
    let asked = query;
    if asked.everybody {
        caller.is(Role::Operator)?;
    }
    let of = (!asked.everybody).then_some(caller.bearer.tenant);
    Ok(format.respond(control.tasks()?.usage(asked.from, asked.until, of).await?))
}
