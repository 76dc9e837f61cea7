//! Synchronisation of windows.

use std::ffi::c_int;

use super::wire::{Kind, Request};
use super::{Waiting, WindowObject, get};
use crate::collective::Mode;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{Group, PROC_NULL, Win};
use crate::interface::window::{LOCK_EXCLUSIVE, LOCK_SHARED};
use crate::pointer::Out;

impl WindowObject {
    /// Waits until accesses to one rank, or to all, have ended.
    pub(super) fn flush(&self, target: Option<usize>) -> Result<()> {
        if let Some(shared) = &self.shared {
            return self.synchronise(shared);
        }
        self.wait("a window's accesses", |state| {
            let concerns = |waiting: &Waiting| target.is_none_or(|target| waiting.target == target);
            !state.waiting.values().any(concerns)
        })
    }

    /// Sends requests without data to some ranks, and waits for the responses if there are any.
    fn ask(&self, targets: &[usize], kind: Kind, has_response: bool) -> Result<()> {
        let mut ids = Vec::new();
        {
            let control = self.comm.control()?;
            let mut turn = control.turn();
            let mut state = self.state();
            for target in targets {
                let id = state.id();
                if has_response {
                    state.waiting.insert(
                        id,
                        Waiting {
                            target: *target,
                            into: None,
                        },
                    );
                    ids.push(id);
                }
                self.request(&mut state, &mut turn, *target, &Request::new(kind, id))?;
            }
        }
        match has_response {
            true => self.wait("a window's lock", |state| {
                !ids.iter().any(|id| state.waiting.contains_key(id))
            }),
            false => Ok(()),
        }
    }

    /// Locks the memory of some ranks, none of which this rank has locked.
    fn lock(&self, targets: &[usize], kind: Kind) -> Result<()> {
        if targets.iter().any(|target| self.state().locked.contains(target)) {
            return Err(Error::new(class::RMA_SYNC, "this rank has locked that memory already"));
        }
        match &self.shared {
            Some(shared) => {
                for (at, target) in targets.iter().enumerate() {
                    let locked = self.lock_part(shared, *target, kind == Kind::LockExclusive);
                    if locked.is_err() {
                        targets[..at]
                            .iter()
                            .for_each(|target| self.unlock_part(shared, *target));
                        return locked;
                    }
                }
            }
            None => self.ask(targets, kind, true)?,
        }
        self.state().locked.extend(targets);
        Ok(())
    }

    /// Ends accesses to one rank, or to all, and unlocks the memory of some ranks, even after an access has failed.
    fn unlock(&self, targets: &[usize], accessed: Option<usize>) -> Result<()> {
        if !targets.iter().all(|target| self.state().locked.remove(target)) {
            return Err(no_epoch());
        }
        let flushed = self.flush(accessed);
        match &self.shared {
            Some(shared) => targets.iter().for_each(|target| self.unlock_part(shared, *target)),
            None => self.ask(targets, Kind::Unlock, true)?,
        }
        flushed
    }

    /// A barrier during which the window is served.
    pub(super) fn barrier(&self) -> Result<()> {
        let active = crate::collective::barrier(Mode::Waits, self.comm.clone())?;
        crate::request::finish(active, "MPI_Win_fence").map(|_| ())
    }

    fn targets(&self, rank: c_int) -> Result<Option<usize>> {
        match rank {
            PROC_NULL => Ok(None),
            rank if (0..self.comm.size() as c_int).contains(&rank) => Ok(Some(rank as usize)),
            rank => Err(Error::new(class::RANK, format!("the window has no rank {rank}"))),
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.comm.size() as usize).collect()
    }

    /// The ranks of a group, as ranks of the window.
    fn ranks_of(&self, group: Group) -> Result<Vec<usize>> {
        let members = self.comm.processes()?;
        let find = |world: &u32| {
            let found = members.iter().position(|member| member == world);
            found.ok_or_else(|| Error::new(class::GROUP, "the group has ranks that the window has not"))
        };
        group::get(group)?.iter().map(find).collect()
    }
}

fn no_epoch() -> Error {
    Error::new(class::RMA_SYNC, "no such epoch of the window has begun")
}

