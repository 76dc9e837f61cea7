//! Teams, and what tasks cost, over HTTP.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
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
use crate::extractors::{Body, Caller, NamePath, Packed, Refusal, asked, named};

/// Routes of teams and usage.
pub fn routes() -> Router<Api> {
    let members = DefaultBodyLimit::max(MAX_SHARING_BODY_BYTES);
    Router::new()
        .route("/v1/teams", get(list_teams))
        .route("/v1/teams/{name}", put(set_team).layer(members).delete(remove_team))
        .route("/v1/usage", get(show_task_usage))
}

/// Teams that the caller has, or is in.
#[utoipa::path(get, path = "/v1/teams", security(("bearer" = [])),
    responses((status = 200, body = [Team]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_teams(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
) -> Result<Response, Refusal> {
    Ok(packed.answer(control.tasks()?.teams(caller.bearer.tenant)))
}

/// Makes a team, or changes the caller's one of this name: tenants that functions and endpoints are shared with as `team:NAME`.
#[utoipa::path(put, path = "/v1/teams/{name}",
    params(("name" = String, Path, pattern = "^[A-Za-z][A-Za-z0-9._-]{0,63}$")), request_body = TeamSpec,
    security(("bearer" = [])), responses((status = 200, body = Team), (status = "default", body = ErrorBody)))]
pub(crate) async fn set_team(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
    Body(spec): Body<TeamSpec>,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let name = named(path)?;
    check_team(&name, &spec)?;
    control.audit(&caller, "team.set", &name, &spec).await?;
    let team: Team = control.tasks()?.set_team(caller.bearer.tenant, name, spec).await?;
    Ok(packed.answer(team))
}

/// Forgets a team of the caller's: what is shared with it is shared with its members no more.
#[utoipa::path(delete, path = "/v1/teams/{name}", params(("name" = String, Path)), security(("bearer" = [])),
    responses((status = 200, body = Team), (status = "default", body = ErrorBody)))]
pub(crate) async fn remove_team(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    path: NamePath,
) -> Result<Response, Refusal> {
    caller.changes_as(Role::User)?;
    let name = named(path)?;
    control.audit(&caller, "team.remove", &name, &()).await?;
    Ok(packed.answer(control.tasks()?.remove_team(caller.bearer.tenant, &name).await?))
}

/// Which days.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Days {
    /// Milliseconds since the Unix epoch: days that ended before are left out.
    #[serde(default)]
    from: u64,
    /// The same: days that begin then or later are left out.
    #[serde(default = "for_ever")]
    until: u64,
    /// Everybody's, for operators.
    #[serde(default)]
    everybody: bool,
}

fn for_ever() -> u64 {
    i64::MAX as u64
}

/// What durable tasks cost, by day, tenant, function and endpoint: one's own, or, for operators who ask for them, everybody's.
#[utoipa::path(get, path = "/v1/usage", params(Days), security(("bearer" = [])),
    responses((status = 200, body = [UsageLine]), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_task_usage(
    caller: Caller,
    packed: Packed,
    Shared(control): Shared<Api>,
    query: Result<Query<Days>, QueryRejection>,
) -> Result<Response, Refusal> {
    let asked = asked(query)?;
    if asked.everybody {
        caller.is(Role::Operator)?;
    }
    let of = (!asked.everybody).then_some(caller.bearer.tenant);
    Ok(packed.answer(control.tasks()?.usage(asked.from, asked.until, of).await?))
}
