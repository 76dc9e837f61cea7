//! What the driver reports to the rest of the node.

use dayfly_protocol::api::{HarvestMode, HarvestStatus};

use super::Driver;
use crate::harvest::pools::Pools;

impl Driver {
    /// Reports what is lendable: once in a window, and when the last call has ended.
    pub(super) fn report_pools(&self) {
        let pools = (self.mode == HarvestMode::On).then(|| Pools::of(&self.engine, self.now_us()));
        self.node.set_pools(pools);
    }

    /// Reports what is measured now, and what was learnt.
    pub(super) fn report(&self) {
        let (core_ms, mib_s) = self.totals.report();
        let mut status = self.node.status();
        *status = HarvestStatus {
            mode: status.mode,
            why: status.why.take(),
            calls: u32::try_from(self.calls.len()).unwrap_or(u32::MAX),
            functions: self.node.learning.functions(),
            samples: self.node.learning.samples(),
            core_ms,
            mib_s,
            late_windows: self.late_windows,
            now: Some(self.totals.now()),
        };
    }
}
