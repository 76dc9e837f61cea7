//! Which manager owns the durable tasks (`impl Control`).
//!
//! A manager with its own store owns them. Of the managers that share a database, one owns them, and another one when
//! that one dies. Requests about tasks are forwarded to the owner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use dayfly_durable_tasks::{ContentOptions, Tasks, Tenants};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{PublicKey, TenantId};
use dayfly_protocol::tenancy::Prices;
use dayfly_storage::Objects;
use dayfly_store::system::random;
use dayfly_store::tasks::TaskStore;
use dayfly_store::{PostgresTasks, SharedTasks};
use tokio::sync::Notify;

use crate::control::Control;
use crate::peers::SILENT;
use crate::shutdown::stopped;

/// Period of the check who owns them.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Pause between two charges for tasks. Tasks may end by the thousand.
const CHARGE_PAUSE: Duration = Duration::from_millis(250);
/// Object of a content store that has the store's random name.
const CONTENTS_NAME: &str = "store";

/// The owner of the tasks.
#[derive(Default)]
enum Owner {
    /// Unknown, or none between two managers.
    #[default]
    None,
    Local(LocalTasks),
    Peer(PublicKey),
}

struct LocalTasks {
    tasks: Arc<Tasks>,
    /// The tasks in the shared database, under this manager's epoch. `None` if the manager has its own store.
    shared: Option<Arc<PostgresTasks>>,
}

/// The owner of the tasks, and charges for tasks that are not stored yet.
#[derive(Default)]
pub struct TaskOwner {
    owner: Mutex<Owner>,
    /// Why this manager cannot own the tasks, as logged last.
    last_error: Mutex<Option<String>>,
    /// Total cost of tasks by tenant, if it is not charged yet.
    charges: Mutex<HashMap<TenantId, u64>>,
    /// Notified when there are charges.
    charge_due: Notify,
}

/// Tasks in a database that managers share.
pub struct SharedTaskStore {
    /// The tasks in the database.
    pub tasks: SharedTasks,
    /// Where long arguments and results are.
    pub contents: ContentOptions,
}

impl TaskOwner {
    fn owner(&self) -> MutexGuard<'_, Owner> {
        // Each change is one assignment, so a poisoned lock guards a consistent state.
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets tasks in this manager's own store.
    pub fn set_local(&self, tasks: Arc<Tasks>) {
        *self.owner() = Owner::Local(LocalTasks { tasks, shared: None });
    }

    /// The tasks, if this manager owns them.
    pub fn local(&self) -> Option<Arc<Tasks>> {
        match &*self.owner() {
            Owner::Local(local) => Some(Arc::clone(&local.tasks)),
            _ => None,
        }
    }

    /// The other manager that owns them.
    pub fn peer(&self) -> Option<PublicKey> {
        match &*self.owner() {
            Owner::Peer(manager) => Some(*manager),
            _ => None,
        }
    }

    /// Epoch of this manager's ownership in a shared database.
    pub fn epoch(&self) -> Option<u64> {
        match &*self.owner() {
            Owner::Local(local) => local.shared.as_ref().map(|shared| shared.epoch()),
            _ => None,
        }
    }

    /// Queues charges of these totals. A later total of a tenant replaces an earlier one.
    fn charge(&self, totals: Vec<(TenantId, u64)>) {
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        for (tenant, total) in totals {
            let known = charges.entry(tenant).or_default();
            *known = total.max(*known);
        }
        drop(charges);
        self.charge_due.notify_one();
    }

    /// Takes the queued charges.
    fn take_charges(&self) -> HashMap<TenantId, u64> {
        std::mem::take(&mut *self.charges.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Logs why this manager cannot own the tasks, unless that was logged last.
    fn log_error(&self, error: Option<String>) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != error
            && let Some(why) = &error
        {
            tracing::warn!(why, "this manager cannot take the tasks");
        }
        *last = error;
    }
}

/// The manager's tenants, for its tasks.
struct TenantDirectory(Weak<Control>);

impl Tenants for TenantDirectory {
    fn name(&self, tenant: TenantId) -> String {
        let control = self.0.upgrade();
        control.map_or_else(|| tenant.to_string(), |control| control.tenant_name(tenant))
    }

    fn may_spend(&self, tenant: TenantId) -> Result<(), Failure> {
        self.0.upgrade().map_or(Ok(()), |control| control.may_spend(tenant))
    }

    fn prices(&self, tenant: TenantId) -> Prices {
        let control = self.0.upgrade();
        control.map_or_else(Prices::default, |control| {
            control.cluster().tenants().prices_of(&tenant)
        })
    }

    fn charge(&self, totals: Vec<(TenantId, u64)>) {
        if let Some(control) = self.0.upgrade() {
            control.task_owner().charge(totals);
        }
    }
}

impl Control {
    /// Returns the durable tasks.
    ///
    /// # Errors
    /// `Unreachable` if this manager does not own them.
    pub fn tasks(&self) -> Result<Arc<Tasks>, Failure> {
        self.task_owner().local().ok_or_else(|| {
            let text =
                "the manager that has the tasks does not respond, and no other has taken its place yet; try again";
            Failure::new(Code::Unreachable, text)
        })
    }

