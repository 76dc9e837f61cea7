//! Delegated parts of a lease: who may use which workers.

use dayfly_lease::delegation::Part;

use super::*;

impl Run {
    /// The workers that the holder of a token may use now.
    pub fn part_of(&self, holder: &PublicKey) -> Result<Part, Failure> {
        Ok(self.inner().delegations.part_of(holder, clock::now_ms())?)
    }

    /// Delegates a part of `by`'s workers to another key.
    pub fn delegate(
        &self,
        by: &PublicKey,
        to: PublicKey,
        first: u16,
        workers: u16,
        duration_ms: u64,
    ) -> Result<Part, Failure> {
        let mut inner = self.inner();
        let now_ms = clock::now_ms();
        inner.life.check(now_ms)?;
        let part = inner
            .delegations
            .delegate(by, to, first, workers, duration_ms, now_ms)?;
        drop(inner);
        // The supervisor has to know its expiry.
        self.wake.notify_one();
        Ok(part)
    }

    /// Takes back what `by` delegated to `from`. Its channels end; a running call has a grace as if its client had
    /// gone.
    pub fn take_back(&self, by: &PublicKey, from: &PublicKey) -> Result<(), Failure> {
        let mut inner = self.inner();
        let gone = inner.delegations.take_back(by, from)?;
        end_channels_of(&mut inner, &gone);
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes back expired delegations.
    pub(super) fn expire_delegations(inner: &mut Inner, now_ms: u64) {
        let gone = inner.delegations.expire(now_ms);
        if !gone.is_empty() {
            end_channels_of(inner, &gone);
        }
    }

    /// Requests the node's socket in the sandbox. Returns the directory to open it in now; `None` if it is open, or
    /// there is no sandbox.
    pub fn wants_door(&self) -> Option<PathBuf> {
        let mut inner = self.inner();
        inner.shows_node = true;
        if inner.door.is_some() {
            return None;
        }
        inner.code_dir.clone()
    }

    /// Whether a new sandbox needs the node's socket.
    pub fn shows_node(&self) -> bool {
        self.inner().shows_node
    }

    /// Keeps a socket open while the sandbox with this directory exists.
    pub fn keep_door(&self, dir: &Path, door: Door) {
        let mut inner = self.inner();
        if inner.code_dir.as_deref() == Some(dir) {
            inner.door = Some(door);
        }
    }
}

fn end_channels_of(inner: &mut Inner, holders: &[PublicKey]) {
    let channels = inner.slots.iter_mut().filter_map(|slot| slot.channel.as_mut());
    for channel in channels.filter(|channel| channel.gone.is_none() && holders.contains(&channel.holder)) {
        channels::leave(channel, End::DelegationRevoked);
    }
}
