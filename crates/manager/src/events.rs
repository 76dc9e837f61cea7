//! Events of nodes and leases, for watchers in this process and at the API.

use dayfly_protocol::api::Event;
use dayfly_protocol::ids::TenantId;
use tokio::sync::broadcast;

/// A watcher that falls this many events behind loses some, and must read the state again.
const BACKLOG: usize = 1_024;

/// An event, and the tenant that it concerns.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteEvent {
    /// The event.
    pub event: Event,
    /// The tenant of the lease, if the event is about one.
    pub tenant: Option<TenantId>,
}

/// Publishes events.
pub struct Events(broadcast::Sender<SiteEvent>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::channel(BACKLOG).0)
    }
}

impl Events {
    /// Publishes an event in this process.
    pub fn publish(&self, event: Event, tenant: Option<TenantId>) {
        // An error means that there is no watcher.
        let _ = self.0.send(SiteEvent { event, tenant });
    }

    /// Subscribes to the events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<SiteEvent> {
        self.0.subscribe()
    }
}
