//! Which manager has the durable tasks: this one, where it has a store of its own; one of those that share a database, and another
//! when that one dies. Requests about tasks go to whoever has them.

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

use crate::control::{Control, stopped};
use crate::peers::SILENT;

/// Between two looks at who has them.
const EVERY: Duration = Duration::from_secs(1);
/// Between two charges of what tasks cost.
const CHARGED_EVERY: Duration = Duration::from_millis(250);
/// In a content store that managers share: what tells it from another.
const CONTENTS_NAME: &str = "store";

/// Where the tasks are.
#[derive(Default)]
enum Whose {
    /// Not known yet, or nobody's between two managers.
    #[default]
    Nobodys,
    Mine(Mine),
    Anothers(PublicKey),
}

struct Mine {
    tasks: Arc<Tasks>,
    /// Under which they are in the database; none where this manager has a store of its own.
    shared: Option<Arc<PostgresTasks>>,
}

/// Whose the tasks are.
#[derive(Default)]
pub struct TaskOwner {
    whose: Mutex<Whose>,
    /// Why this manager cannot have them, as it was said last.
    trouble: Mutex<Option<String>>,
    /// What tasks cost and is not charged yet: totals of tenants.
    charges: Mutex<HashMap<TenantId, u64>>,
    charged: Notify,
}

/// The tasks that managers have in common.
pub struct Common {
    pub shared: SharedTasks,
    pub contents: ContentOptions,
}

impl TaskOwner {
    fn whose(&self) -> MutexGuard<'_, Whose> {
        // Each change is one assignment.
        self.whose.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are this manager's alone.
    pub fn keep(&self, tasks: Arc<Tasks>) {
        *self.whose() = Whose::Mine(Mine { tasks, shared: None });
    }

    /// The tasks, if this manager has them.
    pub fn mine(&self) -> Option<Arc<Tasks>> {
        match &*self.whose() {
            Whose::Mine(mine) => Some(Arc::clone(&mine.tasks)),
            _ => None,
        }
    }

    /// The other manager that has them.
    pub fn another(&self) -> Option<PublicKey> {
        match &*self.whose() {
            Whose::Anothers(manager) => Some(*manager),
            _ => None,
        }
    }

    /// Under which this manager has them, where it is one of several.
    pub fn epoch(&self) -> Option<u64> {
        match &*self.whose() {
            Whose::Mine(mine) => mine.shared.as_ref().map(|shared| shared.epoch()),
            _ => None,
        }
    }

    /// Has these totals charged, and later ones of the same tenants instead of them.
    fn charge(&self, totals: Vec<(TenantId, u64)>) {
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        for (tenant, total) in totals {
            let known = charges.entry(tenant).or_default();
            *known = total.max(*known);
        }
        drop(charges);
        self.charged.notify_one();
    }

    /// Says why this manager cannot have them, once.
    fn say(&self, trouble: Option<String>) {
        let mut said = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != trouble
            && let Some(why) = &trouble
        {
            tracing::warn!(why, "this manager cannot have the tasks");
        }
        *said = trouble;
    }
}

/// The tenants of a manager, as its tasks know them.
struct Accounts(Weak<Control>);

impl Tenants for Accounts {
    fn name(&self, tenant: TenantId) -> String {
        let control = self.0.upgrade();
        control.map_or_else(|| tenant.to_string(), |control| control.tenant_name(tenant))
    }

    fn may_spend(&self, tenant: TenantId) -> Result<(), Failure> {
        self.0.upgrade().map_or(Ok(()), |control| control.may_spend(tenant))
    }

    fn prices(&self, tenant: TenantId) -> Prices {
        let control = self.0.upgrade();
        control.map_or_else(Prices::default, |control| control.cluster().prices_of(tenant))
    }

    fn charge(&self, totals: Vec<(TenantId, u64)>) {
        if let Some(control) = self.0.upgrade() {
            control.task_owner.charge(totals);
        }
    }
}

impl Control {
    /// Durable tasks, where they are this manager's.
    pub fn tasks(&self) -> Result<Arc<Tasks>, Failure> {
        self.task_owner.mine().ok_or_else(|| {
            let text =
                "the manager that has the tasks does not answer, and no other has taken its place yet; try again";
            Failure::new(Code::Unreachable, text)
        })
    }

