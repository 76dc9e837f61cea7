//! Waiting for requests, testing, starting, cancelling and freeing them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{Active, Generalized, REQUESTS, RequestObject, make, orphans, poll_orphans};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Request, UNDEFINED};
use crate::pointer::{Buffer, In, Out};
use crate::realm::{self, Control, Wheel};
use crate::status::{Completion, Status, StatusOut, no_request};

type Objects = Vec<Option<Arc<RequestObject>>>;

fn object(handle: Request) -> Result<Option<Arc<RequestObject>>> {
    match handle {
        Request::NULL => Ok(None),
        other => REQUESTS.get(other.0).map(Some).ok_or_else(no_request),
    }
}

fn objects(handles: &[Request]) -> Result<Objects> {
    handles.iter().map(|handle| object(*handle)).collect()
}

/// Drives the engine until `done` is true of the requests, or once if this is a test.
fn drive(all: &Objects, waits: bool, what: &'static str, done: impl Fn(&[bool]) -> bool) -> Result<Vec<bool>> {
    let awaited = || all.iter().flatten().find(|request| request.is_active());
    let first = if realm::is_any() { awaited() } else { None };
    let control = first.map_or_else(Control::world, |request| request.control())?;
    let mut wheel = Wheel::new(&control);
    let mut ended = vec![false; all.len()];
    if !waits {
        wheel.progress();
    }
    wheel.each(|turn| {
        poll_orphans(turn);
    });
    loop {
        wheel.each(|turn| {
            for (ended, request) in ended.iter_mut().zip(all) {
                if !*ended {
                    *ended = request.as_ref().is_none_or(|request| request.poll(turn));
                }
            }
        });
        if !waits || done(&ended) {
            return Ok(ended);
        }
        wheel.step(what)?;
    }
}

