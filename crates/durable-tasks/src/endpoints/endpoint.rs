//! One endpoint: its record, its queue, what its dispatcher reports, and the connection of that dispatcher.

use std::sync::Arc;

use dayfly_protocol::dispatch::{FromDispatcher, ToDispatcher};
use dayfly_protocol::endpoints::{BlockStatus, EndpointSpec, EndpointState, EndpointStatus};
use dayfly_protocol::ids::{EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskTimes};
use dayfly_scheduling::Queue;
use dayfly_store::tasks::EndpointRecord;
use tokio::sync::{Notify, mpsc};

use crate::connection::{Connection, Conversation};
use crate::output::Outputs;

/// An endpoint, as its manager knows it.
pub struct Endpoint {
    record: EndpointRecord,
    connection: Option<Connection>,
    /// Number of connections that its dispatchers have made.
    connections: u64,
    /// The dispatcher process that last reported which tasks it has.
    instance: Option<u64>,
    queue: Queue<TaskId>,
    /// Number of tasks that the dispatcher accepts at a time.
    room: u32,
    /// Number of tasks that the dispatcher has, with those that are on their way to it.
    held: u32,
    workers: u32,
    blocks: Vec<BlockStatus>,
    /// Why it gets no more nodes.
    block_trouble: Option<String>,
    /// Why it gets no more workers.
    trouble: Option<String>,
    done: u64,
    failed: u64,
    times: TaskTimes,
    outputs: Outputs,
    /// Wakes the sender of its tasks.
    wake: Arc<Notify>,
}

impl Endpoint {
    pub fn new(record: EndpointRecord) -> Self {
        Self {
            record,
            connection: None,
            connections: 0,
            instance: None,
            queue: Queue::default(),
            room: 0,
            held: 0,
            workers: 0,
            blocks: Vec::new(),
            block_trouble: None,
            trouble: None,
            done: 0,
            failed: 0,
            times: TaskTimes::default(),
            outputs: Outputs::default(),
            wake: Arc::default(),
        }
    }
}

/// The record.
impl Endpoint {
    pub fn record(&self) -> &EndpointRecord {
        &self.record
    }

    pub fn id(&self) -> EndpointId {
        self.record.id
    }

    pub fn name(&self) -> &str {
        &self.record.name
    }

    pub fn set_record(&mut self, record: EndpointRecord) {
        self.record = record;
    }

    pub fn set_spec(&mut self, spec: EndpointSpec) {
        self.record.spec = spec;
    }

    /// The status without the counts of live tasks, for which `counts` has them.
    pub fn status(&self, owner: String, counts: TaskCounts) -> EndpointStatus {
        EndpointStatus {
            id: self.record.id,
            name: self.record.name.clone(),
            owner,
            foreign: false,
            spec: self.record.spec.clone(),
            state: match self.is_connected() {
                true => EndpointState::Up,
                false => EndpointState::Down,
            },
            workers: self.workers,
            blocks: self.blocks.clone(),
            trouble: self.block_trouble.clone().or(self.trouble.clone()),
            tasks: TaskCounts {
                done: self.done,
                failed: self.failed,
                times: self.times,
                ..counts
            },
        }
    }
}

