//! The thread that moves bytes between the local sockets of a rank's connections and the store.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::StoreUrl;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::mailbox::{Mailbox, Queue};
use super::queue_pair::{self, QueuePair};
use super::{GRACE, Shared};

/// Commands to the thread.
#[derive(Debug)]
pub enum Command {
    /// Carries the bytes of a socket to and from this rank.
    Connect { peer: u32, socket: UnixStream },
    /// Ends when all sent bytes are stored and the other ranks' queues have ended.
    Leave,
}

/// Number and contents of an object of a queue.
pub type Arrival = (u64, Bytes);

/// Runs until the rank leaves or the store fails.
pub fn run(shared: &Arc<Shared>, place: &StoreUrl, run: String, size: u32, commands: UnboundedReceiver<Command>) {
    let runtime = match dayfly_storage::runtime(place) {
        Ok(runtime) => runtime,
        Err(failure) => return shared.fail(&failure),
    };
    runtime.block_on(async {
        let mut pairs = JoinSet::new();
        if let Err(failure) = serve(shared, place, run, size, commands, &mut pairs).await {
            // Recorded before the sockets close, which wakes the threads that ask for it.
            shared.fail(&failure);
        }
    });
    // A file system that hangs blocks a thread of the runtime; do not wait for it.
    runtime.shutdown_background();
}

async fn serve(
    shared: &Arc<Shared>,
    place: &StoreUrl,
    run: String,
    size: u32,
    mut commands: UnboundedReceiver<Command>,
    pairs: &mut JoinSet<Result<(), Failure>>,
) -> Result<(), Failure> {
    let mailbox = Mailbox::open(place, run)?;
    let (leave, leaving) = watch::channel(false);
    let mut reported = Told::new(shared.rank, size, &mailbox)?;
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Connect { peer, socket }) => {
                    let socket = tokio::net::UnixStream::from_std(socket).map_err(|error| {
                        Failure::new(Code::Internal, format!("a socket for what is stored: {error}"))
                    })?;
                    let pair = Arc::new(QueuePair::new(shared.clone(), mailbox.clone(), peer));
                    let arrivals = reported.arrivals(peer);
                    pairs.spawn(queue_pair::serve(pair, socket, arrivals, leaving.clone()));
                }
                Some(Command::Leave) | None => break,
            },
            Some(ended) = pairs.join_next() => sound(ended)?,
            failure = reported.failed() => return Err(failure),
        }
    }
    leave.send_replace(true);
    let finish = async {
        while let Some(ended) = pairs.join_next().await {
            sound(ended)?;
        }
        Ok(())
    };
    // Absent ranks are given up; the others, or the starter of the run, delete what they left.
    tokio::select! {
        finished = timeout(GRACE + Duration::from_secs(1), finish) => finished.unwrap_or(Ok(())),
        failure = reported.failed() => Err(failure),
    }
}

fn sound(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    ended.unwrap_or_else(|error| {
        let text = format!("the task that moves a connection's bytes ended: {error}; report this");
        Err(Failure::new(Code::Internal, text))
    })
}

/// Entries that a reporting store sent, for each rank.
struct Told {
    waiting: HashMap<u32, UnboundedReceiver<Arrival>>,
    reading: JoinSet<Failure>,
}

impl Told {
    /// Reads the queues of all ranks from the beginning. One connection serves them all, and must know them from the
    /// start.
    fn new(rank: u32, size: u32, mailbox: &Mailbox) -> Result<Self, Failure> {
        let (mut waiting, mut reading) = (HashMap::new(), JoinSet::new());
        if let Some(streams) = mailbox.streams() {
            let peers: Vec<u32> = (0..size).filter(|peer| *peer != rank).collect();
            let names = peers.iter().map(|peer| mailbox.name(Queue { from: *peer, to: rank }));
            let mut reader = streams.read(names.collect())?;
            let mut senders: Vec<UnboundedSender<Arrival>> = Vec::new();
            for peer in peers {
                // The queue's window bounds it.
                let (sender, receiver) = unbounded_channel();
                senders.push(sender);
                waiting.insert(peer, receiver);
            }
            reading.spawn(async move {
                loop {
                    match reader.next().await {
                        Ok(entries) => {
                            for entry in entries {
                                // Without a receiver, the entry belongs to an abandoned attempt.
                                let _ = senders[entry.stream].send((entry.number, entry.bytes));
                            }
                        }
                        Err(failure) => return failure,
                    }
                }
            });
        }
        Ok(Self { waiting, reading })
    }

    /// The entries for this rank's queue; `None` if objects must be looked for.
    fn arrivals(&mut self, peer: u32) -> Option<UnboundedReceiver<Arrival>> {
        self.waiting.remove(&peer)
    }

    /// Waits until reading fails, and returns the failure.
    async fn failed(&mut self) -> Failure {
        match self.reading.join_next().await {
            Some(Ok(failure)) => failure,
            Some(Err(error)) => Failure::new(
                Code::Internal,
                format!("the task that reads the store ended: {error}; report this"),
            ),
            None => std::future::pending().await,
        }
    }
}
