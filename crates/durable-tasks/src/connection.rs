//! The connection of a dispatcher: what the manager has sent over it, and the requests that it has not answered.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use dayfly_protocol::dispatch::{Attempt, FromDispatcher, Program, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use tokio::sync::{mpsc, oneshot};

use crate::compatibility::Compatibility;
use crate::endpoints::{Endpoint, own};
use crate::invitations::Invitation;
use crate::open_requests::OpenRequests;
use crate::{Tasks, dispatch};

/// Maximum number of messages that are handled under one hold of the lock.
const MAX_BATCH: usize = 256;

/// The dispatcher's side of its conversation with the manager.
pub struct Conversation {
    /// Messages of the manager.
    pub from_manager: mpsc::UnboundedReceiver<ToDispatcher>,
    /// Messages to the manager.
    pub to_manager: mpsc::UnboundedSender<FromDispatcher>,
}

/// The connection of a dispatcher. Dropping it ends the waits for replies.
pub struct Connection {
    number: u64,
    /// The dispatcher's process.
    instance: u64,
    /// Whether the dispatcher keeps outcomes until the manager has confirmed that they are written. One that may
    /// reconnect does.
    keeps_outcomes: bool,
    outgoing: mpsc::UnboundedSender<ToDispatcher>,
    /// Tenants that were introduced.
    tenants: HashSet<TenantId>,
    /// Functions whose code was sent.
    programs: HashSet<FunctionId>,
    /// Which functions it can run, as far as it was asked.
    compatibility: HashMap<FunctionId, Compatibility>,
    invitations: OpenRequests<Invitation>,
    withdrawals: OpenRequests<Vec<Attempt>>,
}

impl Connection {
    pub fn new(
        number: u64,
        instance: u64,
        keeps_outcomes: bool,
        outgoing: mpsc::UnboundedSender<ToDispatcher>,
    ) -> Self {
        Self {
            number,
            instance,
            keeps_outcomes,
            outgoing,
            tenants: HashSet::new(),
            programs: HashSet::new(),
            compatibility: HashMap::new(),
            invitations: OpenRequests::default(),
            withdrawals: OpenRequests::default(),
        }
    }

    /// Its number among the connections of its endpoint.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn instance(&self) -> u64 {
        self.instance
    }

    pub fn keeps_outcomes(&self) -> bool {
        self.keeps_outcomes
    }

    /// Sends a message. Does nothing if the dispatcher has gone: the receiver of its messages notices that.
    pub fn send(&self, message: ToDispatcher) {
        let _ = self.outgoing.send(message);
    }

    /// Whether the dispatcher has all that it needs for a task of this tenant and function.
    pub fn knows(&self, tenant: TenantId, function: FunctionId) -> bool {
        self.tenants.contains(&tenant) && self.has_program(function)
    }

    pub fn has_program(&self, function: FunctionId) -> bool {
        self.programs.contains(&function)
    }

    /// Returns the message with a function's code, which the dispatcher has from then on.
    pub fn add_program(&mut self, program: Program) -> ToDispatcher {
        self.programs.insert(program.id);
        ToDispatcher::Program(Box::new(program))
    }

    /// Whether the dispatcher does not know the tenant yet. It does from then on.
    pub fn add_tenant(&mut self, tenant: TenantId) -> bool {
        self.tenants.insert(tenant)
    }

    /// What is known about a function. Sends `question` the first time.
    pub fn compatibility(
        &mut self,
        function: FunctionId,
        question: impl FnOnce() -> ToDispatcher,
    ) -> &mut Compatibility {
        let outgoing = &self.outgoing;
        self.compatibility.entry(function).or_insert_with(|| {
            let _ = outgoing.send(question());
            Compatibility::default()
        })
    }

    /// Handles the dispatcher's reply whether it can run a function. Ignores replies without a request.
    pub fn set_compatibility(&mut self, function: FunctionId, refusal: Option<Failure>) {
        if let Some(known) = self.compatibility.get_mut(&function) {
            known.answer(refusal);
        }
    }

    /// Asks for an invitation. `request` makes the message from the request's number.
    pub fn request_invitation(&mut self, request: impl FnOnce(u64) -> ToDispatcher) -> oneshot::Receiver<Invitation> {
        let (number, answer) = self.invitations.open();
        self.send(request(number));
        answer
    }

    pub fn answer_invitation(&mut self, number: u64, invitation: Invitation) {
        self.invitations.answer(number, invitation);
    }

    /// Asks the dispatcher to end the attempts that it has not begun. Returns where these attempts arrive.
    pub fn request_withdrawal(&mut self, attempts: Vec<Attempt>) -> oneshot::Receiver<Vec<Attempt>> {
        let (number, answer) = self.withdrawals.open();
        self.send(ToDispatcher::Withdraw { number, attempts });
        answer
    }

    pub fn answer_withdrawal(&mut self, number: u64, attempts: Vec<Attempt>) {
        self.withdrawals.answer(number, attempts);
    }
}

