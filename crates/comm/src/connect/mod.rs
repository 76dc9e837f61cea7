//! Connects a rank to all others of its group at once.
//!
//! One loop over non-blocking sockets accepts, dials the steps of each pair's [plan](mod@plan), and drives every
//! [attempt] until each pair has a road or the deadline has passed. [`attend()`] runs the same loop while the rank
//! belongs to the group, and connects each pair when one of the two needs the other.

pub mod attempt;
mod attend;
pub mod hello;
pub mod host;
pub mod listeners;
pub mod plan;
pub mod socket;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_fabric::tls::Identity;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::Contact;
use dayfly_rendezvous::keys::GroupKeys;
use dayfly_rendezvous::messages::{Card, FromRank, TICKET_BYTES, ToRank};
use dayfly_rendezvous::socket::{dial, timespec};
use rustix::event::epoll;

use self::attempt::{Attempt, Common, Progress, Socket};
pub use self::attend::{Lazily, attend};
use self::hello::Way;
use self::listeners::Listeners;
use self::plan::{Party, Step, Target, Ways, plan};
use crate::road::{Road, Via};
use crate::stored::Stored;
use crate::switchboard::News;

/// Which networks need no encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Encrypt everything that leaves a host.
    #[default]
    Nobody,
    /// The network between the hosts is trusted. Ranks still authenticate each other.
    Fabric,
}

/// Limit for the other rank's next message on a connection.
const WORD: Duration = Duration::from_secs(5);
/// Pause after a failed dial; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Both ends of a pair dial again at multiples of this time since the rendezvous sent the addresses. A NAT may have
/// rejected the first attempt because the other end was too early; the next ones must meet.
const TOGETHER: Duration = Duration::from_millis(200);
/// Interval of checks for late attempts.
const SWEEP: Duration = Duration::from_millis(250);
/// Most accepted connections without a hello, in addition to four for each rank.
const MAX_STRANGERS: usize = 256;
/// Longest wait without an event.
const LONG: Duration = Duration::from_secs(60);
/// Events that are read at a time.
const EVENTS: usize = 1024;
/// Connections that are accepted in one turn.
const ACCEPTS: usize = 64;
/// Pairs and addresses that an error names.
const MAX_NAMED: usize = 4;

const CONTACT: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const WISHES: u64 = 14;
const STOP: u64 = 15;
const FIRST_ATTEMPT: u64 = 16;

/// Inputs of connecting.
pub struct Setting<'a> {
    /// Keys of the group.
    pub keys: &'a GroupKeys,
    /// Identity of this rank.
    pub identity: &'a Identity,
    /// Random name of the run.
    pub run: [u8; 16],
    /// This rank.
    pub rank: u32,
    /// Cards of all ranks.
    pub cards: &'a [Card],
    /// Ways that may be tried.
    pub ways: Ways,
    /// Which networks need no encryption.
    pub trust: Trust,
    /// The local port that the NAT, if there is one, has mapped.
    pub port: u16,
    /// Time limit for connecting: for all pairs together, or for each pair since it was requested.
    pub patience: Duration,
    /// Whether other ranks connect on demand.
    pub lazily: bool,
}

/// Where other ranks reach this one.
pub struct Places<'a> {
    /// Listening sockets.
    pub listeners: &'a Listeners,
    /// The store for pairs without another way.
    pub stored: Option<&'a Stored>,
}

struct Pair {
    steps: Vec<Step>,
    pauses: Vec<Duration>,
    /// Last result of each target.
    notes: BTreeMap<String, String>,
    attempts: Vec<u64>,
    chosen: bool,
    /// When its steps began.
    begun: Option<Instant>,
    /// On demand: by when the pair must be connected, and when the other rank was called.
    until: Option<Instant>,
    called: Option<Instant>,
    connected: bool,
    road: Option<Road>,
}

struct Loop<'a> {
    common: Common<'a>,
    setting: &'a Setting<'a>,
    contact: &'a mut Contact,
    listeners: &'a Listeners,
    stored: Option<&'a Stored>,
    lazily: Option<Lazily<'a>>,
    /// Whether the rendezvous is gone.
    alone: bool,
    stopped: bool,
    epoll: OwnedFd,
    pairs: Vec<Pair>,
    open: usize,
    begun: Instant,
    swept: Instant,
    attempts: HashMap<u64, Attempt>,
    strangers: usize,
    next: u64,
    timers: BinaryHeap<Reverse<(Instant, u32, usize)>>,
    writing: bool,
}

fn failed(what: &str, error: impl Into<io::Error>) -> Failure {
    let error: io::Error = error.into();
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    };
    Failure::new(Code::Internal, format!("{what}: {error}{advice}"))
}

