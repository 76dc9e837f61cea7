//! The handler for the audit log.

use axum::Json;
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::Code;
use dayfly_protocol::tenancy::AuditEntry;
use dayfly_store::AuditPage;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::audit::MAX_ENTRIES;
use crate::extractors::{AdministratorRead, Call, QueryOf, Refusal, refuse};

/// Query of the audit log.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(crate) struct AuditFilter {
    /// Only entries with greater numbers: the number of the last known entry.
    above: u64,
    /// Only entries with smaller numbers, and the last of them: the number of the first known entry.
    before: Option<u64>,
    /// Number of entries. Default and maximum: 1,000.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// Returns a page of the audit log, the oldest entry first: who changed tenants, tokens, prices, nodes, leases of other
/// tenants, and objects of tasks. The page begins at the oldest entry, or with `before` ends there. For administrators.
#[utoipa::path(get, path = "/v1/audit", params(AuditFilter), security(("bearer" = [])),
    responses((status = 200, body = [AuditEntry]), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_audit(
    call: Call<AdministratorRead, (), QueryOf<AuditFilter>>,
) -> Result<Json<Vec<AuditEntry>>, Refusal> {
    let Call {
        control,
        query: QueryOf(query),
        ..
    } = call;
    let asked = query;
    let page = AuditPage {
        above: asked.above,
        before: asked.before,
        limit: match asked.limit.unwrap_or(MAX_ENTRIES) {
            0 => {
                return Err(refuse(
                    Code::InvalidRequest,
                    "a page cannot have 0 entries; ask for 1 to 1,000",
                ));
            }
            limit if limit > MAX_ENTRIES => {
                let text = format!("a page cannot have {limit} entries; ask for 1 to {MAX_ENTRIES}");
                return Err(refuse(Code::InvalidRequest, text));
            }
            limit => limit,
        },
    };
    Ok(Json(control.audit().page(page).await?))
}
