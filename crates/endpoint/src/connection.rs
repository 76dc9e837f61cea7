//! The dispatcher's connection to a manager on another host: a WebSocket that reconnects without end.
//!
//! The dispatcher does not notice interruptions. A [`DeliveryState`] keeps its tasks and outcomes until the manager has
//! stored them, and repeats them on the next connection.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_manager_connection::{Backoff, Socket};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::ManagerAddress;
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, MAX_FRAME_BYTES, ToDispatcher};
use dayfly_protocol::endpoints::EndpointSpec;
use dayfly_protocol::error::Failure;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;

use crate::outbox::Outbox;

/// Path at which a manager accepts dispatchers.
const PATH: &str = "/v1/endpoints/connect";
/// Limit for connecting, including TLS.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A manager that reads nothing for this long is stuck.
const SEND_DEADLINE: Duration = Duration::from_secs(60);
/// Longest silence; a manager pings more often.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// Managers to connect to, and credentials.
#[derive(Debug, Clone)]
pub struct Options {
    /// The managers of the site that tasks come from, at least one. Any of them can serve the connection.
    pub managers: Vec<ManagerAddress>,
    /// The token of the endpoint's registration.
    pub token: String,
    /// Path of the outbox for outcomes without a connection; `None` keeps them in memory only.
    pub outbox: Option<PathBuf>,
    /// The endpoint's specification, sent on each connection; `None` if the dispatcher does not set it.
    pub spec: Option<EndpointSpec>,
}

/// State of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected yet.
    Connecting,
    Up,
    /// Not connected, and why; retried.
    Down(String),
}

impl std::fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Up => f.write_str("up"),
            Self::Down(why) => f.write_str(why),
        }
    }
}

/// Why a connection ended or failed.
#[derive(Debug, thiserror::Error)]
enum Disconnect {
    #[error("{0}; set the endpoint up anew")]
    Unauthorized(dayfly_manager_connection::Error),
    #[error("{0}")]
    Connecting(dayfly_manager_connection::Error),
    #[error("the manager refused this endpoint: {0}")]
    Refused(Failure),
    #[error("the manager broke the protocol: {0}")]
    Violation(String),
    #[error("another manager has taken over the tasks, and this one does not know it yet")]
    Stale,
    #[error("the connection broke")]
    Gone,
    #[error("the manager did not respond in time")]
    TimedOut,
    #[error("the endpoint is stopping")]
    Stopping,
}

type Frames = SplitStream<Socket>;
type Writer = SplitSink<Socket, Message>;

/// A dispatcher's two channels to the manager, which outlive connections.
pub struct ManagerChannels {
    /// Messages of the manager.
    pub incoming: UnboundedReceiver<ToDispatcher>,
    /// Messages of the dispatcher.
    pub outgoing: UnboundedSender<FromDispatcher>,
    /// State of the connection.
    pub state: watch::Receiver<ConnectionState>,
    /// Completes when all messages are sent, after the last sender is dropped.
    pub ended: JoinHandle<()>,
}

/// Keeps a connection to a manager until all senders are dropped. Requires a tokio runtime.
pub fn open(options: Options) -> Result<ManagerChannels, Failure> {
    let (to_dispatcher, incoming) = unbounded_channel();
    let (outgoing, from_dispatcher) = unbounded_channel();
    let (state, seen) = watch::channel(ConnectionState::Connecting);
    let mut instance = [0; 8];
    getrandom::fill(&mut instance).map_err(|error| {
        let code = dayfly_protocol::error::Code::Internal;
        Failure::new(code, format!("no randomness: {error}"))
    })?;
    let mut delivery = DeliveryState {
        spec: options.spec.map(FromDispatcher::Spec),
        ..DeliveryState::default()
    };
    let outbox = options.outbox.map(|path| {
        let (outbox, left) = Outbox::open(path);
        delivery.record_sent(&FromDispatcher::Ended(left));
        outbox
    });
    let connection = ConnectionLoop {
        managers: Mutex::new(options.managers.into()),
        token: options.token,
        epoch: AtomicU64::new(0),
        instance: u64::from_le_bytes(instance),
        delivery: Mutex::new(delivery),
        outbox: Mutex::new(outbox),
        to_dispatcher,
        state,
    };
    Ok(ManagerChannels {
        incoming,
        outgoing,
        state: seen,
        ended: tokio::spawn(connection.run(from_dispatcher)),
    })
}

