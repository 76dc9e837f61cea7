//! The two lanes of a pair of ranks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use dayfly_protocol::error::Failure;
use futures_util::StreamExt;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, channel};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::frame::{HEADER_BYTES, Header};
use super::mailbox::{Lane, Mailbox};
use super::pump::Arrival;
use super::{GRACE, OBJECT_BYTES, Shared, WINDOW};

/// Bytes that are read before the other side is informed of them.
const TELL_EVERY: u64 = WINDOW / 4;
/// Bytes to read from the local socket at a time.
const READ_BYTES: usize = 256 << 10;
/// How long an object that is not full waits for more bytes while others are being stored.
const QUIET: Duration = Duration::from_millis(1);
/// Longest pause between two looks for an object, and the divisor of the time without an object that sets the pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 4;
/// Interval at which a leaving rank checks for losses.
const LOSS_PAUSE: Duration = Duration::from_millis(50);

/// A pair of ranks, seen from one of them.
pub struct Pair {
    shared: Arc<Shared>,
    mailbox: Mailbox,
    peer: u32,
    /// Bytes of our lane that the other rank has read.
    theirs: watch::Sender<u64>,
    /// Bytes of our lane that are stored.
    stored: AtomicU64,
    /// Bytes of the other lane that were read here, and the count that the other rank knows.
    ours: AtomicU64,
    told: AtomicU64,
    tell: Notify,
    /// Whether the other lane has ended.
    ended: watch::Sender<bool>,
    /// Notified when an object was stored, to which a response may arrive.
    asked: Notify,
    /// Number of our lane's last object, once it is stored.
    last: OnceLock<u64>,
}

impl Pair {
    pub fn new(shared: Arc<Shared>, mailbox: Mailbox, peer: u32) -> Self {
        Self {
            shared,
            mailbox,
            peer,
            theirs: watch::Sender::new(0),
            stored: AtomicU64::new(0),
            ours: AtomicU64::new(0),
            told: AtomicU64::new(0),
            tell: Notify::new(),
            ended: watch::Sender::new(false),
            asked: Notify::new(),
            last: OnceLock::new(),
        }
    }

    fn lane(&self) -> Lane {
        Lane {
            from: self.shared.rank,
            to: self.peer,
        }
    }

    fn opposite(&self) -> Lane {
        Lane {
            from: self.peer,
            to: self.shared.rank,
        }
    }

    /// Handles an object in the other lane that no rank of the group stored: stops reading, and ends our lane, which
    /// informs the other rank.
    async fn refuse(&self, number: u64, mut writing: WriteHalf<'_>) -> Result<Read, Trouble> {
        let lane = self.mailbox.name(self.opposite());
        let reason = format!("object {number} of {lane} in the store is not what that rank stored");
        self.shared.broke(self.peer, &reason);
        // The socket may be closed already.
        let _ = writing.shutdown().await;
        self.ended.send_replace(true);
        Ok(Read::Refused)
    }

    /// Completes an object of our lane with its header.
    fn complete(&self, number: u64, last: bool, mut object: BytesMut) -> Bytes {
        let read = self.ours.load(Ordering::Acquire);
        self.told.store(read, Ordering::Release);
        object[..HEADER_BYTES].copy_from_slice(&Header { number, read, last }.to_bytes());
        object.freeze()
    }

    /// Whether the other rank has read our lane to its stored end, or cannot be asked.
    async fn is_heard(&self) -> bool {
        let Some(last) = self.last.get() else {
            return false;
        };
        // The reader of an object deletes it.
        self.mailbox.holds(self.lane(), *last).await.is_ok_and(|there| !there)
    }

    /// Waits while the other rank may still read the reason of the end, at most [`GRACE`]. Not if its process is gone.
    async fn farewell(&self) {
        let until = Instant::now() + GRACE;
        while !self.shared.lost.is_gone(self.peer) && !self.is_heard().await && Instant::now() < until {
            sleep(LOSS_PAUSE).await;
        }
    }

    fn owes_word(&self) -> bool {
        self.ours.load(Ordering::Acquire) - self.told.load(Ordering::Acquire) >= TELL_EVERY
    }
}

/// Why a pair ends early.
enum Trouble {
    /// The store failed.
    Store(Failure),
    /// The other rank is lost.
    Lost,
    /// The pair uses another way.
    Abandoned,
}

/// How reading a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    ToItsEnd,
    Refused,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// Carries the bytes of a socket until both lanes have ended. An error is the store's.