/// Takes the completion of a request that has ended; the request goes, unless it is persistent.
fn collect(handle: &mut Request, request: &Option<Arc<RequestObject>>) -> Completion {
    let Some(request) = request else {
        return Completion::empty();
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

/// Whether it is a request that may be waited for: not null, and under way.
fn counts(request: &Option<Arc<RequestObject>>) -> bool {
    request.as_ref().is_some_and(|request| request.is_active())
}

/// Collects several completions into statuses.
fn collect_all(
    handles: &mut [Request],
    all: &Objects,
    which: impl Iterator<Item = usize>,
    statuses: StatusOut,
) -> Result<()> {
    let mut failed = false;
    for (place, at) in which.enumerate() {
        let completion = collect(&mut handles[at], &all[at]);
        let code = completion.error.as_ref().map_or(0, Error::to_code);
        failed |= code != 0;
        statuses.set_with_error(place, &completion, code);
    }
    match failed {
        true => Err(Error::new(class::IN_STATUS, "")),
        false => Ok(()),
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
    let active: Vec<bool> = all.iter().map(counts).collect();
    if !active.contains(&true) {
        index.set(UNDEFINED);
        if let Some(flag) = flag {
            flag.set(1);
        }
        status.set(&Completion::empty());
        return Ok(());
    }
    let found = |ended: &[bool]| active.iter().zip(ended).position(|(active, ended)| *active && *ended);
    let ended = drive(&all, flag.is_none(), "MPI_Waitany", |ended| found(ended).is_some())?;
    let at = found(&ended);
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
    let active: Vec<bool> = all.iter().map(counts).collect();
    if !active.contains(&true) {
        found.set(UNDEFINED);
        return Ok(());
    }
    let any = |ended: &[bool]| active.iter().zip(ended).any(|(active, ended)| *active && *ended);
    let ended = drive(&all, waits, "MPI_Waitsome", any)?;
    let which: Vec<usize> = (0..all.len()).filter(|at| active[*at] && ended[*at]).collect();
    found.set(which.len() as c_int);
    for (place, at) in which.iter().enumerate() {
        indices.set_at(place, *at as c_int);
    }
    collect_all(handles, &all, which.into_iter(), statuses)
}

/// How a request has ended, which stays as it is.
fn completion_of(request: &Option<Arc<RequestObject>>) -> Completion {
    let active = request.as_ref().map(|request| request.active());
    let completion = active
        .as_ref()
        .and_then(|active| active.as_ref())
        .map(Active::completion);
    completion.unwrap_or_else(Completion::empty)
}

/// Which requests are under way, and which of those have ended.
fn look(all: &Objects, what: &'static str) -> Result<(Vec<bool>, Vec<usize>)> {
    let active: Vec<bool> = all.iter().map(counts).collect();
    let ended = drive(all, false, what, |_| true)?;
    let which = (0..all.len()).filter(|at| active[*at] && ended[*at]).collect();
    Ok((active, which))
}

fn start(handle: Request) -> Result<()> {
    let request = object(handle)?.ok_or_else(no_request)?;
    let start = request
        .start
        .as_ref()
        .ok_or_else(|| Error::new(class::REQUEST, "the request is not persistent"))?;
    if request.is_active() {
        return Err(Error::new(class::REQUEST, "the operation is under way already"));
    }
    let active = start()?;
    *request.active() = Some(active);
    Ok(())
}

mpi! {
    fn MPI_Wait (handle: Out<Request>, status: StatusOut) [Comm::WORLD] {
        let handle = &mut handle.slice(1)?[0];
        let all = vec![object(*handle)?];
        drive(&all, true, "MPI_Wait", |ended| ended[0])?;
        let completion = collect(handle, &all[0]);
        status.set(&completion);
        completion.check().map(|_| ())
    }

    fn MPI_Test (handle: Out<Request>, flag: Out<c_int>, status: StatusOut) [Comm::WORLD] {
        let handle = &mut handle.slice(1)?[0];
        let all = vec![object(*handle)?];
        let ended = drive(&all, false, "MPI_Test", |_| true)?[0];
        flag.set(ended.into());
        if !ended {
            return Ok(());
        }
        let completion = collect(handle, &all[0]);
        status.set(&completion);
        completion.check().map(|_| ())
    }

    fn MPI_Waitall (count: c_int, handles: Out<Request>, statuses: StatusOut) [Comm::WORLD] {
        let handles = handles.slice(length(count)?)?;
        let all = objects(handles)?;
        drive(&all, true, "MPI_Waitall", |ended| !ended.contains(&false))?;
        collect_all(handles, &all, 0..all.len(), statuses)
    }

    fn MPI_Testall (count: c_int, handles: Out<Request>, flag: Out<c_int>, statuses: StatusOut) [Comm::WORLD] {
        let handles = handles.slice(length(count)?)?;
        let all = objects(handles)?;
        let ended = !drive(&all, false, "MPI_Testall", |_| true)?.contains(&false);
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
        let all = vec![object(handle)?];
        let ended = drive(&all, false, "MPI_Request_get_status", |_| true)?[0];
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
        let ended = !drive(&all, false, "MPI_Request_get_status_all", |_| true)?.contains(&false);
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
        let request = object(freed)?.ok_or_else(no_request)?;
        REQUESTS.remove(freed.0);
        handle.set(Request::NULL);
        let generalized = match &*request.active() {
            Some(Active::Generalized(request)) => Some((request.free, request.state)),
            _ => None,
        };
        if let Some((free, state)) = generalized {
            free(state.start().cast());
        } else if request.is_active() {
            orphans().push((None, request));
        }
        Ok(())
    }

    fn MPI_Cancel (handle: Out<Request>) [Comm::WORLD] {
        let request = object(handle.get()?)?.ok_or_else(no_request)?;
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
        let request = object(handle)?.ok_or_else(no_request)?;
        match request.active().as_mut() {
            Some(Active::Generalized(generalized)) => {
                generalized.is_complete = true;
                Ok(())
            }
            _ => Err(Error::new(class::REQUEST, "the request is not a generalized one")),
        }
    }
}
