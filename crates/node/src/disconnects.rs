//! Notices peers that disconnect, at no cost for messages: the kernel reports only hang-ups.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dayfly_protocol::ids::ChannelId;
use rustix::event::epoll;
use tokio::io::unix::AsyncFd;

use crate::descriptor_watch;
use crate::leases::NodeLease;

/// Watched sockets. A socket leaves when all its copies are closed, or by [`DisconnectWatch::forget`].
#[derive(Debug)]
pub struct DisconnectWatch {
    epoll: AsyncFd<OwnedFd>,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    by_key: HashMap<u64, (Weak<NodeLease>, ChannelId)>,
}

impl DisconnectWatch {
    /// Watches no socket yet.
    pub fn new() -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll: descriptor_watch::watch(epoll)?,
            watched: Mutex::default(),
        })
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Informs `lease` when the peer of this channel's socket is gone. Returns a key for [`DisconnectWatch::forget`].
    pub fn watch(&self, socket: impl AsFd, lease: &Arc<NodeLease>, channel: ChannelId) -> std::io::Result<u64> {
        let mut watched = self.watched();
        watched.next += 1;
        let key = watched.next;
        let flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        epoll::add(self.epoll.get_ref(), socket, epoll::EventData::new_u64(key), flags)?;
        watched.by_key.insert(key, (Arc::downgrade(lease), channel));
        Ok(key)
    }

    /// Stops watching a socket.
    pub fn forget(&self, socket: impl AsFd, key: u64) {
        if self.watched().by_key.remove(&key).is_some() {
            let _ = epoll::delete(self.epoll.get_ref(), socket);
        }
    }

    /// Serves without end.
    pub async fn serve(&self) {
        loop {
            let Ok(mut ready) = self.epoll.readable().await else {
                return;
            };
            let mut events = Vec::with_capacity(64);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(
                self.epoll.get_ref(),
                rustix::buffer::spare_capacity(&mut events),
                Some(&now),
            ) {
                Ok(0) => ready.clear_ready(),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "disconnected clients can no longer be noticed");
                    return;
                }
            }
            for event in events {
                let found = self.watched().by_key.get(&event.data.u64()).cloned();
                if let Some((lease, channel)) = found
                    && let Some(lease) = lease.upgrade()
                {
                    lease.on_client_gone(channel);
                }
            }
        }
    }
}
