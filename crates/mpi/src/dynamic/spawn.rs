//! `MPI_Comm_spawn`: the root starts processes beside itself, and all meet in a new group.
//!
//! The processes are a world of their own. Each of them initialises, which includes meeting the others, and then sends
//! one byte over its socket to the root. When the root has all bytes, it sends each process an invitation to the new
//! group, and shares it with the ranks on its own side. So a program that ends before it initialises is an error on all
//! ranks, and nobody waits for it.

use std::ffi::{OsString, c_int};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_comm::{GROUP_VARIABLE, Invitation};

use super::bridge::{bridge, broadcast, meanwhile, template};
use super::children::{self, Recipe, Started};
use super::name;
use super::parent::{READY, VARIABLE};
use crate::communicator::{CommObject, make};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Info};
use crate::info;
use crate::pointer::{In, Out, Text};

/// Most processes of one call.
const MAX_PROCESSES: u32 = 4096;
/// Variables by which the programs find this library.
const LIBRARY_VARIABLE: &str = "MPI4PY_LIBMPI";
const PATH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// Variables that are for the root alone.
const REMOVED: &[&str] = &["DAYFLY_BENCH_RANK"];

/// A program, and how often it is started.
pub struct Program {
    command: String,
    arguments: Vec<String>,
    count: u32,
    directory: Option<PathBuf>,
    /// Directories in which the command is looked for first.
    path: Vec<PathBuf>,
}

impl Program {
    pub fn new(command: Text, arguments: In<Text>, count: c_int, pairs: Info) -> Result<Self> {
        let mut program = Self {
            command: command.get()?,
            arguments: arguments.until_null(),
            count: u32::try_from(count)
                .ok()
                .filter(|count| *count <= MAX_PROCESSES)
                .ok_or_else(|| {
                    let text = format!("{count} processes cannot be started; between 0 and {MAX_PROCESSES} can");
                    Error::new(class::ARG, text)
                })?,
            directory: None,
            path: Vec::new(),
        };
        let pairs = info::optional(pairs)?.map(|pairs| pairs.pairs().clone());
        for (key, value) in pairs.unwrap_or_default() {
            match key.as_str() {
                "wdir" => program.directory = Some(value.into()),
                "path" => program.path = std::env::split_paths(&value).collect(),
                "host" if !is_own_host(&value) => {
                    let text = format!("processes are started on the root's host only, not on {value}");
                    return Err(Error::new(class::SPAWN, text));
                }
                // The standard leaves it to a library which keys it knows.
                _ => {}
            }
        }
        Ok(program)
    }

    pub fn several(
        number: usize,
        commands: In<Text>,
        arguments: In<In<Text>>,
        counts: In<c_int>,
        pairs: In<Info>,
    ) -> Result<Vec<Self>> {
        let (commands, counts, pairs) = (commands.slice(number)?, counts.slice(number)?, pairs.slice(number)?);
        let arguments = match arguments.address() {
            0 => None,
            _ => Some(arguments.slice(number)?),
        };
        let program = |at: usize| {
            let own = arguments.map_or(In::none(), |arguments| arguments[at]);
            Self::new(commands[at], own, counts[at], pairs[at])
        };
        (0..number).map(program).collect()
    }

    /// The file to start.
    fn file(&self) -> PathBuf {
        let candidates = self.path.iter().map(|directory| directory.join(&self.command));
        let found = candidates.into_iter().find(|candidate| candidate.is_file());
        found.unwrap_or_else(|| Path::new(&self.command).into())
    }
}

fn is_own_host(name: &str) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    matches!(name, "localhost" | "127.0.0.1" | "::1") || own.trim() == name
}

/// What the root has started.
struct Outcome {
    codes: Vec<c_int>,
    result: Result<Invitation>,
}

