//! Waiting for requests, testing, starting, cancelling and freeing them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Active, Generalized, REQUESTS, RequestObject, SENT, keep_orphan, make, poll_orphans};
use dayfly_comm::detached::Turn;

use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Request, UNDEFINED};
use crate::pointer::{Buffer, In, Out};
use crate::realm::{self, Control, Wheel};
use crate::status::{Completion, Status, StatusOut, no_request};

/// What a handle of a request stands for.
enum Object {
    /// `MPI_REQUEST_NULL`.
    Nothing,
    /// A send that ended at once.
    Sent,
    Request(Arc<RequestObject>),
}

impl Object {
    fn request(&self) -> Option<&Arc<RequestObject>> {
        match self {
            Self::Request(request) => Some(request),
            Self::Nothing | Self::Sent => None,
        }
    }

    /// Whether it may be waited for: not null, and under way or ended.
    fn counts(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Sent => true,
            Self::Request(request) => request.is_active(),
        }
    }

    /// Whether the operation goes on only when it is polled.
    fn needs_polls(&self) -> bool {
        self.request()
            .is_some_and(|request| request.needs_polls.load(Ordering::Relaxed))
    }

    /// Whether it has ended, or there is nothing to wait for.
    fn poll(&self, turn: &mut Turn<'_>) -> bool {
        self.request().is_none_or(|request| request.poll(turn))
    }
}

fn object(handle: Request) -> Result<Object> {
    match handle {
        Request::NULL => Ok(Object::Nothing),
        SENT => Ok(Object::Sent),
        other => REQUESTS.get(other.0).map(Object::Request).ok_or_else(no_request),
    }
}

fn objects(handles: &[Request]) -> Result<Vec<Object>> {
    handles.iter().map(|handle| object(*handle)).collect()
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    All,
    /// One that counts.
    Any,
    /// Nothing: it tests.
    Tested,
}

/// Drives the engine until requests have ended, and marks these.
fn drive(all: &[Object], ended: &mut [bool], until: Until, what: &'static str) -> Result<()> {
    let awaited = || {
        all.iter()
            .filter_map(Object::request)
            .find(|request| request.is_active())
    };
    let first = if realm::is_any() { awaited() } else { None };
    let control = first.map_or_else(Control::world, |request| request.control())?;
    let mut wheel = Wheel::new(&control);
    if until == Until::Tested {
        wheel.progress();
    }
    wheel.each(|turn| {
        poll_orphans(turn);
    });
    // Messages end without being looked at. If all are awaited, one is looked at when those before it have ended.
    let in_turn = until == Until::All && !all.iter().any(Object::needs_polls);
    let mut first = 0;
    loop {
        wheel.each(|turn| {
            for at in first..all.len() {
                ended[at] = ended[at] || all[at].poll(turn);
                if !ended[at] && in_turn {
                    break;
                }
            }
            first += ended[first..].iter().take_while(|ended| **ended).count();
        });
        let is_done = match until {
            Until::All => first == all.len(),
            Until::Any => all.iter().zip(&*ended).any(|(object, ended)| *ended && object.counts()),
            Until::Tested => true,
        };
        if is_done {
            return Ok(());
        }
        wheel.step(what)?;
    }
}

/// Drives the engine once. Returns which requests have ended.
fn test(all: &[Object], what: &'static str) -> Result<Vec<bool>> {
    let mut ended = vec![false; all.len()];
    drive(all, &mut ended, Until::Tested, what)?;
    Ok(ended)
}

/// Takes the completion of a request that has ended; the request goes, unless it is persistent.
fn collect(handle: &mut Request, object: &Object) -> Completion {
    let request = match object {
        Object::Request(request) => request,
        Object::Nothing | Object::Sent => {
            *handle = Request::NULL;
            return Completion::empty();
        }
    };
    let active = request.active().take();
    let mut completion = active.as_ref().map_or_else(Completion::empty, Active::completion);
    if let Some(Active::Generalized(generalized)) = &active {
        let code = (generalized.free)(generalized.state.start().cast());
        if code != 0 && completion.error.is_none() {
            completion.error = Some(Error::new(code, ""));
        }
    }
    if request.start.is_none() {
        REQUESTS.remove(handle.0);
        *handle = Request::NULL;
    }
    completion
}