impl Tasks {
    /// Connects a dispatcher of this process to the manager's own endpoint of this name. Creates the endpoint if there
    /// is none.
    pub async fn attach(self: &Arc<Self>, name: &str) -> Result<Conversation, Failure> {
        let record = self.store.endpoint(own(name)).wait().await?;
        let id = record.id;
        let mut state = self.state();
        let endpoint = state.endpoints.get_or_insert(record);
        // It ends with this process, and has no tasks yet.
        let conversation = self.open_connection(endpoint, 0, false);
        let lost = state.on_holds(id, 0, &[]);
        self.on_ended(&mut state, id, lost);
        state.send_watches(id);
        Ok(conversation)
    }

    /// Connects a dispatcher on another host. `instance` identifies its process.
    ///
    /// # Errors
    /// `NotFound` for an endpoint that does not exist. `AddressInUse` if another process is connected for it.
    pub fn connect(self: &Arc<Self>, id: EndpointId, instance: u64) -> Result<Conversation, Failure> {
        let mut state = self.state();
        let Some(endpoint) = state.endpoints.get_mut(id) else {
            let text = format!("the endpoint {id} does not exist any more; set it up again");
            return Err(Failure::new(Code::NotFound, text));
        };
        let other = endpoint.connection().filter(|other| other.instance() != instance);
        if other.is_some() {
            let text = format!(
                "another process is connected for the endpoint `{}`; stop that process",
                endpoint.name()
            );
            return Err(Failure::new(Code::AddressInUse, text));
        }
        let conversation = self.open_connection(endpoint, instance, true);
        state.send_watches(id);
        Ok(conversation)
    }

    fn open_connection(self: &Arc<Self>, endpoint: &mut Endpoint, instance: u64, keeps_outcomes: bool) -> Conversation {
        let (conversation, incoming, number) = endpoint.connect(instance, keeps_outcomes);
        tokio::spawn(receive(Arc::downgrade(self), endpoint.id(), number, incoming));
        if number == 1 {
            tokio::spawn(dispatch::run(Arc::downgrade(self), endpoint.id(), endpoint.waker()));
        }
        conversation
    }
}

/// Handles the messages of one connection until it ends.
async fn receive(
    tasks: Weak<Tasks>,
    id: EndpointId,
    number: u64,
    mut incoming: mpsc::UnboundedReceiver<FromDispatcher>,
) {
    let mut messages = Vec::with_capacity(MAX_BATCH);
    while incoming.recv_many(&mut messages, MAX_BATCH).await > 0 {
        let Some(tasks) = tasks.upgrade() else { return };
        tasks.on_messages(id, number, &mut messages);
        messages.clear();
    }
    let Some(tasks) = tasks.upgrade() else { return };
    let mut state = tasks.state();
    if let Some(endpoint) = state.endpoints.get_mut(id)
        && endpoint.is_current(number)
    {
        tracing::warn!(endpoint = endpoint.name(), "its dispatcher has disconnected");
        endpoint.disconnect();
    }
}
