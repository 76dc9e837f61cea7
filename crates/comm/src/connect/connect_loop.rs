//! The loop that connects a rank, with its timers and sockets.

mod attempts;
mod lazy_connect;
mod pair;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::messages::{FromRank, TICKET_BYTES, ToRank};
use dayfly_rendezvous::socket::{dial, timespec};
use rustix::event::epoll;

pub use self::lazy_connect::{LazyConnect, connect_on_demand};
use self::pair::Pair;
use super::attempt::{Attempt, AttemptContext};
use super::plan::{Party, Step, Target, plan};
use super::socket::{Socket, dial_local};
use super::{ConnectSettings, failed, lost};
use crate::{PeerConnection, Route};

/// Pairs that an error names.
const MAX_NAMED: usize = 4;
/// Longest pause between two dials of a step.
/// Longest pause between two dials of a step.
/// Longest pause between two dials of a step.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Interval of checks for late attempts.
const SWEEP: Duration = Duration::from_millis(250);
/// Longest wait without an event.
const LONG: Duration = Duration::from_secs(60);
/// Events that are read at a time.
const EVENTS: usize = 1024;

const RENDEZVOUS: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const REQUESTS: u64 = 14;
const STOP: u64 = 15;
const FIRST_ATTEMPT: u64 = 16;

/// State of the loop.
pub(super) struct ConnectLoop<'a> {
    context: AttemptContext<'a>,
    settings: &'a ConnectSettings<'a>,
    rendezvous: &'a mut RendezvousClient,
    lazy: Option<LazyConnect<'a>>,
    rendezvous_is_lost: bool,
    stopped: bool,
    epoll: OwnedFd,
    pairs: Vec<Pair>,
    /// Number of unconnected pairs.
    open: usize,
    begun: Instant,
    swept: Instant,
    attempts: HashMap<u64, Attempt>,
    /// Accepted connections without a hello.
    strangers: usize,
    /// Token of the next attempt.
    next: u64,
    /// When each pair dials a step.
    timers: BinaryHeap<Reverse<(Instant, u32, usize)>>,
    /// Whether the loop waits for room in the rendezvous socket.
    writing: bool,
}

