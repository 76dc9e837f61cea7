//! Ranks that are connected on demand. Messages wait for the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use dayfly_protocol::error::{Code, Failure};

use super::{Engine, Started, online_cores};
use crate::book::{ANY_SOURCE, RequestId};
use crate::group::link;
use crate::road::{Road, Via};
use crate::switchboard::{News, Switchboard};
use crate::wire::envelope::Envelope;
use crate::wire::{Link, Outgoing, Payload};

/// A link made from a road, or the error.
type Made = (u32, Via, Result<Link, Failure>);

/// State of connections on demand.
#[derive(Debug)]
pub(super) struct Lazily {
    board: Arc<Switchboard>,
    /// Messages for each rank without a link. A user's send has a request, a control message has none.
    waiting: Vec<VecDeque<Outgoing>>,
    /// Whether the connection to the rank was requested.
    wanted: Vec<bool>,
    /// Links that threads are making, since each waits for its other end; and the channel from those threads.
    making: usize,
    made: Receiver<Made>,
    maker: Sender<Made>,
}

impl Engine {
    /// Connects ranks on demand, through this switchboard.
    pub fn connect_lazily(&mut self, board: Arc<Switchboard>) {
        let (maker, made) = channel();
        self.lazily = Some(Box::new(Lazily {
            board,
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
        let Some(lazily) = &mut self.lazily else {
            return;
        };
        if peer == ANY_SOURCE || peer == self.rank || self.links.get(peer as usize).is_none_or(Option::is_some) {
            return;
        }
        if !std::mem::replace(&mut lazily.wanted[peer as usize], true) {
            lazily.board.wish(peer);
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
        if self.lazily.is_none() || peer >= self.size {
            return Err(self.no_road(peer));
        }
        let id = self.book.add_send(peer, &envelope, start, length)?;
        let message = Outgoing {
            envelope,
            payload: Payload::Borrowed(start, length),
            request: Some(id),
        };
        self.wait_for(peer, message);
        Ok(Started::Pending(id))
    }

    /// Queues a control message until the connection to its rank exists.
    #[cold]
    pub(super) fn tell_when_connected(&mut self, peer: u32, message: Outgoing) {
        if peer < self.size && peer != self.rank && !self.is_gone(peer) {
            self.wait_for(peer, message);
        }
    }

    fn wait_for(&mut self, peer: u32, message: Outgoing) {
        if let Some(lazily) = &mut self.lazily {
            lazily.waiting[peer as usize].push_back(message);
            self.want(peer);
        }
    }

    /// Removes a send that will not be completed.
    pub(super) fn take_back(&mut self, request: RequestId) {
        if let Some(lazily) = &mut self.lazily {
            for waiting in &mut lazily.waiting {
                waiting.retain(|message| message.request != Some(request));
            }
        }
    }

    /// Whether messages wait for a connection that may still come.
    pub(super) fn has_unsent(&self) -> bool {
        let Some(lazily) = &self.lazily else {
            return false;
        };
        let waits = |(peer, waiting): (u32, &VecDeque<Outgoing>)| !waiting.is_empty() && !self.is_gone(peer);
        lazily.making > 0 || (0..).zip(&lazily.waiting).any(waits)
    }

    /// Takes over new connections. Returns whether there were any.
    pub(super) fn connect_more(&mut self) -> bool {
        match &self.lazily {
            Some(lazily) if lazily.making > 0 || lazily.board.has_news() => self.hear_news(),
            _ => false,
        }
    }

    #[cold]
    fn hear_news(&mut self) -> bool {
        let Some(lazily) = &self.lazily else {
            return false;
        };
        let news = lazily.board.take_news();
        let mut moved = !news.is_empty();
        for news in news {
            match news {
                News::Road(peer, road) => self.make_link(peer, road),
                News::Left(peer) => self.depart(peer),
                News::Failed(failure) => self.give_all_up(&failure),
            }
        }
        while let Some((peer, via, made)) = self.next_made() {
            moved = true;
            match made.and_then(|link| self.install(peer, via, link)) {
                Ok(()) => {}
                Err(failure) => self.lose(peer, failure.message),
            }
        }
        moved
    }

    /// Makes a link from a road in a thread, since it waits for its other end.
    fn make_link(&mut self, peer: u32, road: Road) {
        let Some(lazily) = &mut self.lazily else {
            return;
        };
        let (rank, options, until) = (self.rank, self.options.clone(), Instant::now() + self.options.deadline);
        let (maker, via) = (lazily.maker.clone(), road.via());
        // If the receiver is gone, the link is not needed any more.
        let make = move || drop(maker.send((peer, via, link(rank, peer, road, &options, until))));
        match std::thread::Builder::new().name("link".into()).spawn(make) {
            Ok(_) => lazily.making += 1,
            Err(error) => self.lose(peer, format!("no thread could be started to connect with it: {error}")),
        }
    }

    /// Marks all unconnected ranks as lost: no more connections will be made.
    fn give_all_up(&mut self, failure: &Failure) {
        for peer in 0..self.size {
            if peer != self.rank && self.links[peer as usize].is_none() {
                self.lost
                    .add(peer, format!("it cannot be connected: {}", failure.message));
            }
        }
        self.look_for_trouble();
    }

    fn next_made(&mut self) -> Option<Made> {
        let lazily = self.lazily.as_mut()?;
        let made = lazily.made.try_recv().ok()?;
        lazily.making -= 1;
        Some(made)
    }

    /// Installs a link, and sends the messages that waited for it.
    fn install(&mut self, peer: u32, via: Via, link: Link) -> Result<(), Failure> {
        let at = peer as usize;
        if !matches!(self.links.get(at), Some(None)) {
            return Err(Failure::new(Code::Internal, "it was connected twice; report this"));
        }
        if link.is_told() {
            self.told.push(peer);
        } else {
            self.polled.push(peer);
        }
        self.links[at] = Some(link);
        self.vias[at] = Some(via);
        self.talking[at] = true;
        let near = self.links.iter().flatten().filter(|link| link.is_near()).count();
        self.crowded = near + 1 > online_cores();
        self.watch_streams()?;
        let waiting = self
            .lazily
            .as_mut()
            .map(|lazily| std::mem::take(&mut lazily.waiting[at]));
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
