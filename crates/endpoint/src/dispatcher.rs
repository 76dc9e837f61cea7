//! What the manager says, and who does it.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mayfly_client::Client;
use mayfly_protocol::api::Connection;
use mayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program, ToDispatcher};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::ids::{FunctionId, TenantId};
use mayfly_tasks::Window;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::crew::{Crew, Key, Shared};

/// What can be chosen about a dispatcher.
#[derive(Debug, Clone)]
pub struct Options {
    /// The manager to lease from; its token is replaced by that of each tenant.
    pub manager: Connection,
    /// Most workers of one tenant and runtime at a time.
    pub most_workers: u16,
    /// How long workers without a task are kept.
    pub idle: Duration,
}

/// Runs tasks.
pub struct Dispatcher;

/// A running dispatcher. It ends when the manager's side of the conversation does, or by [`Handle::stop`].
pub struct Handle {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Dispatcher {
    /// Starts one between the two halves of a conversation with a manager.
    pub fn start(
        options: Options,
        heard: UnboundedReceiver<ToDispatcher>,
        said: UnboundedSender<FromDispatcher>,
    ) -> Result<Handle, Failure> {
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::new(Shared::new(options, said));
        let impossible = |error| Failure::new(Code::Internal, format!("no thread for the dispatcher: {error}"));
        let runtime = Builder::new_current_thread().build().map_err(impossible)?;
        let thread = std::thread::Builder::new()
            .name("mayfly-dispatch".into())
            .spawn(move || runtime.block_on(Dispatching::new(shared).run(heard, stopped)))
            .map_err(impossible)?;
        Ok(Handle { stop, thread })
    }
}

impl Handle {
    /// Ends it: calls that run are ended, and are told as such to a manager that still listens.
    pub fn stop(self) {
        // It may have ended by itself; its panic has been told on standard error.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

struct Dispatching {
    shared: Arc<Shared>,
    clients: HashMap<TenantId, Client>,
    programs: HashMap<FunctionId, Arc<Program>>,
    crews: HashMap<Key, Arc<Crew>>,
}

impl Dispatching {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            clients: HashMap::new(),
            programs: HashMap::new(),
            crews: HashMap::new(),
        }
    }

    async fn run(mut self, mut heard: UnboundedReceiver<ToDispatcher>, mut stopped: oneshot::Receiver<()>) {
        self.shared.say(FromDispatcher::Holds(Vec::new()));
        self.shared.say(FromDispatcher::Room {
            tasks: Window::default().tasks(self.shared.options.most_workers.into()),
        });
        loop {
            let message = tokio::select! {
                message = heard.recv() => message,
                _ = &mut stopped => None,
            };
            let Some(message) = message else { break };
            match message {
                ToDispatcher::Tenant { tenant, token } => self.on_tenant(tenant, token),
                ToDispatcher::Program(program) => {
                    self.programs.insert(program.id, Arc::new(*program));
                }
                ToDispatcher::Tasks(tasks) => self.on_tasks(tasks),
                ToDispatcher::Cancel(attempts) => self.on_cancel(&attempts),
                // The manager beside it has them all.
                ToDispatcher::Kept(_) => {}
            }
        }
        for crew in self.crews.values() {
            crew.close();
        }
    }

    fn on_tenant(&mut self, tenant: TenantId, token: String) {
        let connection = Connection {
            token,
            ..self.shared.options.manager.clone()
        };
        match Client::manager_at(&connection) {
            Ok(client) => drop(self.clients.insert(tenant, client)),
            Err(error) => tracing::error!(%tenant, %error, "no client for a tenant"),
        }
    }

    fn on_tasks(&mut self, tasks: Vec<Assigned>) {
        let mut refused = Vec::new();
        let mut by_crew: HashMap<Key, Vec<(Arc<Program>, Assigned)>> = HashMap::new();
        for task in tasks {
            match self.programs.get(&task.function) {
                Some(program) => {
                    let key = Key::of(task.tenant, program);
                    by_crew.entry(key).or_default().push((Arc::clone(program), task));
                }
                None => refused.push(unknown(task.attempt)),
            }
        }
        for (key, tasks) in by_crew {
            let Some(client) = self.clients.get(&key.tenant) else {
                refused.extend(tasks.iter().map(|(_, task)| unknown(task.attempt)));
                continue;
            };
            let crew = self.crews.entry(key.clone());
            let crew = crew.or_insert_with(|| Crew::new(key, client.clone(), Arc::clone(&self.shared)));
            crew.take(tasks);
        }
        if !refused.is_empty() {
            self.shared.say(FromDispatcher::Ended(refused));
        }
    }

    fn on_cancel(&self, attempts: &[Attempt]) {
        for crew in self.crews.values() {
            crew.cancel(attempts);
        }
    }
}

/// A manager sends functions and tenants before what needs them.
fn unknown(attempt: Attempt) -> Ended {
    Ended {
        attempt,
        error: Some(Failure::new(
            Code::ProtocolViolation,
            "the manager sent a task before its function",
        )),
        raised: false,
        begun: false,
        answer: Vec::new().into(),
        took_us: 0,
    }
}
