//! The two queues of a pair of ranks.

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

use super::mailbox::{Mailbox, Queue};
use super::object_header::{HEADER_BYTES, ObjectHeader};
use super::transfer::Arrival;
use super::{GRACE, OBJECT_BYTES, Shared, WINDOW};

/// Bytes that are read before the other side is informed of them.
const REPORT_EVERY: u64 = WINDOW / 4;
/// Bytes to read from the local socket at a time.
const READ_BYTES: usize = 256 << 10;
/// How long an object that is not full waits for more bytes while others are being stored.
const QUIET: Duration = Duration::from_millis(1);
/// Longest pause between two reads of a missing object, and the divisor of the time without an object that sets the
/// pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 4;
/// Interval at which a leaving rank checks for losses.
const LOSS_PAUSE: Duration = Duration::from_millis(50);

/// A pair of ranks, seen from one of them.
pub struct QueuePair {
    shared: Arc<Shared>,
    mailbox: Mailbox,
    peer: u32,
    /// Bytes of our queue that the other rank has read.
    peer_read: watch::Sender<u64>,
    /// Bytes of our queue that are stored.
    stored: AtomicU64,
    /// Bytes of the other queue that were read here, and the count that the other rank knows.
    own_read: AtomicU64,
    reported: AtomicU64,
    report_due: Notify,
    /// Whether the other queue has ended.
    ended: watch::Sender<bool>,
    /// Notified when an object was stored, to which a response may arrive.
    object_stored: Notify,
    /// Number of our queue's last object, once it is stored.
    last: OnceLock<u64>,
}

impl QueuePair {
    pub fn new(shared: Arc<Shared>, mailbox: Mailbox, peer: u32) -> Self {
        Self {
            shared,
            mailbox,
            peer,
            peer_read: watch::Sender::new(0),
            stored: AtomicU64::new(0),
            own_read: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            report_due: Notify::new(),
            ended: watch::Sender::new(false),
            object_stored: Notify::new(),
            last: OnceLock::new(),
        }
    }

    fn queue(&self) -> Queue {
        Queue {
            from: self.shared.rank,
            to: self.peer,
        }
    }

    fn opposite(&self) -> Queue {
        Queue {
            from: self.peer,
            to: self.shared.rank,
        }
    }

    /// Handles an object in the other queue that no rank of the group stored: stops reading, and ends our queue, which
    /// informs the other rank.
    async fn refuse(&self, number: u64, mut writing: WriteHalf<'_>) -> Result<Read, PairError> {
        let queue = self.mailbox.name(self.opposite());
        let reason = format!("object {number} of {queue} in the store is not what that rank stored");
        self.shared.broke(self.peer, &reason);
        // The socket may be closed already.
        let _ = writing.shutdown().await;
        self.ended.send_replace(true);
        Ok(Read::Refused)
    }

    /// Completes an object of our queue with its header.
    fn complete(&self, number: u64, last: bool, mut object: BytesMut) -> Bytes {
        let read = self.own_read.load(Ordering::Acquire);
        self.reported.store(read, Ordering::Release);
        object[..HEADER_BYTES].copy_from_slice(&ObjectHeader { number, read, last }.to_bytes());
        object.freeze()
    }

    /// Whether the other rank has read our queue to its stored end, or cannot be queried.
    async fn is_read(&self) -> bool {
        let Some(last) = self.last.get() else {
            return false;
        };
        // The reader of an object deletes it.
        self.mailbox.holds(self.queue(), *last).await.is_ok_and(|there| !there)
    }

    /// Waits while the other rank may still read the reason of the end, at most [`GRACE`]. Not if its process is gone.
    async fn wait_for_reader(&self) {
        let until = Instant::now() + GRACE;
        while !self.shared.lost.is_gone(self.peer) && !self.is_read().await && Instant::now() < until {
            sleep(LOSS_PAUSE).await;
        }
    }

    fn owes_report(&self) -> bool {
        self.own_read.load(Ordering::Acquire) - self.reported.load(Ordering::Acquire) >= REPORT_EVERY
    }
}