impl Outcome {
    fn failed(count: u32, error: Error) -> Self {
        Self {
            codes: vec![class::SPAWN; count as usize],
            result: Err(error),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![self.codes.len() as c_int];
        words.extend(&self.codes);
        let text = match &self.result {
            Ok(invitation) => {
                words.push(0);
                invitation.to_json()
            }
            Err(error) => {
                words.push(error.code);
                error.text.clone()
            }
        };
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(text.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(c_int::from_le_bytes(*bytes.get(4 * at..)?.first_chunk()?));
        let count = usize::try_from(word(0)?).ok()?;
        let codes = (1..=count).map(word).collect::<Option<Vec<_>>>()?;
        let text = String::from_utf8_lossy(bytes.get(4 * (count + 2)..)?);
        let result = match word(count + 1)? {
            0 => Invitation::from_json(&text).map_err(Error::from),
            code => Err(Error::new(code, text)),
        };
        Some(Self { codes, result })
    }
}

/// Starts the root's programs. Returns the intercommunicator on all ranks, and writes the code of each process.
pub fn spawn(
    object: &Arc<CommObject>,
    root: u32,
    programs: impl FnOnce() -> Result<Vec<Program>>,
    codes: Out<c_int>,
) -> Result<Comm> {
    let parents = object.size();
    let mut started = Vec::new();
    let mut own = None;
    if object.rank() == root {
        own = Some(match programs() {
            Ok(programs) => start_all(programs, parents, &mut started),
            Err(error) => Outcome::failed(0, error),
        });
    }
    let bytes = own.as_ref().map(Outcome::to_bytes).unwrap_or_default();
    let shared = broadcast(object, root, bytes).inspect_err(|_| end(&started))?;
    let outcome = own.or_else(|| Outcome::from_bytes(&shared));
    let outcome = outcome.ok_or_else(|| Error::new(class::INTERN, "the root sent no outcome"))?;
    for (at, code) in outcome.codes.iter().enumerate() {
        codes.set_at(at, *code);
    }
    let mut invitation = outcome.result?;
    invitation.rank = Some(object.rank());
    let ids = started.iter().map(|process| process.id).collect();
    let all = invitation.size;
    let made = bridge(invitation, 0..parents, parents..all, object.handler()).inspect_err(|_| end(&started))?;
    if let Some(realm) = made.realm() {
        children::connect(ids, realm);
    }
    Ok(make(made))
}

fn end(started: &[Started]) {
    if !started.is_empty() {
        children::kill(started.iter().map(|process| process.id).collect());
    }
}

/// Starts all processes and waits until they have initialised. If one fails, none is left.
fn start_all(programs: Vec<Program>, parents: u32, started: &mut Vec<Started>) -> Outcome {
    let count = programs.iter().map(|program| program.count).sum();
    if !(1..=MAX_PROCESSES).contains(&count) {
        let text = format!("{count} processes cannot be started; between 1 and {MAX_PROCESSES} can");
        return Outcome::failed(count, Error::new(class::ARG, text));
    }
    let invitation = start_each(&programs, parents, count, started).and_then(|()| invite(parents, count, started));
    match invitation {
        Ok(invitation) => Outcome {
            codes: vec![0; count as usize],
            result: Ok(invitation),
        },
        Err(error) => {
            end(started);
            started.clear();
            Outcome::failed(count, error)
        }
    }
}

/// Starts all processes, as the ranks of a new world.
fn start_each(programs: &[Program], parents: u32, count: u32, started: &mut Vec<Started>) -> Result<()> {
    let world = template()?.to_new_group(count)?;
    let mut inherited = library_variables();
    inherited.push((name::VARIABLE, name::group()?.to_json().into()));
    let numbered = programs.iter().enumerate();
    let each = numbered.flat_map(|(number, program)| (0..program.count).map(move |_| (number, program)));
    for (rank, (number, program)) in (0..).zip(each) {
        let own = Invitation {
            rank: Some(rank),
            ..world.clone()
        };
        let mut variables = inherited.clone();
        variables.push((GROUP_VARIABLE, own.to_json().into()));
        started.push(children::start(Recipe {
            program: program.file(),
            arguments: program.arguments.clone(),
            directory: program.directory.clone(),
            variables,
            removed: REMOVED,
            socket: (VARIABLE, format!("{parents} {number}")),
        })?);
    }
    Ok(())
}

/// Variables by which the programs find this library, unless the environment has them already.
fn library_variables() -> Vec<(&'static str, OsString)> {
    let Some(file) = children::own_library() else {
        return Vec::new();
    };
    let mut variables = Vec::new();
    let earlier = std::env::var_os(PATH_VARIABLE).unwrap_or_default();
    let directory = file.parent().unwrap_or(Path::new("/")).to_path_buf();
    let all: Vec<PathBuf> = std::env::split_paths(&earlier).collect();
    if !all.contains(&directory)
        && let Ok(joined) = std::env::join_paths(
            [directory]
                .iter()
                .chain(all.iter().filter(|one| **one != Path::new(""))),
        )
    {
        variables.push((PATH_VARIABLE, joined));
    }
    if std::env::var_os(LIBRARY_VARIABLE).is_none() {
        variables.push((LIBRARY_VARIABLE, file.into()));
    }
    variables
}

/// Waits until all processes have initialised, and invites them to the new group.
fn invite(parents: u32, count: u32, started: &[Started]) -> Result<Invitation> {
    let template = template()?;
    let limit = Duration::from_secs(template.patience_s);
    let invitation = template.to_new_group(parents + count)?;
    let mut sockets = Vec::new();
    for process in started {
        let lost = |error| Error::new(class::SPAWN, format!("no descriptor is left: {error}"));
        sockets.push((process.id, process.socket.try_clone().map_err(lost)?));
    }
    let theirs = invitation.clone();
    meanwhile(move || {
        await_all(&sockets, limit)?;
        for (rank, (_, socket)) in (parents..).zip(&mut sockets) {
            let own = Invitation {
                rank: Some(rank),
                ..theirs.clone()
            };
            let text = own.to_json();
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
            let sent = socket
                .set_write_timeout(Some(limit))
                .and_then(|()| socket.write_all(&[&length, text.as_bytes()].concat()));
            sent.map_err(|error| Error::new(class::SPAWN, format!("a process ended while it initialised: {error}")))?;
        }
        Ok::<(), Error>(())
    })??;
    Ok(invitation)
}

/// Waits for the first byte of each process.
fn await_all(sockets: &[(u32, UnixStream)], limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    let mut waiting: Vec<usize> = (0..sockets.len()).collect();
    while !waiting.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!(
                "{} of {} processes have not called MPI_Init within {} s; they must be MPI programs that use this library",
                waiting.len(),
                sockets.len(),
                limit.as_secs()
            );
            return Err(Error::new(class::SPAWN, text));
        }
        let events = libc::POLLIN;
        let mut polled: Vec<libc::pollfd> = waiting
            .iter()
            .map(|at| libc::pollfd {
                fd: sockets[*at].1.as_raw_fd(),
                events,
                revents: 0,
            })
            .collect();
        let longest = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).max(1);
        // SAFETY: the array has as many entries as are passed. An error has the same consequence as no event.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, longest) };
        let ready: Vec<bool> = polled.iter().map(|polled| polled.revents != 0).collect();
        for (at, _) in waiting.iter().zip(&ready).filter(|(_, ready)| **ready) {
            greet(*at, sockets)?;
        }
        let mut ready = ready.into_iter();
        waiting.retain(|_| !ready.next().unwrap_or_default());
    }
    Ok(())
}

/// Reads the byte of a process.
fn greet(at: usize, sockets: &[(u32, UnixStream)]) -> Result<()> {
    let (id, socket) = &sockets[at];
    let mut word = [0];
    if matches!((&*socket).read(&mut word), Ok(1)) && word[0] == READY {
        return Ok(());
    }
    let how = children::end_of(*id).map_or_else(|| "it closed its socket".to_owned(), |status| status.to_string());
    let text = format!(
        "process {at} of {} did not get through MPI_Init ({how}); its output names the cause",
        sockets.len()
    );
    Err(Error::new(class::SPAWN, text))
}