/// The tasks and messages of a dispatcher that the next connection has to repeat.
#[derive(Default)]
struct DeliveryState {
    /// Its tasks and their outcomes, until the manager has stored these.
    held: HashMap<Attempt, Option<Ended>>,
    /// Its last message of each kind.
    room: Option<u32>,
    workers: Option<(u32, Option<String>)>,
    blocks: Option<FromDispatcher>,
    spec: Option<FromDispatcher>,
}

impl DeliveryState {
    fn record_received(&mut self, message: &ToDispatcher) {
        match message {
            ToDispatcher::Tasks(tasks) => self.held.extend(tasks.iter().map(|task| (task.attempt, None))),
            ToDispatcher::OutcomesStored(attempts) => {
                for attempt in attempts {
                    self.held.remove(attempt);
                }
            }
            _ => {}
        }
    }

    fn record_sent(&mut self, message: &FromDispatcher) {
        match message {
            FromDispatcher::Ended(ended) => {
                let ended = ended.iter().map(|one| (one.attempt, Some(one.clone())));
                self.held.extend(ended);
            }
            FromDispatcher::Credit { tasks } => self.room = Some(*tasks),
            FromDispatcher::Workers { count, trouble } => self.workers = Some((*count, trouble.clone())),
            FromDispatcher::Blocks { .. } => self.blocks = Some(message.clone()),
            FromDispatcher::Spec(_) => self.spec = Some(message.clone()),
            // A manager that reconnects receives files anew.
            FromDispatcher::Arrived { .. }
            | FromDispatcher::Unmapped { .. }
            | FromDispatcher::Watching { .. }
            | FromDispatcher::Hello { .. }
            | FromDispatcher::Compatibility { .. }
            | FromDispatcher::Invited { .. }
            | FromDispatcher::Building { .. }
            | FromDispatcher::Printed(_)
            | FromDispatcher::Running(_)
            | FromDispatcher::Withdrawn { .. } => {}
        }
    }

    /// Outcomes that the manager may not have stored.
    fn ended(&self) -> Vec<Ended> {
        self.held.values().flatten().cloned().collect()
    }

    /// The first messages of a connection.
    fn greeting(&self, instance: u64) -> Vec<FromDispatcher> {
        let mut messages = vec![FromDispatcher::Hello {
            version: WIRE_VERSION,
            instance,
            holds: self.held.keys().copied().collect(),
        }];
        messages.extend(self.spec.clone());
        let ended = self.ended();
        if !ended.is_empty() {
            messages.push(FromDispatcher::Ended(ended));
        }
        let workers = self.workers.clone();
        messages.extend(workers.map(|(count, trouble)| FromDispatcher::Workers { count, trouble }));
        messages.extend(self.blocks.clone());
        // Last: from here on, tasks may arrive.
        messages.extend(self.room.map(|tasks| FromDispatcher::Credit { tasks }));
        messages
    }
}

struct ConnectionLoop {
    /// The managers; the first is the one to connect to.
    managers: Mutex<VecDeque<ManagerAddress>>,
    token: String,
    /// The highest epoch that was received.
    epoch: AtomicU64,
    instance: u64,
    delivery: Mutex<DeliveryState>,
    outbox: Mutex<Option<Outbox>>,
    to_dispatcher: UnboundedSender<ToDispatcher>,
    state: watch::Sender<ConnectionState>,
}