impl<'a> ConnectLoop<'a> {
    pub(super) fn new(
        settings: &'a ConnectSettings<'a>,
        rendezvous: &'a mut RendezvousClient,
        lazy: Option<LazyConnect<'a>>,
    ) -> Result<Self, Failure> {
        let me = settings.rank;
        let mine = &settings.cards[me as usize];
        let parties = settings.cards.iter().zip(0u32..);
        let pairs: Vec<Pair> = parties
            .map(|(card, rank)| {
                let steps = match rank {
                    rank if rank == me => Vec::new(),
                    _ => plan(Party { rank: me, card: mine }, Party { rank, card }, &settings.routes),
                };
                Pair::new(steps)
            })
            .collect();
        let now = Instant::now();
        let run = Self {
            context: AttemptContext {
                keys: settings.keys,
                identity: settings.identity,
                run: settings.run,
                rank: me,
                cards: settings.cards,
                trust: settings.trust,
            },
            settings,
            rendezvous,
            lazy,
            rendezvous_is_lost: false,
            stopped: false,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed("epoll", error))?,
            open: pairs.len() - 1,
            pairs,
            begun: now,
            swept: now,
            attempts: HashMap::new(),
            strangers: 0,
            next: FIRST_ATTEMPT,
            timers: BinaryHeap::new(),
            writing: false,
        };
        run.add(run.rendezvous.socket(), RENDEZVOUS, epoll::EventFlags::IN)?;
        for (listener, token) in run.settings.listeners.all().zip(FIRST_LISTENER..) {
            run.add(listener, token, epoll::EventFlags::IN)?;
        }
        Ok(run)
    }

    /// Connects to all other ranks. Returns a connection for each rank, `None` for this one.
    pub(super) fn connect_all(mut self) -> Result<Vec<Option<PeerConnection>>, Failure> {
        let now = self.begun;
        for peer in (0..).take(self.pairs.len()).filter(|peer| *peer != self.settings.rank) {
            self.begin_pair(peer, now);
            if self.settings.lazy_connect {
                self.call(peer, now)?;
            }
        }
        self.run()?;
        Ok(self.pairs.into_iter().map(|pair| pair.connection).collect())
    }

    fn add(&self, socket: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<(), Failure> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags).map_err(|error| failed("epoll", error))
    }

    /// Schedules the steps of a pair from `now` on.
    fn begin_pair(&mut self, peer: u32, now: Instant) {
        let pair = &mut self.pairs[peer as usize];
        if pair.begun.is_some() {
            return;
        }
        pair.begun = Some(now);
        let due = |(at, step): (usize, &Step)| Reverse((now + step.after, peer, at));
        self.timers.extend(pair.steps.iter().enumerate().map(due));
    }

    fn run(&mut self) -> Result<(), Failure> {
        while self.open > 0 {
            if Instant::now() >= self.begun + self.settings.patience {
                return Err(self.late());
            }
            self.advance()?;
            if self.open > 0 {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Does everything that is due.
    fn advance(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        self.dial_due(now)?;
        if now >= self.swept + SWEEP {
            self.swept = now;
            self.sweep(now);
            if self.settings.lazy_connect {
                self.call_again(now)?;
            }
        }
        if !self.rendezvous_is_lost {
            match self.read_rendezvous() {
                // The group goes on without its rendezvous.
                Err(_) if self.lazy.is_some() => {
                    self.rendezvous_is_lost = true;
                    let _ = epoll::delete(&self.epoll, self.rendezvous.socket());
                }
                attended => attended?,
            }
        }
        self.check_store()
    }

    /// Waits for an event or the next due time.
    fn wait(&mut self) -> Result<(), Failure> {
        let limit = match self.lazy {
            None => Some(self.begun + self.settings.patience),
            Some(_) => self.pairs.iter().filter_map(|pair| pair.until).min(),
        };
        let busy = limit.is_some() || !self.attempts.is_empty();
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let sweep = busy.then_some(self.swept + SWEEP);
        let ping = self.rendezvous.next_ping().filter(|_| !self.rendezvous_is_lost);
        let now = Instant::now();
        let wake = [sweep, timer, ping, limit].into_iter().flatten().min();
        let timeout = wake.map_or(LONG, |wake| wake.saturating_duration_since(now));
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timespec(timeout)),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("epoll", error)),
        }
        for event in &events {
            match event.data.u64() {
                RENDEZVOUS | REQUESTS => {}
                STOP => self.stopped = true,
                token if token < FIRST_ATTEMPT => self.accept(token)?,
                token => self.drive(token)?,
            }
        }
        Ok(())
    }

    /// Reads messages of the rendezvous. The loss of a rank is an error.
    fn read_rendezvous(&mut self) -> Result<(), Failure> {
        self.rendezvous.pump()?;
        while let Some(message) = self.rendezvous.take()? {
            match message {
                ToRank::Lost { rank, reason } => match self.lazy {
                    Some(lazy) => {
                        self.pairs
                            .get_mut(rank as usize)
                            .into_iter()
                            .for_each(|pair| pair.until = None);
                        lazy.lost.add_gone(rank, reason);
                    }
                    None => return Err(lost(rank, &reason)),
                },
                ToRank::Called { rank } => self.begin_called(rank),
                ToRank::Left { rank } => self.handle_left(rank)?,
                ToRank::Ticket { to, ticket } => self.dial_relay(to, ticket.as_deref())?,
                _ => {}
            }
        }
        if self.writing != self.rendezvous.wants_write() {
            self.writing = !self.writing;
            let flags = interest(self.writing);
            epoll::modify(
                &self.epoll,
                self.rendezvous.socket(),
                epoll::EventData::new_u64(RENDEZVOUS),
                flags,
            )
            .map_err(|error| failed("epoll", error))?;
        }
        Ok(())
    }

    /// Returns the store's error if every pair needs the store.
    fn check_store(&self) -> Result<(), Failure> {
        match self.settings.stored.and_then(|stored| stored.failure()) {
            Some(failure) if self.settings.routes.are_only_stored() && self.lazy.is_none() => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn dial_due(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(Reverse((at, peer, step))) = self.timers.peek().copied() {
            if at > now {
                return Ok(());
            }
            self.timers.pop();
            let pair = &self.pairs[peer as usize];
            // A rank that is not wanted any more is lost or has left.
            if pair.connected || self.lazy.is_some() && pair.until.is_none() {
                continue;
            }
            if pair.chosen {
                // Another attempt is ahead; try this step only if that one fails.
                self.timers.push(Reverse((now + LONGEST_PAUSE, peer, step)));
                continue;
            }
            self.dial(peer, step)?;
        }
        Ok(())
    }

    fn dial(&mut self, peer: u32, at: usize) -> Result<(), Failure> {
        let step = &self.pairs[peer as usize].steps[at];
        let dialled = match &step.target {
            Target::Local(name) => dial_local(name).map(Socket::Unix),
            Target::Address(address) => {
                let from = step.known_port.then_some(self.settings.port);
                dial(*address, from).map(Socket::Tcp)
            }
            Target::Relay => return self.rendezvous.send(&FromRank::Relay { to: peer }),
            Target::Store => match self.settings.stored {
                Some(stored) => stored.dial(peer).map(Socket::Stored),
                None => return Ok(()),
            },
        };
        match dialled {
            Ok(socket) => {
                let attempt = Attempt::dialled(socket, step.route, peer, at, None);
                self.begin(attempt)
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                Err(failed("a socket cannot be made", error))
            }
            Err(error) => {
                self.note(peer, Some(at), error.to_string());
                Ok(())
            }
        }
    }

    fn dial_relay(&mut self, peer: u32, ticket: Option<&str>) -> Result<(), Failure> {
        let Some(pair) = self.pairs.get(peer as usize) else {
            return Ok(());
        };
        let Some(at) = pair.steps.iter().position(|step| step.target == Target::Relay) else {
            return Ok(());
        };
        if pair.connected || pair.chosen {
            return Ok(());
        }
        let Some(ticket) = ticket
            .and_then(|text| hex::decode(text).ok())
            .filter(|bytes| bytes.len() == TICKET_BYTES)
        else {
            self.note(peer, Some(at), "this rendezvous does not relay".into());
            return Ok(());
        };
        match dial(self.rendezvous.server(), None) {
            Ok(socket) => self.begin(Attempt::dialled(
                Socket::Tcp(socket),
                Route::Relay,
                peer,
                at,
                Some(&ticket),
            )),
            Err(error) => {
                self.note(peer, Some(at), error.to_string());
                Ok(())
            }
        }
    }

    /// The error for unconnected pairs, with the attempts of the first few.
    fn late(&mut self) -> Failure {
        self.note_open_attempts();
        let me = self.settings.rank;
        let open = (0..)
            .zip(&self.pairs)
            .filter(|(rank, pair)| !pair.connected && *rank != me);
        let pairs: Vec<String> = open
            .take(MAX_NAMED)
            .map(|(rank, _)| {
                format!(
                    "rank {me} to rank {rank} ({})",
                    self.pairs[rank as usize].describe_attempts(self.settings.routes.cautious)
                )
            })
            .collect();
        let more = if self.open > pairs.len() { ", and others" } else { "" };
        Failure::new(
            Code::TimedOut,
            format!(
                "{} of {} connections were not made in time: {}{more}; let the ranks reach each other or the relay, or wait longer",
                self.open,
                self.pairs.len() - 1,
                pairs.join(", "),
            ),
        )
    }
}

fn interest(writing: bool) -> epoll::EventFlags {
    if writing {
        epoll::EventFlags::IN | epoll::EventFlags::OUT
    } else {
        epoll::EventFlags::IN
    }
}
