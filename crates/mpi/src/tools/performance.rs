//! Performance variables: what a group's engine counts.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::Counters;

use super::{Result, UNSIGNED_LONG, entry, place, tool, with_engine, write_text};
use crate::error::class;
use crate::handle::Datatype;
use crate::interface::tool::{BIND_NO_OBJECT, CLASS_COUNTER, CLASS_LEVEL, TUNER_BASIC, USER_BASIC, all_handles};
use crate::pointer::{Buffer, Out, Text, TextOut};

/// A number. All are read at any time: none is started or stopped.
pub struct Performance {
    pub name: &'static str,
    text: &'static str,
    class: c_int,
    verbosity: c_int,
    read: fn(&Counters) -> u64,
}

impl Performance {
    const fn counter(name: &'static str, text: &'static str, read: fn(&Counters) -> u64) -> Self {
        Self {
            name,
            text,
            class: CLASS_COUNTER,
            verbosity: USER_BASIC,
            read,
        }
    }

    const fn level(name: &'static str, text: &'static str, read: fn(&Counters) -> u64) -> Self {
        Self {
            name,
            text,
            class: CLASS_LEVEL,
            verbosity: TUNER_BASIC,
            read,
        }
    }
}

pub const PERFORMANCES: [Performance; 7] = [
    Performance::counter(
        "dayfly_sends",
        "Messages whose send has begun, those of collectives included.",
        |all| all.sends,
    ),
    Performance::counter(
        "dayfly_completions",
        "Operations that did not end at once and have ended since.",
        |all| all.completions,
    ),
    Performance::counter("dayfly_lost_ranks", "Ranks of the group that are lost.", |all| {
        all.lost_ranks
    }),
    Performance::level(
        "dayfly_unexpected_messages",
        "Messages that wait for a receive.",
        |all| all.unexpected_messages,
    ),
    Performance::level(
        "dayfly_unexpected_memory",
        "Bytes of memory of the messages that wait for a receive.",
        |all| all.unexpected_bytes,
    ),
    Performance::level(
        "dayfly_posted_receives",
        "Receives that no message has matched.",
        |all| all.posted_receives,
    ),
    Performance::level(
        "dayfly_connected_ranks",
        "Ranks to which there is a connection.",
        |all| all.connected_ranks,
    ),
];

/// A handle: its variable, and the number from which it counts.
#[derive(Clone, Copy)]
struct Handle {
    of: &'static Performance,
    base: u64,
}

/// Sessions by number, and their handles by number. Numbers are not used again.
#[derive(Default)]
struct Sessions {
    next: usize,
    all: HashMap<usize, HashMap<usize, Handle>>,
}

static SESSIONS: Mutex<Option<Sessions>> = Mutex::new(None);

fn is_all(handle: usize) -> bool {
    handle == all_handles()
}

fn sessions() -> MutexGuard<'static, Option<Sessions>> {
    SESSIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees all sessions.
pub fn clear() {
    if let Some(sessions) = &mut *sessions() {
        sessions.all.clear();
    }
}

/// Calls a function with the handles of a session.
fn with_session<T>(session: usize, act: impl FnOnce(&mut HashMap<usize, Handle>) -> Result<T>) -> Result<T> {
    let mut sessions = sessions();
    let found = sessions.as_mut().and_then(|sessions| sessions.all.get_mut(&session));
    act(found.ok_or(class::T_INVALID_SESSION)?)
}

fn with_handle<T>(session: usize, handle: usize, act: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
    with_session(session, |handles| {
        act(handles.get_mut(&handle).ok_or(class::T_INVALID_HANDLE)?)
    })
}

fn now(of: &Performance) -> Result<u64> {
    with_engine(|turn| Ok((of.read)(&turn.counters())))
}

impl Handle {
    fn read(&self) -> Result<u64> {
        Ok(now(self.of)?.wrapping_sub(self.base))
    }

    /// Makes a counter count on from a value.
    fn write(&mut self, value: u64) -> Result<()> {
        if self.of.class != CLASS_COUNTER {
            return Err(class::T_PVAR_NO_WRITE);
        }
        self.base = now(self.of)?.wrapping_sub(value);
        Ok(())
    }
}

/// Checks a handle that may stand for all. No variable is started or stopped.
fn start_or_stop(session: usize, handle: usize) -> Result<()> {
    match is_all(handle) {
        true => with_session(session, |_| Ok(())),
        false => with_handle(session, handle, |_| Err(class::T_PVAR_NO_STARTSTOP)),
    }
}