fn length(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::new(class::COUNT, format!("the number of requests is {count}")))
}

/// Collects several completions into statuses.
fn collect_all(
    handles: &mut [Request],
    all: &[Object],
    which: impl Iterator<Item = usize>,
    statuses: StatusOut,
) -> Result<()> {
    // The error handler of the first that failed gets the error.
    let mut failed = None;
    for (place, at) in which.enumerate() {
        let completion = collect(&mut handles[at], &all[at]);
        let code = completion.error.as_ref().map_or(0, Error::to_code);
        if let Some(error) = &completion.error {
            failed = failed.or(Some(error.place));
        }
        statuses.set_with_error(place, &completion, code);
    }
    match failed {
        Some(place) => Err(Error {
            place,
            ..Error::new(class::IN_STATUS, "")
        }),
        None => Ok(()),
    }
}

fn any(
    count: c_int,
    handles: Out<Request>,
    index: Out<c_int>,
    flag: Option<Out<c_int>>,
    status: StatusOut,
) -> Result<()> {
    let handles = handles.slice(length(count)?)?;
    let all = objects(handles)?;
    let active: Vec<bool> = all.iter().map(Object::counts).collect();
    if !active.contains(&true) {
        index.set(UNDEFINED);
        if let Some(flag) = flag {
            flag.set(1);
        }
        status.set(&Completion::empty());
        return Ok(());
    }
    let until = if flag.is_none() { Until::Any } else { Until::Tested };
    let mut ended = vec![false; all.len()];
    drive(&all, &mut ended, until, "MPI_Waitany")?;
    let at = active.iter().zip(&ended).position(|(active, ended)| *active && *ended);
    if let Some(flag) = flag {
        flag.set(at.is_some().into());
    }
    index.set(at.map_or(UNDEFINED, |at| at as c_int));
    if let Some(at) = at {
        let completion = collect(&mut handles[at], &all[at]);
        status.set(&completion);
        completion.check()?;
    }
    Ok(())
}

fn some(
    waits: bool,
    count: c_int,
    handles: Out<Request>,
    found: Out<c_int>,
    indices: Out<c_int>,
    statuses: StatusOut,
) -> Result<()> {
    let handles = handles.slice(length(count)?)?;
    let all = objects(handles)?;
    let active: Vec<bool> = all.iter().map(Object::counts).collect();
    if !active.contains(&true) {
        found.set(UNDEFINED);
        return Ok(());
    }
    let until = if waits { Until::Any } else { Until::Tested };
    let mut ended = vec![false; all.len()];
    drive(&all, &mut ended, until, "MPI_Waitsome")?;
    let which: Vec<usize> = (0..all.len()).filter(|at| active[*at] && ended[*at]).collect();
    found.set(which.len() as c_int);
    for (place, at) in which.iter().enumerate() {
        indices.set_at(place, *at as c_int);
    }
    collect_all(handles, &all, which.into_iter(), statuses)
}

/// How a request has ended, which stays as it is.
fn completion_of(object: &Object) -> Completion {
    let active = object.request().map(|request| request.active());
    let completion = active
        .as_ref()
        .and_then(|active| active.as_ref())
        .map(Active::completion);
    completion.unwrap_or_else(Completion::empty)
}

/// Which requests are under way, and which of those have ended.
fn look(all: &[Object], what: &'static str) -> Result<(Vec<bool>, Vec<usize>)> {
    let active: Vec<bool> = all.iter().map(Object::counts).collect();
    let ended = test(all, what)?;
    let which = (0..all.len()).filter(|at| active[*at] && ended[*at]).collect();
    Ok((active, which))
}

fn start(handle: Request) -> Result<()> {
    let object = object(handle)?;
    let request = object.request().ok_or_else(no_request)?;
    let start = request
        .start
        .as_ref()
        .ok_or_else(|| Error::new(class::REQUEST, "the request is not persistent"))?;
    if request.is_active() {
        return Err(Error::new(class::REQUEST, "the operation is under way already"));
    }
    let active = start()?;
    request.needs_polls.store(active.needs_polls(), Ordering::Relaxed);
    *request.active() = Some(active);
    Ok(())
}