pub async fn serve(
    pair: Arc<Pair>,
    mut socket: UnixStream,
    arrivals: Option<UnboundedReceiver<Arrival>>,
    mut leaving: watch::Receiver<bool>,
) -> Result<(), Failure> {
    // The socket stays open until the reason of its end is known.
    let (reading, writing) = socket.split();
    let both = async {
        let sent = send(&pair, reading);
        match arrivals {
            Some(arrivals) => {
                tokio::try_join!(sent, receive(&pair, writing, Source::Told(arrivals))).map(|((), read)| read)
            }
            None => {
                let (found, finds) = channel(pair.mailbox.at_once());
                let looked = look(&pair, found);
                tokio::try_join!(sent, looked, receive(&pair, writing, Source::Found(finds))).map(|((), (), read)| read)
            }
        }
    };
    let ended = tokio::select! {
        ended = both => ended,
        () = lost(&pair, leaving.clone()) => Err(Trouble::Lost),
    };
    match ended {
        Ok(Read::ToItsEnd) => pair.mailbox.forget(pair.opposite()).await,
        Ok(Read::Refused) => {
            // The other rank may still respond.
            over(&mut leaving).await;
            pair.farewell().await;
            pair.mailbox.clear(pair.lane()).await?;
            pair.mailbox.clear(pair.opposite()).await
        }
        Err(Trouble::Store(failure)) => {
            pair.shared.fail(&failure);
            Err(failure)
        }
        Err(Trouble::Abandoned) => pair.mailbox.clear(pair.lane()).await,
        Err(Trouble::Lost) => {
            pair.mailbox.clear(pair.lane()).await?;
            pair.mailbox.clear(pair.opposite()).await
        }
    }
}

/// Waits until the other rank is lost and cannot receive more. Before this rank leaves, its road reports losses.
async fn lost(pair: &Pair, mut leaving: watch::Receiver<bool>) {
    over(&mut leaving).await;
    while pair.shared.lost.check(pair.peer).is_ok() {
        sleep(LOSS_PAUSE).await;
    }
    pair.farewell().await;
}

/// Stores the bytes of the socket until its end.
async fn send(pair: &Pair, mut reading: ReadHalf<'_>) -> Result<(), Trouble> {
    let (mailbox, lane) = (&pair.mailbox, pair.lane());
    let empty = || BytesMut::zeroed(HEADER_BYTES);
    let (mut object, mut number, mut bytes) = (empty(), 0, 0u64);
    let mut under_way = FuturesUnordered::new();
    let (mut theirs, mut ended) = (pair.theirs.subscribe(), pair.ended.subscribe());
    let (mut open, mut quiet) = (true, false);
    loop {
        let over = *ended.borrow_and_update();
        if over {
            // The other rank does not read them any more.
            (open, object) = (false, empty());
        }
        let have = (object.len() - HEADER_BYTES) as u64;
        let room = bytes - *theirs.borrow_and_update() + have <= WINDOW;
        let free = under_way.len() < mailbox.at_once();
        let due = have > 0 && room && (have as usize >= OBJECT_BYTES || under_way.is_empty() || quiet || !open);
        if free && (due || pair.owes_word()) {
            let whole = if room {
                std::mem::replace(&mut object, empty())
            } else {
                empty()
            };
            bytes += (whole.len() - HEADER_BYTES) as u64;
            pair.stored.store(bytes, Ordering::Release);
            under_way.push(mailbox.put(lane, number, pair.complete(number, false, whole)));
            (number, quiet) = (number + 1, false);
            continue;
        }
        if !open && have == 0 && under_way.is_empty() {
            break;
        }
        tokio::select! {
            Some(put) = under_way.next() => {
                put?;
                pair.asked.notify_one();
            }
            read = take(&mut reading, &mut object), if open && (have as usize) < OBJECT_BYTES => {
                quiet = false;
                open = read;
                if !open && !pair.shared.is_kept(pair.peer) {
                    return Err(Trouble::Abandoned);
                }
            }
            _ = theirs.changed() => {}
            _ = ended.changed(), if !over => {}
            () = pair.tell.notified() => {}
            () = sleep(QUIET), if have > 0 && free && !quiet => quiet = true,
        }
    }
    drop(under_way);
    mailbox.put(lane, number, pair.complete(number, true, empty())).await?;
    // Set once: an object is stored once.
    let _ = pair.last.set(number);
    pair.asked.notify_one();
    Ok(())
}