tool! {
    fn MPI_T_pvar_get_num(count: Out<c_int>) {
        place(count)?.set(PERFORMANCES.len() as c_int);
        Ok(())
    }

    fn MPI_T_pvar_get_info(
        index: c_int, name: TextOut, name_room: Out<c_int>, verbosity: Out<c_int>, class: Out<c_int>,
        datatype: Out<Datatype>, values: Out<usize>, text: TextOut, text_room: Out<c_int>, bind: Out<c_int>,
        is_read_only: Out<c_int>, is_continuous: Out<c_int>, is_atomic: Out<c_int>,
    ) {
        let performance = entry(&PERFORMANCES, index)?;
        write_text(performance.name, name, name_room);
        verbosity.set(performance.verbosity);
        class.set(performance.class);
        datatype.set(UNSIGNED_LONG);
        values.set(0);
        write_text(performance.text, text, text_room);
        bind.set(BIND_NO_OBJECT);
        is_read_only.set((performance.class != CLASS_COUNTER).into());
        is_continuous.set(1);
        is_atomic.set(0);
        Ok(())
    }

    fn MPI_T_pvar_get_index(name: Text, class: c_int, index: Out<c_int>) {
        let name = name.optional().ok_or(class::T_INVALID)?;
        let found = PERFORMANCES
            .iter()
            .position(|performance| performance.name == name && performance.class == class);
        place(index)?.set(found.ok_or(class::T_INVALID_NAME)? as c_int);
        Ok(())
    }

    fn MPI_T_pvar_session_create(session: Out<usize>) {
        let session = place(session)?;
        let mut sessions = sessions();
        let sessions = sessions.get_or_insert_default();
        sessions.next += 1;
        sessions.all.insert(sessions.next, HashMap::new());
        session.set(sessions.next);
        Ok(())
    }

    fn MPI_T_pvar_session_free(session: Out<usize>) {
        let freed = place(session)?.get().unwrap_or_default();
        with_session(freed, |_| Ok(()))?;
        if let Some(sessions) = &mut *sessions() {
            sessions.all.remove(&freed);
        }
        session.set(0);
        Ok(())
    }

    fn MPI_T_pvar_handle_alloc(session: usize, index: c_int, _object: Buffer, handle: Out<usize>, count: Out<c_int>) {
        with_session(session, |_| Ok(()))?;
        let of = entry(&PERFORMANCES, index)?;
        let handle = place(handle)?;
        // Outside of a group, a counter begins with the first group.
        let base = if of.class == CLASS_COUNTER { now(of).unwrap_or(0) } else { 0 };
        let mut sessions = sessions();
        let sessions = sessions.get_or_insert_default();
        sessions.next += 1;
        let number = sessions.next;
        let handles = sessions.all.get_mut(&session).ok_or(class::T_INVALID_SESSION)?;
        handles.insert(number, Handle { of, base });
        handle.set(number);
        count.set(1);
        Ok(())
    }

    fn MPI_T_pvar_handle_free(session: usize, handle: Out<usize>) {
        let freed = place(handle)?.get().unwrap_or_default();
        with_session(session, |handles| handles.remove(&freed).ok_or(class::T_INVALID_HANDLE))?;
        handle.set(0);
        Ok(())
    }

    fn MPI_T_pvar_start(session: usize, handle: usize) {
        start_or_stop(session, handle)
    }

    fn MPI_T_pvar_stop(session: usize, handle: usize) {
        start_or_stop(session, handle)
    }

    fn MPI_T_pvar_read(session: usize, handle: usize, value: Out<u64>) {
        let value = place(value)?;
        value.set(with_handle(session, handle, |handle| handle.read())?);
        Ok(())
    }

    fn MPI_T_pvar_write(session: usize, handle: usize, value: Out<u64>) {
        let value = value.get().map_err(|_| class::T_INVALID)?;
        with_handle(session, handle, |handle| handle.write(value))
    }

    fn MPI_T_pvar_reset(session: usize, handle: usize) {
        match is_all(handle) {
            true => with_session(session, |handles| {
                let mut counters = handles.values_mut().filter(|handle| handle.of.class == CLASS_COUNTER);
                counters.try_for_each(|handle| handle.write(0))
            }),
            false => with_handle(session, handle, |handle| handle.write(0)),
        }
    }

    fn MPI_T_pvar_readreset(session: usize, handle: usize, value: Out<u64>) {
        let value = place(value)?;
        value.set(with_handle(session, handle, |handle| {
            let read = handle.read()?;
            handle.write(0)?;
            Ok(read)
        })?);
        Ok(())
    }
}
