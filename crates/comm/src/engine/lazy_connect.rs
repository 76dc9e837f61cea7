//! Ranks that are connected on demand. Messages wait for the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use dayfly_protocol::error::{Code, Failure};

use super::{Engine, Started, online_cores};
use crate::connect_queue::{ConnectQueue, ConnectResult};
use crate::group::open_transport;
use crate::matching::{ANY_SOURCE, RequestId};
use crate::wake::Wake;
use crate::wire::envelope::Envelope;
use crate::wire::{Outgoing, Payload, PeerTransport};
use crate::{PeerConnection, Route};

/// A transport made from a connection, or the error.
type Made = (u32, Route, Result<PeerTransport, Failure>);

/// State of connections on demand.
#[derive(Debug)]
pub(super) struct LazyConnections {
    queue: Arc<ConnectQueue>,
    /// Messages for each rank without a transport. A user's send has a request, a control message has none.
    waiting: Vec<VecDeque<Outgoing>>,
    /// Whether the connection to the rank was requested.
    wanted: Vec<bool>,
    /// Transports that threads are making, since each waits for its other end; and the channel from those threads.
    making: usize,
    made: Receiver<Made>,
    maker: Sender<Made>,
}

impl LazyConnections {
    /// Sets the thread to wake for new connections.
    pub(super) fn watch(&self, watcher: Option<Arc<Wake>>) {
        self.queue.watch(watcher);
    }

    /// Whether a connection or its transport may be there. A thread that makes a transport wakes the driver.
    pub(super) fn has_results(&self) -> bool {
        self.queue.has_results()
    }
}

impl Engine {
    /// Connects ranks on demand, through this queue.
    pub fn connect_lazily(&mut self, queue: Arc<ConnectQueue>) {
        let (maker, made) = channel();
        self.lazy = Some(Box::new(LazyConnections {
            queue,
            waiting: (0..self.size).map(|_| VecDeque::new()).collect(),
            wanted: vec![false; self.size as usize],
            making: 0,
            made,
            maker,
        }));
    }

    /// Requests the connection to a rank.
    #[cold]
    pub(super) fn want(&mut self, peer: u32) {
        let Some(lazy) = &mut self.lazy else {
            return;
        };
        if peer == ANY_SOURCE || peer == self.rank || self.transports.get(peer as usize).is_none_or(Option::is_some) {
            return;
        }
        if !std::mem::replace(&mut lazy.wanted[peer as usize], true) {
            lazy.queue.request(peer);
        }
    }