impl Step {
    fn name(&self) -> String {
        match (&self.target, self.way) {
            (Target::Local(_), _) => "a socket of the host".into(),
            (Target::Address(address), Way::Punch) => format!("{address} by simultaneous open"),
            (Target::Address(address), _) => address.to_string(),
            (Target::Relay, _) => "the relay".into(),
            (Target::Store, _) => "the store".into(),
        }
    }
}

/// Connects to all other ranks. Returns a road for each rank, `None` for this one.
pub fn connect(setting: &Setting<'_>, places: Places<'_>, contact: &mut Contact) -> Result<Vec<Option<Road>>, Failure> {
    let mut run = Loop::new(setting, places, contact, None)?;
    let now = run.begun;
    for peer in (0..).take(run.pairs.len()).filter(|peer| *peer != setting.rank) {
        run.begin_pair(peer, now);
        if setting.lazily {
            run.call(peer, now)?;
        }
    }
    run.run()?;
    Ok(run.pairs.into_iter().map(|pair| pair.road).collect())
}

impl<'a> Loop<'a> {
    fn new(
        setting: &'a Setting<'a>,
        places: Places<'a>,
        contact: &'a mut Contact,
        lazily: Option<Lazily<'a>>,
    ) -> Result<Self, Failure> {
        let me = setting.rank;
        let mine = &setting.cards[me as usize];
        let parties = setting.cards.iter().zip(0u32..);
        let pairs: Vec<Pair> = parties
            .map(|(card, rank)| {
                let steps = match rank {
                    rank if rank == me => Vec::new(),
                    _ => plan(Party { rank: me, card: mine }, Party { rank, card }, &setting.ways),
                };
                Pair {
                    pauses: vec![FIRST_PAUSE; steps.len()],
                    steps,
                    notes: BTreeMap::new(),
                    attempts: Vec::new(),
                    chosen: false,
                    begun: None,
                    until: None,
                    called: None,
                    connected: false,
                    road: None,
                }
            })
            .collect();
        let now = Instant::now();
        let run = Self {
            common: Common {
                keys: setting.keys,
                identity: setting.identity,
                run: setting.run,
                rank: me,
                cards: setting.cards,
                trust: setting.trust,
            },
            setting,
            contact,
            listeners: places.listeners,
            stored: places.stored,
            lazily,
            alone: false,
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
        run.add(run.contact.socket(), CONTACT, epoll::EventFlags::IN)?;
        for (listener, token) in run.listeners.all().zip(FIRST_LISTENER..) {
            run.add(listener, token, epoll::EventFlags::IN)?;
        }
        Ok(run)
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
            if Instant::now() >= self.begun + self.setting.patience {
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
        self.dial_what_is_due(now)?;
        if now >= self.swept + SWEEP {
            self.swept = now;
            self.sweep(now);
            if self.setting.lazily {
                self.call_again(now)?;
            }
        }
        if !self.alone {
            match self.attend_contact() {
                // The group goes on without its rendezvous.
                Err(_) if self.lazily.is_some() => {
                    self.alone = true;
                    let _ = epoll::delete(&self.epoll, self.contact.socket());
                }
                attended => attended?,
            }
        }
        self.look_at_store()
    }

    /// Waits for an event or the next due time.
    fn wait(&mut self) -> Result<(), Failure> {
        let limit = match self.lazily {
            None => Some(self.begun + self.setting.patience),
            Some(_) => self.pairs.iter().filter_map(|pair| pair.until).min(),
        };
        let busy = limit.is_some() || !self.attempts.is_empty();
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let sweep = busy.then_some(self.swept + SWEEP);
        let ping = self.contact.next_ping().filter(|_| !self.alone);
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
                CONTACT | WISHES => {}
                STOP => self.stopped = true,
                token if token < FIRST_ATTEMPT => self.accept(token)?,
                token => self.drive(token)?,
            }
        }
        Ok(())
    }

    /// Reads messages of the rendezvous. The loss of a rank is an error.
    fn attend_contact(&mut self) -> Result<(), Failure> {
        self.contact.pump()?;
        while let Some(message) = self.contact.take()? {
            match message {
                ToRank::Lost { rank, reason } => match self.lazily {
                    Some(lazily) => {
                        self.pairs
                            .get_mut(rank as usize)
                            .into_iter()
                            .for_each(|pair| pair.until = None);
                        lazily.lost.add_gone(rank, reason);
                    }
                    None => return Err(lost(rank, &reason)),
                },
                ToRank::Called { rank } => self.answer(rank),
                ToRank::Left { rank } => self.forget(rank)?,
                ToRank::Ticket { to, ticket } => self.dial_relay(to, ticket.as_deref())?,
                _ => {}
            }
        }
        if self.writing != self.contact.wants_write() {
            self.writing = !self.writing;
            let flags = interest(self.writing);
            epoll::modify(
                &self.epoll,
                self.contact.socket(),
                epoll::EventData::new_u64(CONTACT),
                flags,
            )
            .map_err(|error| failed("epoll", error))?;
        }
        Ok(())
    }