/// The connection.
impl Endpoint {
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    pub fn connection_mut(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// The record, with the connection to change.
    pub fn record_and_connection(&mut self) -> (&EndpointRecord, Option<&mut Connection>) {
        (&self.record, self.connection.as_mut())
    }

    /// Whether the connection with this number is open, and no newer one has replaced it.
    pub fn is_current(&self, number: u64) -> bool {
        self.connection()
            .is_some_and(|connection| connection.number() == number)
    }

    /// Replaces the connection. Returns the dispatcher's side, the manager's receiver, and the connection's number,
    /// which is 1 for the first.
    pub fn connect(
        &mut self,
        instance: u64,
        keeps_outcomes: bool,
    ) -> (Conversation, mpsc::UnboundedReceiver<FromDispatcher>, u64) {
        let (outgoing, from_manager) = mpsc::unbounded_channel();
        let (to_manager, incoming) = mpsc::unbounded_channel();
        self.connections += 1;
        self.connection = Some(Connection::new(self.connections, instance, keeps_outcomes, outgoing));
        (self.room, self.held, self.workers) = (0, 0, 0);
        let conversation = Conversation {
            from_manager,
            to_manager,
        };
        (conversation, incoming, self.connections)
    }

    /// The connection has ended.
    pub fn disconnect(&mut self) {
        self.connection = None;
        (self.room, self.workers) = (0, 0);
        self.trouble = None;
    }

    /// Ends the connection, since another manager owns the tasks now.
    pub fn close(&mut self) {
        self.connection = None;
        self.wake();
    }

    /// Sends a message if the dispatcher is connected. Otherwise the dispatcher asks when it reconnects.
    pub fn send(&self, message: ToDispatcher) {
        if let Some(connection) = &self.connection {
            connection.send(message);
        }
    }

    /// Restores the process that last reported which tasks it has.
    pub fn restore_instance(&mut self, instance: u64) {
        self.instance = Some(instance);
    }

    /// Whether this process has not yet reported which tasks it has.
    pub fn is_new_instance(&self, instance: u64) -> bool {
        self.instance != Some(instance)
    }

    /// A process reports which tasks it has: `count` of the endpoint's tasks are out. Returns whether it is another
    /// process than before.
    pub fn set_held(&mut self, instance: u64, count: u32) -> bool {
        self.held = count;
        self.instance.replace(instance) != Some(instance)
    }
}

/// The queue, and the tasks that the dispatcher has.
impl Endpoint {
    /// The notification that wakes the sender of its tasks.
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// Wakes the sender of its tasks.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Number of tasks for which the dispatcher has room.
    pub fn free(&self) -> usize {
        self.room.saturating_sub(self.held) as usize
    }

    /// Whether tasks of this tenant and function can be sent as soon as they are accepted.
    pub fn takes_at_once(&self, tenant: TenantId, function: FunctionId, count: usize) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        self.queue.is_empty() && self.free() >= count && connection.knows(tenant, function)
    }

    /// Counts tasks that are on their way to the dispatcher.
    pub fn add_held(&mut self, count: u32) {
        self.held += count;
    }

    /// Counts tasks that the dispatcher has no more, or does not get.
    pub fn release(&mut self, count: usize) {
        self.held = self.held.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Appends a task to the queue.
    pub fn push(&mut self, tenant: TenantId, priority: i8, task: TaskId) {
        self.queue.push(tenant, priority, task);
    }

    /// Puts a task back that was not executed, or is to be executed again.
    pub fn put_back(&mut self, tenant: TenantId, priority: i8, task: TaskId) {
        self.queue.put_back(tenant, priority, task);
    }

    /// Tenants with tasks in the queue.
    pub fn waiting_tenants(&self) -> impl Iterator<Item = TenantId> {
        self.queue.tenants()
    }

    /// Takes the next task of a tenant that is not among `held_up`.
    pub fn pop_except(&mut self, held_up: &[TenantId]) -> Option<TaskId> {
        self.queue.pop_except(held_up)
    }

    /// Records for the fair share that a task of this tenant took `took_us` microseconds.
    pub fn record_share(&mut self, tenant: TenantId, took_us: u64) {
        self.queue.record(tenant, took_us);
    }

    /// Drops tenants without waiting tasks.
    pub fn tidy(&mut self) {
        self.queue.drop_idle();
    }
}

/// Reports.
impl Endpoint {
    /// The dispatcher accepts this many tasks at a time.
    pub fn set_room(&mut self, tasks: u32) {
        self.room = tasks;
        self.wake();
    }

    pub fn set_workers(&mut self, count: u32, trouble: Option<String>) {
        (self.workers, self.trouble) = (count, trouble);
    }

    pub fn set_blocks(&mut self, blocks: Vec<BlockStatus>, trouble: Option<String>) {
        (self.blocks, self.block_trouble) = (blocks, trouble);
    }

    pub fn set_trouble(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    /// Counts a task that has ended.
    pub fn count_ended(&mut self, failed: bool, times: TaskTimes) {
        self.done += 1;
        self.failed += u64::from(failed);
        self.times.add(times);
    }

    pub fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    pub fn outputs_mut(&mut self) -> &mut Outputs {
        &mut self.outputs
    }
}