impl ConnectionLoop {
    fn delivery(&self) -> MutexGuard<'_, DeliveryState> {
        self.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self, mut outgoing: UnboundedReceiver<FromDispatcher>) {
        let mut backoff = Backoff::default();
        loop {
            let lost = match self.connect().await {
                Ok(socket) => {
                    let begun = Instant::now();
                    let lost = self.exchange(socket, &mut outgoing).await;
                    // Do not retry at once after an immediate refusal.
                    if begun.elapsed() > CONNECT_DEADLINE || !matches!(lost, Disconnect::Refused(_)) {
                        backoff.reset();
                    }
                    // Outcomes that were sent shortly before the end are in doubt; later ones are appended.
                    let ended = self.delivery().ended();
                    if let Some(outbox) = &mut *self.outbox() {
                        outbox.replace(&ended);
                    }
                    lost
                }
                Err(lost) => lost,
            };
            if matches!(lost, Disconnect::Stopping) {
                return;
            }
            let wait = backoff.next_wait();
            let manager = self.manager().manager;
            // If there are several managers, try the next.
            self.managers().rotate_left(1);
            tracing::warn!(manager, %lost, retry_ms = wait.as_millis() as u64, "not connected to the manager");
            self.state.send_replace(ConnectionState::Down(lost.to_string()));
            let until = tokio::time::Instant::now() + wait;
            // Meanwhile keep all messages.
            while let Ok(message) = tokio::time::timeout_at(until, outgoing.recv()).await {
                let Some(message) = message else { return };
                self.delivery().record_sent(&message);
                if let (FromDispatcher::Ended(ended), Some(outbox)) = (&message, &mut *self.outbox()) {
                    outbox.append(ended);
                }
            }
        }
    }

    fn outbox(&self) -> MutexGuard<'_, Option<Outbox>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn managers(&self) -> MutexGuard<'_, VecDeque<ManagerAddress>> {
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn manager(&self) -> ManagerAddress {
        let first = self.managers().front().cloned();
        first.unwrap_or_else(|| ManagerAddress {
            manager: String::new(),
            ca_pem: String::new(),
        })
    }

    /// Updates the list of managers. The connected manager stays first.
    fn set_managers(&self, mut managers: VecDeque<ManagerAddress>) {
        let now = self.manager().manager;
        if let Some(place) = managers.iter().position(|one| one.manager == now) {
            managers.rotate_left(place);
            *self.managers() = managers;
        }
    }

    /// Clears the outbox when the manager has stored its outcomes.
    fn empty_outbox(&self, incoming: &ToDispatcher) {
        if !matches!(incoming, ToDispatcher::OutcomesStored(_)) {
            return;
        }
        let mut outbox = self.outbox();
        if let Some(outbox) = outbox.as_mut().filter(|outbox| !outbox.is_empty())
            && self.delivery().ended().is_empty()
        {
            outbox.clear();
        }
    }

    async fn connect(&self) -> Result<Socket, Disconnect> {
        let manager = self.manager();
        let connecting = dayfly_manager_connection::connect(&manager, PATH, &self.token, MAX_FRAME_BYTES);
        match tokio::time::timeout(CONNECT_DEADLINE, connecting).await {
            Ok(Ok(socket)) => Ok(socket),
            Ok(Err(error @ dayfly_manager_connection::Error::Unauthorized)) => Err(Disconnect::Unauthorized(error)),
            Ok(Err(error)) => Err(Disconnect::Connecting(error)),
            Err(_) => Err(Disconnect::TimedOut),
        }
    }

    async fn exchange(&self, socket: Socket, outgoing: &mut UnboundedReceiver<FromDispatcher>) -> Disconnect {
        let (mut writer, frames) = socket.split();
        // Write and read concurrently: a peer that writes much before it reads must not block both.
        let lost = tokio::select! {
            lost = self.write(&mut writer, outgoing) => lost,
            lost = self.read(frames) => lost,
        };
        if matches!(lost, Disconnect::Stopping) {
            let _ = tokio::time::timeout(CONNECT_DEADLINE, writer.close()).await;
        }
        lost
    }

    async fn write(&self, writer: &mut Writer, outgoing: &mut UnboundedReceiver<FromDispatcher>) -> Disconnect {
        let greeting = self.delivery().greeting(self.instance);
        for message in greeting {
            if let Err(lost) = send(writer, message).await {
                return lost;
            }
        }
        loop {
            let Some(message) = outgoing.recv().await else {
                return Disconnect::Stopping;
            };
            self.delivery().record_sent(&message);
            if let Err(lost) = send(writer, message).await {
                return lost;
            }
        }
    }

    async fn read(&self, mut frames: Frames) -> Disconnect {
        loop {
            let frame = match tokio::time::timeout(SILENCE_LIMIT, frames.next()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(_) => return Disconnect::Gone,
                Err(_) => return Disconnect::TimedOut,
            };
            // The manager sends the first message when it has accepted this endpoint.
            if *self.state.borrow() != ConnectionState::Up && !matches!(frame, Message::Binary(_) | Message::Close(_)) {
                tracing::info!(manager = self.manager().manager, "connected");
                self.state.send_replace(ConnectionState::Up);
            }
            let bytes = match frame {
                Message::Binary(bytes) => bytes,
                Message::Close(_) => return Disconnect::Gone,
                _ => continue,
            };
            match rmp_serde::from_slice(&bytes) {
                Ok(ToDispatcher::Refused(failure)) => return Disconnect::Refused(failure),
                Ok(ToDispatcher::Site { epoch, managers }) => {
                    if self.epoch.fetch_max(epoch, Ordering::Relaxed) > epoch {
                        return Disconnect::Stale;
                    }
                    self.set_managers(managers.into());
                }
                Ok(message) => {
                    self.delivery().record_received(&message);
                    self.empty_outbox(&message);
                    // A dispatcher that ends receives nothing more, and may have messages left.
                    let _ = self.to_dispatcher.send(message);
                }
                Err(error) => return Disconnect::Violation(error.to_string()),
            }
        }
    }
}

