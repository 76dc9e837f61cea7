//! Handlers for queries of data frames, which clients report while they run.

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, put};
use axum::{Json, Router};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::QueryId;
use dayfly_protocol::queries::{MAX_REPORT_BYTES, QueryInstruction, QueryReport, QueryState, QueryStatus};
use dayfly_store::system::now_ms;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::control::Control;
use crate::extractors::{Call, Caller, JsonBody, PathOf, QueryOf, Read, Refusal, Write, refuse};
use crate::queries::{KnownQueries, Owned};

/// Routes of queries.
pub fn routes() -> Router<Api> {
    let long = DefaultBodyLimit::max(MAX_REPORT_BYTES);
    Router::new().route("/v1/queries", get(list_queries)).route(
        "/v1/queries/{id}",
        put(report_query).layer(long).get(show_query).delete(cancel_query),
    )
}

/// Query of a list of queries.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(crate) struct QueryFilter {
    /// Only queries in this state.
    state: Option<QueryState>,
}

/// Lists queries of data frames that run, or whose last report is at most an hour old: running ones first, and the
/// latest of them. These are own queries; for operators, those of all tenants. Stages and ranks are left out.
#[utoipa::path(get, path = "/v1/queries", params(QueryFilter), security(("bearer" = [])),
    responses((status = 200, body = [QueryStatus]), (status = "default", body = ErrorBody)))]
pub(crate) async fn list_queries(
    call: Call<Read, (), QueryOf<QueryFilter>>,
) -> Result<Json<Vec<QueryStatus>>, Refusal> {
    let Call {
        caller,
        control,
        query: QueryOf(query),
        ..
    } = call;
    let listed = queries(&control)?.list(|tenant| caller.sees(tenant), query.state, now_ms());
    Ok(Json(listed.into_iter().map(|owned| named(&control, owned)).collect()))
}

/// Returns one query, with its stages and ranks.
#[utoipa::path(get, path = "/v1/queries/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = QueryStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_query(call: Call<Read, PathOf<String>>) -> Result<Json<QueryStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    Ok(Json(named(&control, query_at(&control, &caller, &path)?)))
}

/// Reports the state of an own query, in place of the report before. Its client does so every second while the query
/// runs, and at its end. A query without a report for 15 s is shown as lost. The response says whether the client is to
/// cancel the query.
#[utoipa::path(put, path = "/v1/queries/{id}", params(("id" = QueryId, Path)), request_body = QueryReport,
    security(("bearer" = [])),
    responses((status = 200, body = QueryInstruction), (status = "default", body = ErrorBody)))]
pub(crate) async fn report_query(
    call: Call<Write, PathOf<QueryId>, (), JsonBody<QueryReport>>,
) -> Result<Json<QueryInstruction>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(id),
        body: JsonBody(report),
        ..
    } = call;
    let instruction = queries(&control)?.report(caller.bearer.tenant, id, report, now_ms())?;
    Ok(Json(instruction))
}

/// Has the client of an own query cancel it, by the response to its next report; for operators, of any query. Returns
/// the query. One that has ended stays as it is.
#[utoipa::path(delete, path = "/v1/queries/{id}", params(("id" = String, Path, pattern = r"^(\.\.\.)?[0-9a-fA-F]{6,32}$")), security(("bearer" = [])),
    responses((status = 200, body = QueryStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn cancel_query(call: Call<Write, PathOf<String>>) -> Result<Json<QueryStatus>, Refusal> {
    let Call {
        caller,
        control,
        path: PathOf(path),
        ..
    } = call;
    let (tenant, QueryStatus { id, .. }) = query_at(&control, &caller, &path)?;
    if tenant != caller.bearer.tenant {
        control.audit().record(&caller, "query.cancel", id, &tenant).await?;
    }
    let cancelled = queries(&control)?.cancel(id, now_ms());
    let cancelled = cancelled.ok_or_else(|| unknown(&id.to_string()))?;
    Ok(Json(named(&control, cancelled)))
}

/// The queries, if this manager has them: the one that owns the tasks does.
fn queries(control: &Control) -> Result<&KnownQueries, Failure> {
    control.tasks()?;
    Ok(control.queries())
}

fn unknown(id: &str) -> Refusal {
    let text = format!("you have no query {id}; queries are kept for an hour after their last report");
    refuse(Code::NotFound, text)
}

/// Adds the name of the tenant.
fn named(control: &Control, (tenant, status): Owned) -> QueryStatus {
    QueryStatus {
        tenant: control.tenant_name(tenant),
        ..status
    }
}

/// Returns the query that a path names by its id, or by the beginning or end of its id, if the caller may see it.
fn query_at(control: &Control, caller: &Caller, path: &str) -> Result<Owned, Refusal> {
    let (given, now_ms): (IdPattern, u64) = (path.parse()?, now_ms());
    let known = queries(control)?;
    let id = match given.full_id() {
        Some(id) => id,
        None => {
            let seen = known.list(|tenant| caller.sees(tenant), None, now_ms);
            let ids = seen.into_iter().map(|(_, status)| status.id);
            given.resolve(ids.filter(|id| given.matches(&id.0)).collect(), "query")?
        }
    };
    let found = known.get(id, now_ms).filter(|(tenant, _)| caller.sees(*tenant));
    found.ok_or_else(|| unknown(&id.to_string()))
}
