//! Parts of a lease in other hands: who may use which workers, and what is taken back.

use dayfly_lease::delegation::Part;

use super::*;

impl Run {
    /// What the holder of a token may use of this lease now.
    pub fn part_of(&self, holder: &PublicKey) -> Result<Part, Failure> {
        Ok(self.inner().delegations.part_of(holder, clock::now_ms())?)
    }

    /// Gives a part of what `by` has to another key.
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
        // The supervisor is to know when its time is over.
        self.wake.notify_one();
        Ok(part)
    }

    /// Takes back what `by` gave to `from`: its channels end, and a call that runs has a grace as if its client had gone.
    pub fn take_back(&self, by: &PublicKey, from: &PublicKey) -> Result<(), Failure> {
        let mut inner = self.inner();
        let gone = inner.delegations.take_back(by, from)?;
        end_channels_of(&mut inner, &gone);
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes back what was delegated for a time that is over.
    pub(super) fn expire_delegations(inner: &mut Inner, now_ms: u64) {
        let gone = inner.delegations.expire(now_ms);
        if !gone.is_empty() {
            end_channels_of(inner, &gone);
        }
    }

    /// Makes a door to the node in the sandbox, as soon as there is one. True when it is to be made now, in this directory.
    pub fn wants_door(&self) -> Option<PathBuf> {
        let mut inner = self.inner();
        inner.shows_node = true;
        if inner.door.is_some() {
            return None;
        }
        inner.code_dir.clone()
    }

    /// Whether its sandbox, being made anew, is to have a door again.
    pub fn shows_node(&self) -> bool {
        self.inner().shows_node
    }

    /// Keeps a door open for as long as the sandbox in whose directory it is.
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
        channels::leave(channel, End::TakenBack);
    }
}