mpi! {
    fn MPI_Win_fence (_assert: c_int, win: Win) [win] {
        let window = get(win)?;
        // The other ranks are in the barrier, whatever this rank's accesses gave.
        let flushed = window.flush(None);
        window.barrier()?;
        flushed
    }

    fn MPI_Win_lock (kind: c_int, rank: c_int, _assert: c_int, win: Win) [win] {
        let window = get(win)?;
        let kind = match kind {
            LOCK_EXCLUSIVE => Kind::LockExclusive,
            LOCK_SHARED => Kind::Lock,
            _ => return Err(Error::new(class::LOCKTYPE, "the lock is neither shared nor exclusive")),
        };
        match window.targets(rank)? {
            Some(target) => window.lock(&[target], kind),
            None => Ok(()),
        }
    }

    fn MPI_Win_unlock (rank: c_int, win: Win) [win] {
        let window = get(win)?;
        let Some(target) = window.targets(rank)? else {
            return Ok(());
        };
        window.unlock(&[target], Some(target))
    }

    fn MPI_Win_lock_all (_assert: c_int, win: Win) [win] {
        let window = get(win)?;
        window.lock(&window.all(), Kind::Lock)
    }

    fn MPI_Win_unlock_all (win: Win) [win] {
        let window = get(win)?;
        window.unlock(&window.all(), None)
    }

    fn MPI_Win_flush (rank: c_int, win: Win) [win] {
        let window = get(win)?;
        match window.targets(rank)? {
            Some(target) => window.flush(Some(target)),
            None => Ok(()),
        }
    }

    fn MPI_Win_flush_all (win: Win) [win] {
        get(win)?.flush(None)
    }

    fn MPI_Win_flush_local (rank: c_int, win: Win) [win] {
        let window = get(win)?;
        match window.targets(rank)? {
            Some(target) => window.flush(Some(target)),
            None => Ok(()),
        }
    }

    fn MPI_Win_flush_local_all (win: Win) [win] {
        get(win)?.flush(None)
    }

    fn MPI_Win_sync (win: Win) [win] {
        get(win)?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn MPI_Win_post (group: Group, _assert: c_int, win: Win) [win] {
        let window = get(win)?;
        let ranks = window.ranks_of(group)?;
        window.state().exposed_to = Some(ranks.clone());
        window.ask(&ranks, Kind::Post, false)
    }

    fn MPI_Win_start (group: Group, _assert: c_int, win: Win) [win] {
        let window = get(win)?;
        let ranks = window.ranks_of(group)?;
        window.wait("MPI_Win_start", |state| {
            ranks.iter().all(|rank| state.posts.get(rank).is_some_and(|count| *count > 0))
        })?;
        let mut state = window.state();
        for rank in &ranks {
            if let Some(count) = state.posts.get_mut(rank) {
                *count -= 1;
            }
        }
        state.accesses = Some(ranks);
        Ok(())
    }

    fn MPI_Win_complete (win: Win) [win] {
        let window = get(win)?;
        let ranks = window.state().accesses.take().ok_or_else(no_epoch)?;
        let flushed = window.flush(None);
        window.ask(&ranks, Kind::Complete, false)?;
        flushed
    }

    fn MPI_Win_wait (win: Win) [win] {
        let window = get(win)?;
        window.wait("MPI_Win_wait", |state| !state.is_exposed())?;
        match window.state().end_exposure() {
            true => Ok(()),
            false => Err(no_epoch()),
        }
    }

    fn MPI_Win_test (win: Win, flag: Out<c_int>) [win] {
        let window = get(win)?;
        let control = window.comm.control()?;
        let mut turn = control.turn();
        turn.progress();
        super::serve(&mut turn);
        let mut state = window.state();
        // A lost rank never ends its accesses.
        if let Some(error) = state.failures.remove(&super::WINDOW) {
            return Err(error);
        }
        let ended = !state.is_exposed();
        flag.check()?.set(ended.into());
        if ended && !state.end_exposure() {
            return Err(no_epoch());
        }
        Ok(())
    }
}

impl super::State {
    /// Whether a rank has not ended its accesses in the exposure.
    fn is_exposed(&self) -> bool {
        let ranks = self.exposed_to.iter().flatten();
        let ended = |rank: &usize| self.completes.get(rank).is_some_and(|count| *count > 0);
        ranks.into_iter().any(|rank| !ended(rank))
    }

    /// Ends the exposure. Returns whether there was one.
    fn end_exposure(&mut self) -> bool {
        let Some(ranks) = self.exposed_to.take() else {
            return false;
        };
        for rank in ranks {
            if let Some(count) = self.completes.get_mut(&rank) {
                *count -= 1;
            }
        }
        true
    }
}
