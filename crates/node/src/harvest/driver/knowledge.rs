//! What the policy learns apart from the calls that run: samples of other nodes, and models.

use dayfly_harvest::Event;
use dayfly_harvest::profile::Trained;
use dayfly_protocol::call_samples::CallSample;
use dayfly_protocol::ids::TenantId;

use super::Driver;

impl Driver {
    /// Learns from calls of other nodes. The record has them, so that it can be repeated.
    pub(super) fn adopt(&mut self, tenant: TenantId, function: &str, samples: &[CallSample]) {
        let Some((function, samples)) = self.node.learning.wanted_samples(tenant, function, samples) else {
            return;
        };
        for sample in samples {
            self.handle(&Event::Adopted { function, sample });
        }
    }

    /// Begins the next training that is due, unless one runs. The record has its begin and end, so that it can be
    /// repeated whatever the training took.
    pub(super) fn begin_training(&mut self) {
        if self.trainer.is_busy() {
            return;
        }
        let Some(function) = self.node.learning.due() else {
            return;
        };
        self.handle(&Event::TrainingBegun { function });
        if let Some(job) = self.node.learning.training(function) {
            self.trainer.begin(function, job);
        }
    }

    pub(super) fn end_training(&mut self, trained: Trained) {
        if let Some(function) = self.trainer.end() {
            self.node.learning.keep_models(trained);
            self.handle(&Event::TrainingEnded { function });
        }
    }
}