    /// Finds out who has the tasks, and takes them if nobody does who lives.
    pub async fn look_after_tasks(self: &Arc<Self>, common: &Common) {
        let owner = match common.shared.owner().wait().await {
            Ok(owner) => owner,
            Err(error) => return self.task_owner.say(Some(error.to_string())),
        };
        let me = self.peers.me();
        let mine = self.task_owner.epoch();
        if owner.manager == Some(me) && mine == Some(owner.epoch) {
            return;
        }
        if mine.is_some() {
            tracing::warn!("another manager has the tasks now");
            self.lose_tasks();
        }
        match owner.manager {
            Some(other) if other != me && !self.peers.is_dead(other) => {
                *self.task_owner.whose() = Whose::Anothers(other);
            }
            _ => {
                let taken = self.take_tasks(common, owner.contents).await;
                self.task_owner.say(taken.err().map(|failure| failure.message));
            }
        }
    }

    async fn take_tasks(self: &Arc<Self>, common: &Common, known: Option<[u8; 16]>) -> Result<(), Failure> {
        let objects = Objects::open(&common.contents.place)?;
        let found = objects.get(CONTENTS_NAME).await?;
        let found: Option<[u8; 16]> = found.and_then(|bytes| bytes[..].try_into().ok());
        if known.is_some() && known != found {
            let text = format!(
                "what is long of the tasks is not at {}; give `--contents` the place that all managers share",
                common.contents.place
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let Some(store) = common.shared.take(known, SILENT).await? else {
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
                self.accounts(),
            )
            .await
        };
        match started.await {
            Ok(tasks) => {
                tracing::info!(epoch = store.epoch(), "this manager has the tasks");
                let shared = Some(store);
                *self.task_owner.whose() = Whose::Mine(Mine { tasks, shared });
                Ok(())
            }
            Err(failure) => {
                // Another manager may have more luck.
                store.release().wait().await?;
                Err(failure)
            }
        }
    }

    /// What the tasks ask about tenants.
    pub fn accounts(self: &Arc<Self>) -> Box<dyn Tenants> {
        Box::new(Accounts(Arc::downgrade(self)))
    }

    /// Nobody here has anything to do with the tasks any more.
    fn lose_tasks(&self) -> Option<Arc<PostgresTasks>> {
        match std::mem::take(&mut *self.task_owner.whose()) {
            Whose::Mine(Mine { tasks, shared }) => {
                tasks.close();
                shared
            }
            _ => None,
        }
    }

    /// Lets another manager have the tasks at once, once all that was said of them is written.
    pub async fn give_up_tasks(&self) {
        let tasks = self.task_owner.mine();
        let shared = self.lose_tasks();
        // Dispatchers are cut off, so that this is the last of it.
        if let Some(tasks) = tasks
            && let Err(error) = tasks.write_output().await
        {
            tracing::warn!(%error, "what tasks printed last is not kept");
        }
        if let Some(shared) = shared
            && let Err(error) = shared.release().wait().await
        {
            tracing::warn!(%error, "the tasks go to another manager when this one has been silent for a while");
        }
    }
}

/// Charges what tasks cost, until this manager stops. What it has not charged by then is told anew by whoever has the tasks next.
pub async fn keep_charging(control: Arc<Control>) {
    let mut stopping = control.stopping.subscribe();
    let owner = &control.task_owner;
    let mut failing = false;
    loop {
        tokio::select! {
            () = owner.charged.notified() => {}
            () = stopped(&mut stopping) => return,
        }
        let totals = std::mem::take(&mut *owner.charges.lock().unwrap_or_else(PoisonError::into_inner));
        match control.store.charge(Vec::from_iter(totals.clone())).wait().await {
            Ok(charged) => {
                failing = false;
                charged.into_iter().for_each(|tenant| control.on_tenant(tenant));
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "what tasks cost cannot be charged; it is when the store can write");
                }
                owner.charge(Vec::from_iter(totals));
            }
        }
        // Tasks end by the thousand; their cost is known soon enough.
        tokio::time::sleep(CHARGED_EVERY).await;
    }
}

/// Looks who has the tasks, until this manager stops.
pub async fn keep(control: Arc<Control>, common: Common) {
    let mut stopping = control.stopping.subscribe();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => control.look_after_tasks(&common).await,
            () = stopped(&mut stopping) => return,
        }
    }
}
