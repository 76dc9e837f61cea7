//! A node offers more or fewer resources while it runs.

use dayfly_lease::ledger::Offer;
use dayfly_protocol::api::NodeResize;

use super::*;

/// File in the state directory with the part of its resources that a node offers. Without it, the node offers all.
const OFFER: &str = "offer.json";
/// How long the end of leases may take beyond the grace for running calls.
const END_LIMIT: Duration = SHUTDOWN_DEADLINE;

impl Node {
    /// Changes what the node offers to leases. Free resources leave at once. [`Node::end_excess`] must follow.
    pub(crate) fn change_offer(&self, change: NodeResize) -> Result<Offer, Failure> {
        let offer = self.leases.change_offer(change)?;
        self.save_offer(&offer)?;
        self.repin();
        Ok(offer)
    }

    /// Ends leases until none holds more than the node offers. Returns how many, once nothing of them is left.
    ///
    /// The idle ones end first, and others have `grace` for their running calls. Parked executors stay, so that a node
    /// without cores keeps warm what it has memory for; they end if it offers no memory either.
    pub(crate) async fn end_excess(self: &Arc<Self>, offer: &Offer, grace: Duration) -> Result<u32, Failure> {
        let mut ended = 0;
        let until = tokio::time::Instant::now() + grace + END_LIMIT;
        loop {
            let (ending, more) = self.leases.to_end();
            for lease in &more {
                lease.recall(grace);
                ended += 1;
            }
            // Each end may change what else has to end, because clients release leases too.
            let Some(lease) = ending.iter().chain(&more).next() else {
                break;
            };
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return Err(Failure::new(
                    Code::TimedOut,
                    "leases have not ended in time, and still hold what the node no longer offers; look at its log",
                ));
            }
            lease.wait_until_over(left).await;
        }
        if offer.memory_bytes == 0 {
            self.pool.close().await;
        } else if !self.leases.is_reclaimed() {
            self.pool.open();
        }
        self.report_due.notify_one();
        Ok(ended)
    }

    fn save_offer(&self, offer: &Offer) -> Result<(), Failure> {
        let saved = serde_json::to_vec(offer)
            .map_err(std::io::Error::other)
            .and_then(|text| private_file::write(&self.options.state_dir.join(OFFER), &text));
        saved.map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("the node cannot write what it offers: {error}; it offers this until it is restarted"),
            )
        })
    }

    /// Offers what the node offered before it was restarted, as far as it still has that.
    pub(super) fn restore_offer(&self) {
        let path = self.options.state_dir.join(OFFER);
        let Ok(text) = std::fs::read(&path) else { return };
        let Ok(saved) = serde_json::from_slice::<Offer>(&text) else {
            tracing::warn!(path = %path.display(), "this file is damaged; the node offers all of its resources");
            return;
        };
        let all = self.leases.capacity();
        let change = NodeResize {
            cores: Some(saved.cores.min(all.cores)),
            memory_bytes: Some(saved.memory_bytes.min(all.memory_bytes)),
            workers: Some(saved.workers.min(all.workers.whole_part() as u16)),
            gpus: Some(saved.gpus.min(all.gpus)),
        };
        // Bounded by what there is, so it is not refused.
        let _ = self.leases.change_offer(change);
    }
}