async fn send(writer: &mut Writer, message: FromDispatcher) -> Result<(), Disconnect> {
    for part in message.parts() {
        let bytes = rmp_serde::to_vec_named(&part).map_err(|error| Disconnect::Violation(error.to_string()))?;
        match tokio::time::timeout(SEND_DEADLINE, writer.send(Message::Binary(bytes.into()))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Disconnect::Gone),
            Err(_) => return Err(Disconnect::TimedOut),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::contents::Payload;
    use dayfly_protocol::dispatch::Assigned;
    use dayfly_protocol::ids::{FunctionId, TaskId, TenantId};

    use super::*;

    fn attempt(task: u8) -> Attempt {
        Attempt {
            task: TaskId([task; 16]),
            number: 1,
        }
    }

    fn assigned(task: u8) -> Assigned {
        Assigned {
            attempt: attempt(task),
            function: FunctionId([0; 16]),
            tenant: TenantId([0; 16]),
            arguments: Payload::default(),
            answers: Vec::new(),
            walltime_ms: 0,
            repeatable: false,
        }
    }

    #[test]
    fn unconfirmed_outcomes_are_repeated_on_next_connection() {
        let mut delivery = DeliveryState::default();
        delivery.record_received(&ToDispatcher::Tasks(vec![assigned(1), assigned(2), assigned(3)]));
        let ended = [2, 3].map(|task| Ended::unexecuted(attempt(task), None));
        delivery.record_sent(&FromDispatcher::Ended(ended.to_vec()));
        delivery.record_sent(&FromDispatcher::Credit { tasks: 7 });
        delivery.record_received(&ToDispatcher::OutcomesStored(vec![attempt(3)]));
        let messages = delivery.greeting(5);
        let FromDispatcher::Hello { instance, holds, .. } = &messages[0] else {
            panic!("{messages:?}");
        };
        assert_eq!((*instance, holds.len()), (5, 2));
        assert!(holds.contains(&attempt(1)) && holds.contains(&attempt(2)));
        assert_eq!(messages[1], FromDispatcher::Ended(ended[..1].to_vec()));
        assert_eq!(messages[2..], [FromDispatcher::Credit { tasks: 7 }]);
    }
}