mpi! {
    fn MPI_Wait (handle: Out<Request>, status: StatusOut) [Comm::WORLD] {
        let handle = &mut handle.slice(1)?[0];
        let all = [object(*handle)?];
        drive(&all, &mut [false], Until::All, "MPI_Wait")?;
        let completion = collect(handle, &all[0]);
        status.set(&completion);
        completion.check().map(|_| ())
    }

    fn MPI_Test (handle: Out<Request>, flag: Out<c_int>, status: StatusOut) [Comm::WORLD] {
        let handle = &mut handle.slice(1)?[0];
        let (all, mut ended) = ([object(*handle)?], [false]);
        drive(&all, &mut ended, Until::Tested, "MPI_Test")?;
        flag.set(ended[0].into());
        if !ended[0] {
            return Ok(());
        }
        let completion = collect(handle, &all[0]);
        status.set(&completion);
        completion.check().map(|_| ())
    }

    fn MPI_Waitall (count: c_int, handles: Out<Request>, statuses: StatusOut) [Comm::WORLD] {
        let handles = handles.slice(length(count)?)?;
        let all = objects(handles)?;
        drive(&all, &mut vec![false; all.len()], Until::All, "MPI_Waitall")?;
        collect_all(handles, &all, 0..all.len(), statuses)
    }

    fn MPI_Testall (count: c_int, handles: Out<Request>, flag: Out<c_int>, statuses: StatusOut) [Comm::WORLD] {
        let handles = handles.slice(length(count)?)?;
        let all = objects(handles)?;
        let ended = !test(&all, "MPI_Testall")?.contains(&false);
        flag.set(ended.into());
        match ended {
            true => collect_all(handles, &all, 0..all.len(), statuses),
            false => Ok(()),
        }
    }

    fn MPI_Waitany (count: c_int, handles: Out<Request>, index: Out<c_int>, status: StatusOut) [Comm::WORLD] {
        any(count, handles, index, None, status)
    }

    fn MPI_Testany (
        count: c_int, handles: Out<Request>, index: Out<c_int>, flag: Out<c_int>, status: StatusOut
    ) [Comm::WORLD] {
        any(count, handles, index, Some(flag), status)
    }

    fn MPI_Waitsome (
        count: c_int, handles: Out<Request>, found: Out<c_int>, indices: Out<c_int>, statuses: StatusOut
    ) [Comm::WORLD] {
        some(true, count, handles, found, indices, statuses)
    }

    fn MPI_Testsome (
        count: c_int, handles: Out<Request>, found: Out<c_int>, indices: Out<c_int>, statuses: StatusOut
    ) [Comm::WORLD] {
        some(false, count, handles, found, indices, statuses)
    }

    fn MPI_Request_get_status (handle: Request, flag: Out<c_int>, status: StatusOut) [Comm::WORLD] {
        let all = [object(handle)?];
        let ended = test(&all, "MPI_Request_get_status")?[0];
        flag.set(ended.into());
        if ended {
            status.set(&completion_of(&all[0]));
        }
        Ok(())
    }

    fn MPI_Request_get_status_all (
        count: c_int, handles: In<Request>, flag: Out<c_int>, statuses: StatusOut
    ) [Comm::WORLD] {
        let all = objects(handles.slice(length(count)?)?)?;
        let ended = !test(&all, "MPI_Request_get_status_all")?.contains(&false);
        flag.check()?.set(ended.into());
        if ended {
            for (at, request) in all.iter().enumerate() {
                statuses.set_at(at, &completion_of(request));
            }
        }
        Ok(())
    }

    fn MPI_Request_get_status_any (
        count: c_int, handles: In<Request>, index: Out<c_int>, flag: Out<c_int>, status: StatusOut
    ) [Comm::WORLD] {
        let all = objects(handles.slice(length(count)?)?)?;
        let (active, ended) = look(&all, "MPI_Request_get_status_any")?;
        // Without any that is under way, there is nothing to wait for.
        flag.check()?.set((!active.contains(&true) || !ended.is_empty()).into());
        index.set(ended.first().map_or(UNDEFINED, |at| *at as c_int));
        if let Some(at) = ended.first() {
            status.set(&completion_of(&all[*at]));
        } else if !active.contains(&true) {
            status.set_with_error(0, &Completion::empty(), 0);
        }
        Ok(())
    }

    fn MPI_Request_get_status_some (
        count: c_int, handles: In<Request>, found: Out<c_int>, indices: Out<c_int>, statuses: StatusOut
    ) [Comm::WORLD] {
        let all = objects(handles.slice(length(count)?)?)?;
        let (active, ended) = look(&all, "MPI_Request_get_status_some")?;
        let number = if active.contains(&true) { ended.len() as c_int } else { UNDEFINED };
        found.check()?.set(number);
        for (place, at) in ended.iter().enumerate() {
            indices.set_at(place, *at as c_int);
            statuses.set_at(place, &completion_of(&all[*at]));
        }
        Ok(())
    }

    fn MPI_Request_free (handle: Out<Request>) [Comm::WORLD] {
        let freed = handle.get()?;
        let request = match object(freed)? {
            Object::Nothing => return Err(no_request()),
            Object::Sent => {
                handle.set(Request::NULL);
                return Ok(());
            }
            Object::Request(request) => request,
        };
        REQUESTS.remove(freed.0);
        handle.set(Request::NULL);
        let generalized = match &*request.active() {
            Some(Active::Generalized(request)) => Some((request.free, request.state)),
            _ => None,
        };
        if let Some((free, state)) = generalized {
            free(state.start().cast());
        } else if request.is_active() {
            keep_orphan((None, request));
        }
        Ok(())
    }

    fn MPI_Cancel (handle: Out<Request>) [Comm::WORLD] {
        let object = object(handle.get()?)?;
        let request = match &object {
            Object::Nothing => return Err(no_request()),
            Object::Sent => return Ok(()),
            Object::Request(request) => request,
        };
        let control = request.control()?;
        let mut turn = control.turn();
        turn.progress();
        let ended = request.poll(&mut turn);
        let mut active = request.active();
        let call = match active.as_mut() {
            Some(Active::Generalized(generalized)) => Some((generalized.cancel, generalized.state)),
            Some(Active::Message(message)) if !ended => {
                let has_ended = turn.cancel(&message.operation);
                *active = match active.take() {
                    _ if has_ended => Some(Active::Over(Completion {
                        cancelled: true,
                        ..Completion::empty()
                    })),
                    Some(Active::Message(message)) if !message.is_receive => Some(Active::Cancelling(message)),
                    other => other,
                };
                None
            }
            _ => None,
        };
        drop(active);
        drop(turn);
        match call.map(|(cancel, state)| cancel(state.start().cast(), ended.into())) {
            None | Some(0) => Ok(()),
            Some(code) => Err(Error::new(code, "")),
        }
    }

    fn MPI_Start (handle: Out<Request>) [Comm::WORLD] {
        start(handle.get()?)
    }

    fn MPI_Startall (count: c_int, handles: Out<Request>) [Comm::WORLD] {
        handles.slice(length(count)?)?.iter().try_for_each(|handle| start(*handle))
    }

    fn MPI_Grequest_start (
        query: Option<extern "C" fn(*mut c_void, *mut Status) -> c_int>,
        free: Option<extern "C" fn(*mut c_void) -> c_int>,
        cancel: Option<extern "C" fn(*mut c_void, c_int) -> c_int>,
        state: Buffer, handle: Out<Request>
    ) [()] {
        let (Some(query), Some(free), Some(cancel)) = (query, free, cancel) else {
            return Err(Error::new(class::ARG, "a function of a generalized request is NULL"));
        };
        handle.check()?.set(make(Active::Generalized(Generalized {
            query,
            free,
            cancel,
            state,
            is_complete: false,
        })));
        Ok(())
    }

    fn MPI_Grequest_complete (handle: Request) [()] {
        let object = object(handle)?;
        match object.request().ok_or_else(no_request)?.active().as_mut() {
            Some(Active::Generalized(generalized)) => {
                generalized.is_complete = true;
                Ok(())
            }
            _ => Err(Error::new(class::REQUEST, "the request is not a generalized one")),
        }
    }
}