/// Why a pair ends early.
enum PairError {
    /// The store failed.
    Store(Failure),
    /// The other rank is lost.
    Lost,
    /// The pair uses another route.
    Abandoned,
}

/// How reading a queue ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    ToItsEnd,
    Refused,
}

impl From<Failure> for PairError {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// Carries the bytes of a socket until both queues have ended. An error is the store's.
pub async fn serve(
    pair: Arc<QueuePair>,
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
                tokio::try_join!(sent, receive(&pair, writing, Source::Announced(arrivals))).map(|((), read)| read)
            }
            None => {
                let (found, objects) = channel(pair.mailbox.at_once());
                let polled = poll_objects(&pair, found);
                tokio::try_join!(sent, polled, receive(&pair, writing, Source::Found(objects)))
                    .map(|((), (), read)| read)
            }
        }
    };
    let ended = tokio::select! {
        ended = both => ended,
        () = lost(&pair, leaving.clone()) => Err(PairError::Lost),
    };
    match ended {
        Ok(Read::ToItsEnd) => pair.mailbox.forget(pair.opposite()).await,
        Ok(Read::Refused) => {
            // The other rank may still respond.
            wait_until_set(&mut leaving).await;
            pair.wait_for_reader().await;
            pair.mailbox.clear(pair.queue()).await?;
            pair.mailbox.clear(pair.opposite()).await
        }
        Err(PairError::Store(failure)) => {
            pair.shared.fail(&failure);
            Err(failure)
        }
        Err(PairError::Abandoned) => pair.mailbox.clear(pair.queue()).await,
        Err(PairError::Lost) => {
            pair.mailbox.clear(pair.queue()).await?;
            pair.mailbox.clear(pair.opposite()).await
        }
    }
}

/// Waits until the other rank is lost and cannot receive more. Before this rank leaves, its connection reports losses.
async fn lost(pair: &QueuePair, mut leaving: watch::Receiver<bool>) {
    wait_until_set(&mut leaving).await;
    while pair.shared.lost.check(pair.peer).is_ok() {
        sleep(LOSS_PAUSE).await;
    }
    pair.wait_for_reader().await;
}

/// Stores the bytes of the socket until its end.
async fn send(pair: &QueuePair, mut reading: ReadHalf<'_>) -> Result<(), PairError> {
    let (mailbox, queue) = (&pair.mailbox, pair.queue());
    let empty = || BytesMut::zeroed(HEADER_BYTES);
    let (mut object, mut number, mut bytes) = (empty(), 0, 0u64);
    let mut under_way = FuturesUnordered::new();
    let (mut peer_read, mut ended) = (pair.peer_read.subscribe(), pair.ended.subscribe());
    let (mut open, mut quiet) = (true, false);
    loop {
        let over = *ended.borrow_and_update();
        if over {
            // The other rank does not read them any more.
            (open, object) = (false, empty());
        }
        let have = (object.len() - HEADER_BYTES) as u64;
        let room = bytes - *peer_read.borrow_and_update() + have <= WINDOW;
        let free = under_way.len() < mailbox.at_once();
        let due = have > 0 && room && (have as usize >= OBJECT_BYTES || under_way.is_empty() || quiet || !open);
        if free && (due || pair.owes_report()) {
            let whole = if room {
                std::mem::replace(&mut object, empty())
            } else {
                empty()
            };
            bytes += (whole.len() - HEADER_BYTES) as u64;
            pair.stored.store(bytes, Ordering::Release);
            under_way.push(mailbox.put(queue, number, pair.complete(number, false, whole)));
            (number, quiet) = (number + 1, false);
            continue;
        }
        if !open && have == 0 && under_way.is_empty() {
            break;
        }
        tokio::select! {
            Some(put) = under_way.next() => {
                put?;
                pair.object_stored.notify_one();
            }
            read = take(&mut reading, &mut object), if open && (have as usize) < OBJECT_BYTES => {
                quiet = false;
                open = read;
                if !open && !pair.shared.is_kept(pair.peer) {
                    return Err(PairError::Abandoned);
                }
            }
            _ = peer_read.changed() => {}
            _ = ended.changed(), if !over => {}
            () = pair.report_due.notified() => {}
            () = sleep(QUIET), if have > 0 && free && !quiet => quiet = true,
        }
    }
    drop(under_way);
    mailbox.put(queue, number, pair.complete(number, true, empty())).await?;
    // Set once: an object is stored once.
    let _ = pair.last.set(number);
    pair.object_stored.notify_one();
    Ok(())
}

