//! The signal that the manager stops.

use tokio::sync::watch;

/// Tells all tasks of a manager to stop.
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Shutdown {
    /// Begins the shutdown.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Returns a receiver for [`stopped`].
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// Returns when the manager stops.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the manager was dropped, which also ends its tasks.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
