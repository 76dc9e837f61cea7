//! Durable state of flows: their definition and how they ended. Their progress follows from their tasks.

use dayfly_protocol::error::Failure;
use dayfly_protocol::flows::{FlowRequest, FlowState, StepStatus};
use dayfly_protocol::ids::{FlowId, TenantId};

use super::Pending;

/// A stored flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRecord {
    /// Id of the flow.
    pub id: FlowId,
    /// Tenant that owns it.
    pub tenant: TenantId,
    /// Definition of the flow.
    pub request: FlowRequest,
    /// State of the flow.
    pub state: FlowState,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Final state of its steps; empty until the flow has ended.
    pub steps: Vec<StepStatus>,
    /// Start, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// End, in milliseconds since the Unix epoch; 0 while it is unfinished.
    pub ended_at_ms: u64,
}

/// Durable state of flows. Writes take effect in the order of the calls.
pub trait FlowStore {
    /// Returns the unfinished flows.
    fn live_flows(&self) -> Pending<Vec<FlowRecord>>;

    /// Stores a flow. Returns the flow stored under its id, which may be an earlier one, and whether it is new.
    fn keep_flow(&self, flow: FlowRecord) -> Pending<(FlowRecord, bool)>;

    /// Stores how a flow and its steps ended.
    fn end_flow(&self, flow: FlowId, error: Option<Failure>, steps: Vec<StepStatus>, ended_at_ms: u64) -> Pending<()>;

    /// Returns a flow.
    fn flow(&self, flow: FlowId) -> Pending<Option<FlowRecord>>;

    /// Returns a tenant's flows, latest first, without their steps and input.
    fn flows(&self, tenant: TenantId, limit: u32) -> Pending<Vec<FlowRecord>>;

    /// Deletes flows that ended before this time.
    fn delete_flows(&self, ended_before_ms: u64) -> Pending<()>;
}
