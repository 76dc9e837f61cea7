//! Numbered entries in Redis streams. Entries stay until they are removed, so a lost connection loses none.

use std::time::Duration;

use bytes::Bytes;
use dayfly_protocol::error::{Code, Failure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::store_url::{Kind, StoreUrl};
use crate::{CONNECT, TIMEOUT};

/// Time limit of one response, including all its entries.
const ANSWER: Duration = Duration::from_secs(20);
/// How long a read waits at the server, in milliseconds. Less than [`ANSWER`].
const BLOCK_MS: u64 = 2000;
/// Most entries of one stream in one response.
const ENTRIES: u32 = 4;
/// First pause between attempts. Pauses double up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time after which the server deletes an abandoned stream, in seconds.
const EXPIRY_S: u64 = 24 * 3600;
/// Keys that the server examines in one step of a search.
const SCANNED: u32 = 1000;

/// An entry of a stream.
#[derive(Debug)]
pub struct Entry {
    /// Index of the stream among those of the reader.
    pub stream: usize,
    /// Number of the entry.
    pub number: u64,
    /// Content of the entry.
    pub bytes: Bytes,
}

/// A connection to a Redis server.
#[derive(Debug)]
pub struct Streams {
    line: Line,
}

/// A connection that is reopened when it is lost.
#[derive(Debug)]
struct Line {
    client: Client,
    place: StoreUrl,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Streams {
    /// Parses the address. Does not connect yet.
    pub fn open(place: &StoreUrl) -> Result<Self, Failure> {
        Ok(Self {
            line: Line::new(place)?,
        })
    }

    /// Adds an entry. Numbers of a stream must increase. Idempotent: adding an existing number changes nothing.
    pub async fn append(&self, stream: &str, number: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut commands = redis::pipe();
        commands.cmd("XADD").arg(stream).arg(id(number)).arg("d").arg(bytes);
        commands.cmd("EXPIRE").arg(stream).arg(EXPIRY_S);
        self.line.ask("storing in", &commands, is_there_already).await.map(drop)
    }

    /// Whether an entry exists.
    pub async fn holds(&self, stream: &str, number: u64) -> Result<bool, Failure> {
        let mut commands = redis::pipe();
        commands.cmd("XRANGE").arg(stream).arg(id(number)).arg(id(number));
        match self.line.ask("reading", &commands, never).await?.into_iter().next() {
            Some(Value::Array(found)) => Ok(!found.is_empty()),
            _ => Err(self.line.strange()),
        }
    }

    /// Removes an entry. Idempotent.
    pub async fn remove(&self, stream: &str, number: u64) -> Result<(), Failure> {
        let mut commands = redis::pipe();
        commands.cmd("XDEL").arg(stream).arg(id(number));
        self.line.ask("removing from", &commands, never).await.map(drop)
    }

    /// Removes a stream and its entries.
    pub async fn drop_stream(&self, stream: &str) -> Result<(), Failure> {
        let mut commands = redis::pipe();
        commands.cmd("DEL").arg(stream);
        self.line.ask("removing from", &commands, never).await.map(drop)
    }

    /// Removes all streams whose names begin with `begin`. Scans all keys of the server in steps.
    pub async fn clear(&self, begin: &str) -> Result<(), Failure> {
        // Escape the pattern characters in the name.
        let special = ['*', '?', '[', ']', '\\'];
        let escaped: String = begin
            .chars()
            .flat_map(|letter| special.contains(&letter).then_some('\\').into_iter().chain([letter]))
            .collect();
        let mut cursor = "0".to_owned();
        loop {
            let mut commands = redis::pipe();
            commands
                .cmd("SCAN")
                .arg(&cursor)
                .arg("MATCH")
                .arg(format!("{escaped}*"));
            commands.arg("COUNT").arg(SCANNED);
            let found = self.line.ask("listing", &commands, never).await?.into_iter().next();
            let Some(Value::Array(parts)) = found else {
                return Err(self.line.strange());
            };
            let mut parts = parts.into_iter();
            let (Some(next), Some(Value::Array(keys))) = (parts.next().and_then(text), parts.next()) else {
                return Err(self.line.strange());
            };
            for key in keys.into_iter().filter_map(text) {
                self.drop_stream(&key).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Returns a reader of these streams from their beginnings, with a separate connection.
    pub fn read(&self, streams: Vec<String>) -> Result<Reader, Failure> {
        Ok(Reader {
            line: Line::new(&self.line.place)?,
            last: vec![0; streams.len()],
            streams,
        })
    }
}

/// Reads several streams at the same time.
#[derive(Debug)]
pub struct Reader {
    line: Line,
    streams: Vec<String>,
    /// Last entry read of each stream, in the server's numbering.
    last: Vec<u64>,
}

impl Reader {
    /// Returns the next entries, of each stream in order. Returns none if none arrived for a while.
    pub async fn next(&mut self) -> Result<Vec<Entry>, Failure> {
        let mut commands = redis::pipe();
        let command = commands
            .cmd("XREAD")
            .arg("COUNT")
            .arg(ENTRIES)
            .arg("BLOCK")
            .arg(BLOCK_MS);
        command.arg("STREAMS").arg(&self.streams);
        for last in &self.last {
            commands.arg(format!("0-{last}"));
        }
        let response = self.line.ask("reading", &commands, never).await?.into_iter().next();
        let mut entries = Vec::new();
        let found = match response {
            Some(Value::Nil) => return Ok(entries),
            Some(Value::Array(found)) => found,
            _ => return Err(self.line.strange()),
        };
        for of_one in found {
            self.take(of_one, &mut entries).ok_or_else(|| self.line.strange())?;
        }
        Ok(entries)
    }

    /// `[name, [[id, ["d", bytes]], ...]]`
    fn take(&mut self, of_one: Value, entries: &mut Vec<Entry>) -> Option<()> {
        let [name, Value::Array(found)] = array(of_one)? else {
            return None;
        };
        let name = text(name)?;
        let stream = self.streams.iter().position(|known| *known == name)?;
        for entry in found {
            let [id, fields] = array(entry)?;
            let number = text(id)?.strip_prefix("0-")?.parse::<u64>().ok()?;
            let [_, Value::BulkString(bytes)] = array(fields)? else {
                return None;
            };
            self.last[stream] = number;
            entries.push(Entry {
                stream,
                number: number.checked_sub(1)?,
                bytes: bytes.into(),
            });
        }
        Some(())
    }
}

const REFUSED: &str = "check user and password in its URL, and what they may do";

/// The server counts from 1.
fn id(number: u64) -> String {
    format!("0-{}", number + 1)
}

fn array<const N: usize>(value: Value) -> Option<[Value; N]> {
    match value {
        Value::Array(values) => values.try_into().ok(),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Whether an earlier attempt, whose response was lost, has added the entry.
fn is_there_already(error: &RedisError) -> bool {
    error.to_string().contains("equal or smaller")
}

fn never(_: &RedisError) -> bool {
    false
}

impl Line {
    fn new(place: &StoreUrl) -> Result<Self, Failure> {
        let wrong = |text: &str| {
            Failure::new(
                Code::InvalidRequest,
                format!("the store {place} cannot be opened: {text}"),
            )
        };
        if place.kind() != Kind::Redis {
            return Err(wrong("it is no Redis server"));
        }
        Ok(Self {
            // The client's error may repeat the URL with its password.
            client: Client::open(place.url()).map_err(|_| wrong("write redis://user:password@host:port/database"))?,
            place: place.clone(),
            connection: Mutex::default(),
        })
    }

    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = &*held {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        let made = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(held.insert(made).clone())
    }

    /// Executes commands, and repeats them after a lost connection. `done` recognises the error that shows that an
    /// earlier attempt succeeded.
    async fn ask(
        &self,
        doing: &str,
        commands: &Pipeline,
        done: fn(&RedisError) -> bool,
    ) -> Result<Vec<Value>, Failure> {
        let until = Instant::now() + TIMEOUT;
        let mut pause = FIRST_PAUSE;
        let mut again = false;
        loop {
            let asked = match self.connection().await {
                Ok(mut connection) => commands.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
            let error = match asked {
                Ok(values) => return Ok(values),
                Err(error) if again && done(&error) => return Ok(Vec::new()),
                Err(error) => error,
            };
            if !is_passing(&error) || Instant::now() + pause > until {
                return Err(self.failed(doing, &error));
            }
            *self.connection.lock().await = None;
            again = true;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn failed(&self, doing: &str, error: &RedisError) -> Failure {
        // The cause of a failed pipeline appears only in the error's text.
        let text = error.to_string();
        let refused = ["NOAUTH", "NOPERM", "WRONGPASS"].iter().any(|code| text.contains(code));
        let (code, advice) = match error.kind() {
            ErrorKind::AuthenticationFailed => (Code::Forbidden, REFUSED),
            _ if refused => (Code::Forbidden, REFUSED),
            _ if is_passing(error) => (Code::Unreachable, "check its address and the network"),
            _ => (Code::StoreFailed, "see the store's message"),
        };
        Failure::new(code, format!("{doing} {} failed: {advice} ({text})", self.place))
    }

    fn strange(&self) -> Failure {
        let text = format!("{} does not respond like a Redis server; check the address", self.place);
        Failure::new(Code::ProtocolViolation, text)
    }
}

/// Whether the error is temporary.
fn is_passing(error: &RedisError) -> bool {
    let starting = matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain | ServerErrorKind::MasterDown)
    );
    starting || error.is_io_error() || error.is_timeout() || error.is_connection_dropped()
}
