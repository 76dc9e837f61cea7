//! Queues in a store of any kind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dayfly_protocol::error::Failure;
use dayfly_storage::{Kind, Objects, StoreUrl, Streams};

/// Shortest pause between two looks for a missing object: about the store's response time. `None` for a store that
/// reports new entries.
pub fn pause(kind: Kind) -> Option<Duration> {
    match kind {
        Kind::S3 => Some(Duration::from_millis(4)),
        Kind::File => Some(Duration::from_micros(200)),
        Kind::Redis => None,
    }
}

/// Objects of a queue that are stored or read at the same time. Redis stores them in order.
const S3_AT_ONCE: usize = 8;
const FILE_AT_ONCE: usize = 2;

/// The direction between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    pub from: u32,
    pub to: u32,
}

/// A run's part of a store.
#[derive(Debug, Clone)]
pub struct Mailbox {
    run: Arc<str>,
    store: Store,
}

#[derive(Debug, Clone)]
enum Store {
    Objects(Objects),
    Streams(Arc<Streams>),
}

impl Mailbox {
    /// Opens the mailbox, without a request to the store.
    pub fn open(place: &StoreUrl, run: String) -> Result<Self, Failure> {
        let store = match place.kind() {
            Kind::Redis => Store::Streams(Arc::new(Streams::open(place)?)),
            Kind::S3 | Kind::File => Store::Objects(Objects::open(place)?),
        };
        Ok(Self { run: run.into(), store })
    }

    /// Name of the queue in the store.
    pub fn name(&self, queue: Queue) -> String {
        format!("{}/{}-{}", self.run, queue.from, queue.to)
    }

    fn object(&self, queue: Queue, number: u64) -> String {
        format!("{}/{number}", self.name(queue))
    }

    /// The streams of a store that reports new entries.
    pub fn streams(&self) -> Option<&Streams> {
        match &self.store {
            Store::Streams(streams) => Some(streams),
            Store::Objects(_) => None,
        }
    }

    /// How many objects of a queue may be in flight.
    pub fn at_once(&self) -> usize {
        match &self.store {
            Store::Streams(_) => 1,
            Store::Objects(objects) => match objects.place().kind() {
                Kind::File => FILE_AT_ONCE,
                _ => S3_AT_ONCE,
            },
        }
    }

    /// Shortest pause between two looks.
    pub fn pause(&self) -> Duration {
        let kind = match &self.store {
            Store::Objects(objects) => objects.place().kind(),
            Store::Streams(_) => Kind::Redis,
        };
        pause(kind).unwrap_or_default()
    }

    /// Stores an object.
    pub async fn put(&self, queue: Queue, number: u64, bytes: Bytes) -> Result<(), Failure> {
        match &self.store {
            Store::Objects(objects) => objects.put(&self.object(queue, number), bytes).await,
            Store::Streams(streams) => streams.append(&self.name(queue), number, &bytes).await,
        }
    }

    /// Reads an object; `None` if it is missing, and for streams, which are read in another way.
    pub async fn get(&self, queue: Queue, number: u64) -> Result<Option<Bytes>, Failure> {
        match &self.store {
            Store::Objects(objects) => objects.get(&self.object(queue, number)).await,
            Store::Streams(_) => Ok(None),
        }
    }

    /// Whether an object exists.
    pub async fn holds(&self, queue: Queue, number: u64) -> Result<bool, Failure> {
        match &self.store {
            Store::Objects(_) => Ok(self.get(queue, number).await?.is_some()),
            Store::Streams(streams) => streams.holds(&self.name(queue), number).await,
        }
    }

    /// Deletes an object.
    pub async fn delete(&self, queue: Queue, number: u64) -> Result<(), Failure> {
        match &self.store {
            Store::Objects(objects) => objects.delete(&self.object(queue, number)).await,
            Store::Streams(streams) => streams.remove(&self.name(queue), number).await,
        }
    }

    /// Deletes all objects of a queue.
    pub async fn clear(&self, queue: Queue) -> Result<(), Failure> {
        match &self.store {
            Store::Objects(objects) => objects.clear(&self.name(queue)).await,
            Store::Streams(streams) => streams.drop_stream(&self.name(queue)).await,
        }
    }

    /// Deletes what remains of a queue when all its objects are deleted.
    pub async fn forget(&self, queue: Queue) -> Result<(), Failure> {
        match &self.store {
            Store::Objects(_) => Ok(()),
            Store::Streams(streams) => streams.drop_stream(&self.name(queue)).await,
        }
    }
}

/// Deletes what the runs of a group left in a store. That is nothing unless all their ranks were killed.
pub fn clear(place: &StoreUrl, group: &str) -> Result<(), Failure> {
    let stem = super::stem(group);
    dayfly_storage::runtime(place)?.block_on(async {
        match place.kind() {
            Kind::Redis => Streams::open(place)?.clear(&format!("{stem}/")).await,
            Kind::S3 | Kind::File => Objects::open(place)?.clear(&stem).await,
        }
    })
}
