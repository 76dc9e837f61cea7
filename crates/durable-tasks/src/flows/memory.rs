//! Bytes of inputs and results that the unfinished flows of each tenant have in memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::flows::MAX_RESULT_BYTES;
use dayfly_protocol::ids::TenantId;

/// Maximum for all flows of one tenant, as JSON.
const MAX_TENANT_BYTES: usize = 256 << 20;

/// Bytes of all tenants' flows.
#[derive(Default)]
pub struct FlowMemory {
    bytes: Mutex<HashMap<TenantId, usize>>,
}

impl FlowMemory {
    fn bytes(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts more bytes of a flow, which has `flow_bytes` with them. They count also if an error is returned.
    ///
    /// # Errors
    /// `TooLarge` for the flow, `QuotaExceeded` for its tenant.
    pub fn add(&self, tenant: TenantId, bytes: usize, flow_bytes: usize) -> Result<(), Failure> {
        let all = {
            let mut held = self.bytes();
            let all = held.entry(tenant).or_default();
            *all = all.saturating_add(bytes);
            *all
        };
        if flow_bytes > MAX_RESULT_BYTES {
            let text = format!(
                "the flow's input and results have more than {MAX_RESULT_BYTES} bytes; store large results, and return \
                 where they are"
            );
            return Err(Failure::new(Code::TooLarge, text));
        }
        if all > MAX_TENANT_BYTES {
            let text = format!("your unfinished flows have more than {MAX_TENANT_BYTES} bytes; start fewer at a time");
            return Err(Failure::new(Code::QuotaExceeded, text));
        }
        Ok(())
    }

    /// Counts bytes no more.
    pub fn release(&self, tenant: TenantId, bytes: usize) {
        let mut held = self.bytes();
        if let Some(all) = held.get_mut(&tenant) {
            *all = all.saturating_sub(bytes);
            if *all == 0 {
                held.remove(&tenant);
            }
        }
    }
}