    /// Returns the store's error if every pair needs the store.
    fn look_at_store(&self) -> Result<(), Failure> {
        match self.stored.and_then(|stored| stored.failure()) {
            Some(failure) if self.setting.ways.are_only_stored() && self.lazily.is_none() => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn dial_what_is_due(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(Reverse((at, peer, step))) = self.timers.peek().copied() {
            if at > now {
                return Ok(());
            }
            self.timers.pop();
            let pair = &self.pairs[peer as usize];
            // A rank that is not wanted any more is lost or has left.
            if pair.connected || self.lazily.is_some() && pair.until.is_none() {
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
            Target::Local(name) => socket::dial_local(name).map(Socket::Unix),
            Target::Address(address) => {
                let from = step.known_port.then_some(self.setting.port);
                dial(*address, from).map(Socket::Tcp)
            }
            Target::Relay => return self.contact.say(&FromRank::Relay { to: peer }),
            Target::Store => match self.stored {
                Some(stored) => stored.dial(peer).map(Socket::Stored),
                None => return Ok(()),
            },
        };
        match dialled {
            Ok(socket) => {
                let attempt = Attempt::dialled(socket, step.way, peer, at, None);
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
        match dial(self.contact.server(), None) {
            Ok(socket) => self.begin(Attempt::dialled(
                Socket::Tcp(socket),
                Way::Relay,
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

    fn begin(&mut self, attempt: Attempt) -> Result<(), Failure> {
        let token = self.next;
        self.next += 1;
        self.add(attempt.socket(), token, interest(attempt.wants_write()))?;
        match attempt.peer {
            Some(peer) => self.pairs[peer as usize].attempts.push(token),
            None => self.strangers += 1,
        }
        self.attempts.insert(token, attempt);
        Ok(())
    }

    fn accept(&mut self, token: u64) -> Result<(), Failure> {
        for _ in 0..ACCEPTS {
            let accepted = self.listeners.accept(token - FIRST_LISTENER);
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    return Err(failed("a connection cannot be accepted", error));
                }
                // No connection is left, or the peer has closed it.
                Err(_) => return Ok(()),
            };
            if self.strangers >= self.pairs.len() * 4 + MAX_STRANGERS || listeners::prepare(&socket).is_err() {
                continue;
            }
            self.begin(Attempt::accepted(socket))?;
        }
        Ok(())
    }

    fn drive(&mut self, token: u64) -> Result<(), Failure> {
        let Some(attempt) = self.attempts.get_mut(&token) else {
            return Ok(());
        };
        let (stranger, writing, chosen) = (attempt.peer.is_none(), attempt.wants_write(), attempt.chosen);
        let mut progress = attempt.advance(&self.common);
        if let (true, Some(peer)) = (stranger, attempt.peer) {
            self.strangers -= 1;
            self.pairs[peer as usize].attempts.push(token);
        }
        if let (Ok(Progress::Proven), Some(peer)) = (&progress, attempt.peer) {
            if self.pairs[peer as usize].chosen {
                self.drop_attempt(token);
                return Ok(());
            }
            progress = attempt
                .choose(&self.common)
                .and_then(|()| attempt.advance(&self.common));
        }
        let Some(peer) = attempt.peer else {
            if progress.is_ok() {
                return self.rewatch(token, writing);
            }
            self.drop_attempt(token);
            return Ok(());
        };
        if attempt.chosen && !chosen {
            self.pairs[peer as usize].chosen = true;
        }
        if self.pairs[peer as usize].connected {
            self.drop_attempt(token);
            return Ok(());
        }
        match progress {
            Ok(Progress::Ready) => {
                self.finish(peer, token);
                Ok(())
            }
            Ok(_) => self.rewatch(token, writing),
            Err(why) => {
                self.fail(token, why);
                Ok(())
            }
        }
    }

    fn rewatch(&mut self, token: u64, was_writing: bool) -> Result<(), Failure> {
        let Some(attempt) = self.attempts.get(&token) else {
            return Ok(());
        };
        let writing = attempt.wants_write();
        if writing == was_writing {
            return Ok(());
        }
        epoll::modify(
            &self.epoll,
            attempt.socket(),
            epoll::EventData::new_u64(token),
            interest(writing),
        )
        .map_err(|error| failed("epoll", error))
    }

    /// Removes an attempt. Its socket closes, and so leaves the epoll set.
    fn drop_attempt(&mut self, token: u64) -> Option<Attempt> {
        let attempt = self.attempts.remove(&token)?;
        match attempt.peer {
            Some(peer) => self.pairs[peer as usize].attempts.retain(|other| *other != token),
            None => self.strangers -= 1,
        }
        Some(attempt)
    }

    fn fail(&mut self, token: u64, why: String) {
        let Some(attempt) = self.drop_attempt(token) else {
            return;
        };
        let Some(peer) = attempt.peer else {
            return;
        };
        if attempt.chosen {
            self.pairs[peer as usize].chosen = false;
        }
        self.note(peer, attempt.step, why);
    }

    /// Records the result of a step, and schedules it again.
    fn note(&mut self, peer: u32, step: Option<usize>, why: String) {
        let pair = &mut self.pairs[peer as usize];
        let Some(at) = step else {
            pair.notes.insert("a connection of the other's".into(), why);
            return;
        };
        let stored = pair.steps[at].way == Way::Stored;
        let failure = self.stored.filter(|_| stored).and_then(|stored| stored.failure());
        let why = failure.map_or(why, |failure| failure.message.clone());
        pair.notes.insert(pair.steps[at].name(), why);
        if stored {
            // The store keeps the bytes, so the step needs no repetition.
            return;
        }
        let now = Instant::now();
        let again = if pair.steps[at].way == Way::Punch {
            let begun = pair.begun.unwrap_or(self.begun);
            let rounds = now.duration_since(begun).as_millis() / TOGETHER.as_millis() + 1;
            begun + TOGETHER * u32::try_from(rounds).unwrap_or(u32::MAX)
        } else {
            let pause = pair.pauses[at];
            pair.pauses[at] = (pause * 2).min(LONGEST_PAUSE);
            now + pause
        };
        self.timers.push(Reverse((again, peer, at)));
    }

    fn finish(&mut self, peer: u32, token: u64) {
        let Some(attempt) = self.drop_attempt(token) else {
            return;
        };
        // The road's user polls the socket in its own way.
        let _ = epoll::delete(&self.epoll, attempt.socket());
        match attempt.into_road() {
            Ok(road) => {
                if let (Via::Stored, Some(stored)) = (road.via(), self.stored) {
                    stored.keep(peer);
                }
                let pair = &mut self.pairs[peer as usize];
                (pair.connected, pair.until) = (true, None);
                match self.lazily {
                    Some(lazily) => lazily.board.tell(News::Road(peer, road)),
                    None => pair.road = Some(road),
                }
                self.open -= 1;
                for other in std::mem::take(&mut pair.attempts) {
                    self.attempts.remove(&other);
                }
            }
            Err(why) => {
                self.pairs[peer as usize].chosen = false;
                self.note(peer, None, why);
            }
        }
    }

    /// Ends attempts that wait too long for the other rank's next message.
    fn sweep(&mut self, now: Instant) {
        let late = |attempt: &Attempt| !attempt.is_on_its_way() && now.duration_since(attempt.since) > WORD;
        let late: Vec<u64> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| late(attempt))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let why = self.attempts.get(&token).map_or("", Attempt::waits_for);
            self.fail(token, why.into());
        }
    }

    /// Records for each open attempt what it waits for.
    fn note_what_is_open(&mut self) {
        for attempt in self.attempts.values() {
            if let (Some(peer), Some(at)) = (attempt.peer, attempt.step) {
                let pair = &mut self.pairs[peer as usize];
                let name = pair.steps[at].name();
                pair.notes.insert(name, attempt.waits_for().into());
            }
        }
    }

    /// What was tried to reach a rank, with the results.
    fn tried(&self, peer: u32) -> String {
        let notes = &self.pairs[peer as usize].notes;
        if self.setting.ways.cautious {
            return format!("{} ways tried", notes.len());
        }
        let tried: Vec<String> = notes.iter().map(|(target, why)| format!("{target}: {why}")).collect();
        match tried.len() {
            0 => "nothing could be tried".into(),
            _ => tried.join("; "),
        }
    }

    /// The error for unconnected pairs, with the attempts of the first few.
    fn late(&mut self) -> Failure {
        self.note_what_is_open();
        let me = self.setting.rank;
        let open = (0..)
            .zip(&self.pairs)
            .filter(|(rank, pair)| !pair.connected && *rank != me);
        let pairs: Vec<String> = open
            .take(MAX_NAMED)
            .map(|(rank, _)| format!("rank {me} to rank {rank} ({})", self.tried(rank)))
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

/// The error when a rank is lost while the group forms.
pub(crate) fn lost(rank: u32, reason: &str) -> Failure {
    Failure::new(
        Code::RankLost,
        format!("rank {rank} was lost while the group formed: {reason}; start all ranks again"),
    )
}