    /// Reads who owns the tasks, and takes them if no manager that is alive does.
    pub async fn update_task_owner(self: &Arc<Self>, store: &SharedTaskStore) {
        let owner = match store.tasks.owner().wait().await {
            Ok(owner) => owner,
            Err(error) => return self.task_owner().log_error(Some(error.to_string())),
        };
        let own_key = self.peers().own_key();
        let own_epoch = self.task_owner().epoch();
        if owner.manager == Some(own_key) && own_epoch == Some(owner.epoch) {
            return;
        }
        if own_epoch.is_some() {
            tracing::warn!("another manager has the tasks now");
            self.close_tasks();
        }
        match owner.manager {
            Some(other) if other != own_key && !self.peers().is_dead(other) => {
                *self.task_owner().owner() = Owner::Peer(other);
            }
            _ => {
                let taken = self.take_tasks(store, owner.contents).await;
                self.task_owner().log_error(taken.err().map(|failure| failure.message));
            }
        }
    }

    async fn take_tasks(self: &Arc<Self>, common: &SharedTaskStore, known: Option<[u8; 16]>) -> Result<(), Failure> {
        let objects = Objects::open(&common.contents.place)?;
        let found = objects.get(CONTENTS_NAME).await?;
        let found: Option<[u8; 16]> = found.and_then(|bytes| bytes[..].try_into().ok());
        if known.is_some() && known != found {
            let text = format!(
                "the contents of the tasks are not at {}; set `--contents` to the place that all managers share",
                common.contents.place
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let Some(store) = common.tasks.take(known, SILENT).await? else {
            return Ok(());
        };
        let store = Arc::new(store);
        let started = async {
            if known.is_none() {
                let name = found.unwrap_or_else(random);
                objects.put(CONTENTS_NAME, Bytes::copy_from_slice(&name)).await?;
                store.set_contents(name).wait().await?;
            }
            Tasks::start(
                Arc::clone(&store) as Arc<dyn TaskStore>,
                &common.contents,
                self.tenant_directory(),
            )
            .await
        };
        match started.await {
            Ok(tasks) => {
                tracing::info!(epoch = store.epoch(), "this manager has the tasks");
                let shared = Some(store);
                *self.task_owner().owner() = Owner::Local(LocalTasks { tasks, shared });
                Ok(())
            }
            Err(failure) => {
                // Another manager may succeed.
                store.release().wait().await?;
                Err(failure)
            }
        }
    }

    /// Returns this manager's tenants for its tasks.
    pub fn tenant_directory(self: &Arc<Self>) -> Box<dyn Tenants> {
        Box::new(TenantDirectory(Arc::downgrade(self)))
    }

    /// Closes the tasks here, without a change in the database. The next owner has the queries, too.
    fn close_tasks(&self) -> Option<Arc<PostgresTasks>> {
        self.queries().clear();
        match std::mem::take(&mut *self.task_owner().owner()) {
            Owner::Local(LocalTasks { tasks, shared }) => {
                tasks.close();
                shared
            }
            _ => None,
        }
    }

    /// Closes the tasks, writes their last output, and releases them for another manager.
    pub async fn release_tasks(&self) {
        let tasks = self.task_owner().local();
        let shared = self.close_tasks();
        // Dispatchers are disconnected, so no further output arrives.
        if let Some(tasks) = tasks
            && let Err(error) = tasks.write_output().await
        {
            tracing::warn!(%error, "cannot store the last output of tasks");
        }
        if let Some(shared) = shared
            && let Err(error) = shared.release().wait().await
        {
            tracing::warn!(%error, "cannot release the tasks; another manager takes them when this one has been silent for a while");
        }
    }
}

/// Charges tenants for tasks, until this manager stops. The next owner of the tasks repeats what is not charged by
/// then.
pub async fn run_charging(control: Arc<Control>) {
    let mut stopping = control.shutdown().subscribe();
    let owner = control.task_owner();
    let mut failing = false;
    loop {
        tokio::select! {
            () = owner.charge_due.notified() => {}
            () = stopped(&mut stopping) => return,
        }
        let totals = owner.take_charges();
        match control.store().charge(Vec::from_iter(totals.clone())).wait().await {
            Ok(charged) => {
                failing = false;
                charged.into_iter().for_each(|tenant| control.on_tenant(tenant));
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "cannot charge for tasks until the store can write");
                }
                owner.charge(Vec::from_iter(totals));
            }
        }
        tokio::time::sleep(CHARGE_PAUSE).await;
    }
}

/// Checks who owns the tasks, until this manager stops.
pub async fn run(control: Arc<Control>, store: SharedTaskStore) {
    let mut stopping = control.shutdown().subscribe();
    let mut ticks = tokio::time::interval(CHECK_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => control.update_task_owner(&store).await,
            () = stopped(&mut stopping) => return,
        }
    }
}