    /// Queues a send until the connection to its rank exists.
    #[cold]
    pub(super) fn send_when_connected(
        &mut self,
        peer: u32,
        envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<Started, Failure> {
        if self.lazy.is_none() || peer >= self.size {
            return Err(self.no_connection(peer));
        }
        let id = self.matching.add_send(peer, &envelope, start, length)?;
        self.queue_until_connected(id, peer, envelope, start, length)?;
        Ok(Started::Pending(id))
    }

    /// Queues a send that has a request.
    pub(super) fn queue_until_connected(
        &mut self,
        id: RequestId,
        peer: u32,
        envelope: Envelope,
        start: *const u8,
        length: usize,
    ) -> Result<(), Failure> {
        if self.lazy.is_none() || peer >= self.size {
            self.matching.forget(id);
            return Err(self.no_connection(peer));
        }
        let message = Outgoing {
            envelope,
            payload: Payload::Borrowed(start, length),
            request: Some(id),
        };
        self.wait_for(peer, message);
        Ok(())
    }

    /// Queues a control message until the connection to its rank exists.
    #[cold]
    pub(super) fn tell_when_connected(&mut self, peer: u32, message: Outgoing) {
        if peer < self.size && peer != self.rank && !self.is_gone(peer) {
            self.wait_for(peer, message);
        }
    }

    fn wait_for(&mut self, peer: u32, message: Outgoing) {
        if let Some(lazy) = &mut self.lazy {
            lazy.waiting[peer as usize].push_back(message);
            self.want(peer);
        }
    }

    /// Removes a send that will not be completed.
    pub(super) fn take_back(&mut self, request: RequestId) {
        if let Some(lazy) = &mut self.lazy {
            for waiting in &mut lazy.waiting {
                waiting.retain(|message| message.request != Some(request));
            }
        }
    }

    /// Whether messages wait for a connection that may still come.
    pub(super) fn has_unsent(&self) -> bool {
        let Some(lazy) = &self.lazy else {
            return false;
        };
        let waits = |(peer, waiting): (u32, &VecDeque<Outgoing>)| !waiting.is_empty() && !self.is_gone(peer);
        lazy.making > 0 || (0..).zip(&lazy.waiting).any(waits)
    }

    /// Takes over new connections. Returns whether there were any.
    pub(super) fn connect_more(&mut self) -> bool {
        match &self.lazy {
            Some(lazy) if lazy.making > 0 || lazy.queue.has_results() => self.take_connect_results(),
            _ => false,
        }
    }

    #[cold]
    fn take_connect_results(&mut self) -> bool {
        let Some(lazy) = &self.lazy else {
            return false;
        };
        let results = lazy.queue.take_results();
        let mut moved = !results.is_empty();
        for result in results {
            match result {
                ConnectResult::Connected(peer, connection) => self.start_transport(peer, connection),
                ConnectResult::Left(peer) => self.depart(peer),
                ConnectResult::Failed(failure) => self.give_all_up(&failure),
            }
        }
        while let Some((peer, route, made)) = self.next_made() {
            moved = true;
            match made.and_then(|transport| self.install(peer, route, transport)) {
                Ok(()) => {}
                Err(failure) => self.lose(peer, failure.message),
            }
        }
        moved
    }

    /// Makes a transport from a connection in a thread, since it waits for its other end.
    fn start_transport(&mut self, peer: u32, connection: PeerConnection) {
        let Some(lazy) = &mut self.lazy else {
            return;
        };
        let (rank, options, until) = (self.rank, self.options.clone(), Instant::now() + self.options.deadline);
        let (maker, route) = (lazy.maker.clone(), connection.route());
        // If the receiver is gone, the transport is not needed any more.
        let driver = self.matching.driver.clone();
        let make = move || {
            let made = open_transport(rank, peer, connection, &options, until);
            drop(maker.send((peer, route, made)));
            if let Some(driver) = driver {
                driver.wake();
            }
        };
        match std::thread::Builder::new().name("transport".into()).spawn(make) {
            Ok(_) => lazy.making += 1,
            Err(error) => self.lose(peer, format!("no thread could be started to connect with it: {error}")),
        }
    }

    /// Marks all unconnected ranks as lost: no more connections will be made.
    fn give_all_up(&mut self, failure: &Failure) {
        for peer in 0..self.size {
            if peer != self.rank && self.transports[peer as usize].is_none() {
                self.lost
                    .add(peer, format!("it cannot be connected: {}", failure.message));
            }
        }
        self.check_for_failures();
    }

    fn next_made(&mut self) -> Option<Made> {
        let lazy = self.lazy.as_mut()?;
        let made = lazy.made.try_recv().ok()?;
        lazy.making -= 1;
        Some(made)
    }

    /// Installs a transport, and sends the messages that waited for it.
    fn install(&mut self, peer: u32, route: Route, mut transport: PeerTransport) -> Result<(), Failure> {
        let at = peer as usize;
        if !matches!(self.transports.get(at), Some(None)) {
            return Err(Failure::new(Code::Internal, "it was connected twice; report this"));
        }
        if self.peers_sleep
            && let PeerTransport::Shm(transport) = &mut transport
        {
            transport.expect_sleep();
        }
        if transport.is_event_driven() {
            self.event_driven.push(peer);
        } else {
            self.polled.push(peer);
        }
        self.transports[at] = Some(transport);
        self.routes[at] = Some(route);
        self.readable[at] = true;
        let near = self
            .transports
            .iter()
            .flatten()
            .filter(|transport| transport.is_near())
            .count();
        self.oversubscribed = near + 1 > online_cores();
        self.watch_streams()?;
        let waiting = self.lazy.as_mut().map(|lazy| std::mem::take(&mut lazy.waiting[at]));
        for message in waiting.unwrap_or_default() {
            match message {
                // If this fails, the rank is lost and the send ends with that error.
                Outgoing {
                    envelope,
                    payload: Payload::Borrowed(start, length),
                    request: Some(id),
                } => self.send_as(id, peer, envelope, start, length)?,
                word => self.tell(peer, word),
            }
        }
        Ok(())
    }
}
