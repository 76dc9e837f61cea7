//! What must survive of flows: what they are, and how they ended. How far they are stands in their tasks.

use dayfly_protocol::error::Failure;
use dayfly_protocol::flows::{FlowRequest, FlowState, StepStatus};
use dayfly_protocol::ids::{FlowId, TenantId};

use super::Pending;

/// A flow in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRecord {
    /// Which.
    pub id: FlowId,
    /// Whose.
    pub tenant: TenantId,
    /// What it is.
    pub request: FlowRequest,
    /// Where it is in its life.
    pub state: FlowState,
    /// Why it failed.
    pub error: Option<Failure>,
    /// How its steps ended; none before.
    pub steps: Vec<StepStatus>,
    /// Wall clock, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// When it ended; 0 before.
    pub ended_at_ms: u64,
}

/// The manager's memory of flows. Writes take effect in the order of the calls.
pub trait FlowStore {
    /// Flows that have not ended.
    fn live_flows(&self) -> Pending<Vec<FlowRecord>>;

    /// Keeps a flow; answers what is kept under its id, which may be another, and whether it was not known before.
    fn keep_flow(&self, flow: FlowRecord) -> Pending<(FlowRecord, bool)>;

    /// A flow ended: how, and how its steps did.
    fn end_flow(&self, flow: FlowId, error: Option<Failure>, steps: Vec<StepStatus>, ended_at_ms: u64) -> Pending<()>;

    /// One flow.
    fn flow(&self, flow: FlowId) -> Pending<Option<FlowRecord>>;

    /// Flows of a tenant's, the latest first, without their steps and input.
    fn flows(&self, tenant: TenantId, limit: u32) -> Pending<Vec<FlowRecord>>;

    /// Forgets flows that ended before this time.
    fn forget_flows(&self, ended_before_ms: u64) -> Pending<()>;
}