/// Reads from the socket. Returns whether more may come. An error counts as the end: the other end belongs to this
/// process.
async fn take(reading: &mut ReadHalf<'_>, object: &mut BytesMut) -> bool {
    object.reserve(READ_BYTES);
    let mut room = object.limit(READ_BYTES);
    reading.read_buf(&mut room).await.is_ok_and(|count| count > 0)
}

/// Source of the other queue's objects.
enum Source {
    Announced(UnboundedReceiver<Arrival>),
    Found(Receiver<Arrival>),
}

impl Source {
    async fn next(&mut self) -> Option<Arrival> {
        match self {
            Self::Announced(reported) => reported.recv().await,
            Self::Found(found) => found.recv().await,
        }
    }
}

/// Writes stored bytes to the socket and deletes the objects, until the other queue ends.
async fn receive(pair: &QueuePair, mut writing: WriteHalf<'_>, mut source: Source) -> Result<Read, PairError> {
    let mut wanted = true;
    let mut deletions = JoinSet::new();
    for expected in 0.. {
        // The source ends with a failure, which other tasks report.
        let Some((number, object)) = source.next().await else {
            return std::future::pending().await;
        };
        let header = ObjectHeader::from_bytes(&object).filter(|header| header.number == expected && number == expected);
        let sound =
            |header: &ObjectHeader| header.read <= pair.stored.load(Ordering::Acquire) && object.len() <= MAX_BYTES;
        let Some(header) = header.filter(sound) else {
            return pair.refuse(expected, writing).await;
        };
        pair.peer_read
            .send_if_modified(|peer_read| std::mem::replace(peer_read, header.read.max(*peer_read)) != *peer_read);
        let bytes = object.slice(HEADER_BYTES..);
        // After the local end closed, remaining objects are still deleted.
        wanted = wanted && writing.write_all(&bytes).await.is_ok();
        pair.own_read.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        if pair.owes_report() {
            pair.report_due.notify_one();
        }
        let (mailbox, queue) = (pair.mailbox.clone(), pair.opposite());
        deletions.spawn(async move { mailbox.delete(queue, number).await });
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
async fn wait_until_set(ended: &mut watch::Receiver<bool>) {
    let _ = ended.wait_for(|ended| *ended).await;
}

/// Polls the store for the objects of the other queue in order; for several at a time if the last one was large.
async fn poll_objects(pair: &QueuePair, found: tokio::sync::mpsc::Sender<Arrival>) -> Result<(), PairError> {
    let (mailbox, queue) = (&pair.mailbox, pair.opposite());
    let (mut next, mut ahead, mut wanted) = (0, 0, 1);
    let mut reads = FuturesOrdered::new();
    let mut since = Instant::now();
    let mut ended = pair.ended.subscribe();
    loop {
        while reads.len() < wanted {
            reads.push_back(mailbox.get(queue, ahead));
            ahead += 1;
        }
        let object = tokio::select! {
            object = reads.next() => object.unwrap_or(Ok(None))?,
            () = wait_until_set(&mut ended) => return Ok(()),
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
        reads = FuturesOrdered::new();
        (ahead, wanted) = (next, 1);
        let pause = (since.elapsed() / PAUSE_SHARE).clamp(mailbox.pause(), LONGEST_PAUSE);
        tokio::select! {
            () = sleep(pause) => {}
            () = pair.object_stored.notified() => since = Instant::now(),
            () = wait_until_set(&mut ended) => return Ok(()),
        }
    }
}