/// Reads from the socket. Returns whether more may come. An error counts as the end: the other end belongs to this
/// process.
async fn take(reading: &mut ReadHalf<'_>, object: &mut BytesMut) -> bool {
    object.reserve(READ_BYTES);
    let mut room = object.limit(READ_BYTES);
    reading.read_buf(&mut room).await.is_ok_and(|count| count > 0)
}

/// Source of the other lane's objects.
enum Source {
    Told(UnboundedReceiver<Arrival>),
    Found(Receiver<Arrival>),
}

impl Source {
    async fn next(&mut self) -> Option<Arrival> {
        match self {
            Self::Told(told) => told.recv().await,
            Self::Found(found) => found.recv().await,
        }
    }
}

/// Writes stored bytes to the socket and deletes the objects, until the other lane ends.
async fn receive(pair: &Pair, mut writing: WriteHalf<'_>, mut source: Source) -> Result<Read, Trouble> {
    let mut wanted = true;
    let mut deletions = JoinSet::new();
    for expected in 0.. {
        // The source ends with a failure, which other tasks report.
        let Some((number, object)) = source.next().await else {
            return std::future::pending().await;
        };
        let header = Header::from_bytes(&object).filter(|header| header.number == expected && number == expected);
        let sound = |header: &Header| header.read <= pair.stored.load(Ordering::Acquire) && object.len() <= MAX_BYTES;
        let Some(header) = header.filter(sound) else {
            return pair.refuse(expected, writing).await;
        };
        pair.theirs
            .send_if_modified(|theirs| std::mem::replace(theirs, header.read.max(*theirs)) != *theirs);
        let bytes = object.slice(HEADER_BYTES..);
        // After the local end closed, remaining objects are still deleted.
        wanted = wanted && writing.write_all(&bytes).await.is_ok();
        pair.ours.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        if pair.owes_word() {
            pair.tell.notify_one();
        }
        let (mailbox, lane) = (pair.mailbox.clone(), pair.opposite());
        deletions.spawn(async move { mailbox.delete(lane, number).await });
        while let Some(deleted) = deletions.try_join_next() {
            deleted.unwrap_or(Ok(()))?;
        }
        if header.last {
            break;
        }
    }
    // The socket may be closed already.
    let _ = writing.shutdown().await;
    pair.ended.send_replace(true);
    while let Some(deleted) = deletions.join_next().await {
        deleted.unwrap_or(Ok(()))?;
    }
    Ok(Read::ToItsEnd)
}

/// Largest object in bytes.
const MAX_BYTES: usize = HEADER_BYTES + OBJECT_BYTES + READ_BYTES;

/// Waits until the value is true. The sender outlives the waiting task.
async fn over(ended: &mut watch::Receiver<bool>) {
    let _ = ended.wait_for(|ended| *ended).await;
}

/// Looks for the objects of the other lane in order; for several at a time if the last one was large.
async fn look(pair: &Pair, found: tokio::sync::mpsc::Sender<Arrival>) -> Result<(), Trouble> {
    let (mailbox, lane) = (&pair.mailbox, pair.opposite());
    let (mut next, mut ahead, mut wanted) = (0, 0, 1);
    let mut looks = FuturesOrdered::new();
    let mut since = Instant::now();
    let mut ended = pair.ended.subscribe();
    loop {
        while looks.len() < wanted {
            looks.push_back(mailbox.get(lane, ahead));
            ahead += 1;
        }
        let object = tokio::select! {
            object = looks.next() => object.unwrap_or(Ok(None))?,
            () = over(&mut ended) => return Ok(()),
        };
        if let Some(object) = object {
            wanted = if object.len() >= OBJECT_BYTES {
                (wanted * 2).min(mailbox.at_once())
            } else {
                1
            };
            // The receiver has got the last object.
            if found.send((next, object)).await.is_err() {
                return Ok(());
            }
            (next, since) = (next + 1, Instant::now());
            continue;
        }
        looks = FuturesOrdered::new();
        (ahead, wanted) = (next, 1);
        let pause = (since.elapsed() / PAUSE_SHARE).clamp(mailbox.pause(), LONGEST_PAUSE);
        tokio::select! {
            () = sleep(pause) => {}
            () = pair.asked.notified() => since = Instant::now(),
            () = over(&mut ended) => return Ok(()),
        }
    }
}
