//! The processes that this one has started.
//!
//! One thread starts them, and lasts as long as the process: the kernel ends a child when the thread that started it
//! ends. So a process that is killed leaves no children, unless they have disconnected from it.

use std::collections::VecDeque;
use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, class};
use crate::realm::Realm;

/// Interval at which ended processes are collected.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a process that has closed its socket may take to end.
const END_LIMIT: Duration = Duration::from_millis(500);
const END_PAUSE: Duration = Duration::from_millis(5);
/// Statuses of ended processes that are kept.
const MAX_ENDED: usize = 1024;
/// Lowest descriptor that a program does not take for its input or output.
const MIN_DESCRIPTOR: i32 = 3;

/// A program to start.
pub struct Recipe {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub directory: Option<PathBuf>,
    pub variables: Vec<(&'static str, OsString)>,
    /// Variables that it does not inherit.
    pub removed: &'static [&'static str],
    /// Variable for the number of its end of the socket, followed by this text.
    pub socket: (&'static str, String),
}

/// A process that was started, and the socket to it.
pub struct Started {
    pub id: u32,
    pub socket: UnixStream,
}

struct Running {
    child: Child,
    /// The group in which it is connected to this process, once it is.
    realm: Weak<Realm>,
}

#[derive(Default)]
struct Children {
    running: Vec<Running>,
    ended: VecDeque<(u32, ExitStatus)>,
}

type Job = Box<dyn FnOnce(&mut Children) + Send>;

/// The thread's process and its jobs. A forked child has no such thread.
static THREAD: Mutex<Option<(u32, Sender<Job>)>> = Mutex::new(None);

impl Children {
    /// Moves those that have ended to the others.
    fn collect(&mut self) {
        let ended = &mut self.ended;
        self.running.retain_mut(|running| match running.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push_back((running.child.id(), status));
                if ended.len() > MAX_ENDED {
                    ended.pop_front();
                }
                false
            }
            // The program itself has collected it.
            Err(_) => false,
        });
    }

    fn status(&self, id: u32) -> Option<ExitStatus> {
        self.ended
            .iter()
            .rev()
            .find(|(other, _)| *other == id)
            .map(|(_, status)| *status)
    }
}

fn run(jobs: &std::sync::mpsc::Receiver<Job>) {
    let mut children = Children::default();
    loop {
        match jobs.recv_timeout(COLLECT_INTERVAL) {
            Ok(job) => job(&mut children),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        children.collect();
    }
}

/// Does a job in the thread, which is started if there is none.
fn in_thread<T: Send + 'static>(job: impl FnOnce(&mut Children) -> T + Send + 'static) -> Result<T> {
    let failed =
        |error: &dyn std::fmt::Display| Error::new(class::SPAWN, format!("no thread starts programs: {error}"));
    let own = std::process::id();
    let (sender, receiver) = channel();
    let job: Job = Box::new(move |children| drop(sender.send(job(children))));
    {
        let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_none_or(|(process, _)| *process != own) {
            let (jobs, received) = channel();
            let started = std::thread::Builder::new()
                .name("mpi-spawn".into())
                .spawn(move || run(&received));
            started.map_err(|error| failed(&error))?;
            *thread = Some((own, jobs));
        }
        if let Some((_, jobs)) = &*thread {
            jobs.send(job).map_err(|error| failed(&error))?;
        }
    }
    receiver.recv().map_err(|error| failed(&error))
}

/// Starts a program. It ends with this process until [`super::parent::outlive`] is called in it.
pub fn start(recipe: Recipe) -> Result<Started> {
    let name = recipe.program.display().to_string();
    let started = in_thread(move |children| {
        let (child, socket) = launch(&recipe)?;
        let id = child.id();
        children.running.push(Running {
            child,
            realm: Weak::new(),
        });
        Ok(Started { id, socket })
    })?;
    started.map_err(|error: std::io::Error| {
        let text = match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no program {name}, or its directory does not exist"),
            std::io::ErrorKind::PermissionDenied => format!(
                "{name} may not be started here: {error}; it must be executable, and a sandbox must allow new processes"
            ),
            _ => format!("{name} could not be started: {error}"),
        };
        Error::new(class::SPAWN, text)
    })
}

fn launch(recipe: &Recipe) -> std::io::Result<(Child, UnixStream)> {
    let (socket, theirs) = UnixStream::pair()?;
    // SAFETY: duplicates a descriptor that is open.
    let number = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_DUPFD_CLOEXEC, MIN_DESCRIPTOR) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, for this alone. It is open until the child has it.
    let _theirs = unsafe { OwnedFd::from_raw_fd(number) };
    let mut command = Command::new(&recipe.program);
    command
        .args(&recipe.arguments)
        .envs(recipe.variables.iter().map(|(name, value)| (name, value)))
        .env(recipe.socket.0, format!("{number} {}", recipe.socket.1))
        .stdin(Stdio::null());
    for name in recipe.removed {
        command.env_remove(name);
    }
    if let Some(directory) = &recipe.directory {
        command.current_dir(directory);
    }
    let own = std::process::id();
    // SAFETY: between fork and exec the child makes system calls only.
    unsafe { command.pre_exec(move || prepare(own, number)) };
    Ok((command.spawn()?, socket))
}

/// In the child: ties its life to its parent's, and lets it inherit its end of the socket.
fn prepare(parent: u32, socket: i32) -> std::io::Result<()> {
    // SAFETY: these calls read and write no memory.
    let done = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) == 0 && libc::fcntl(socket, libc::F_SETFD, 0) == 0
    };
    // SAFETY: as above.
    if !done || unsafe { libc::getppid() } as u32 != parent {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Whether a process has ended, and how. Waits a little for one that is about to.
pub fn end_of(id: u32) -> Option<ExitStatus> {
    let until = Instant::now() + END_LIMIT;
    loop {
        let status = in_thread(move |children| {
            children.collect();
            children.status(id)
        });
        match status {
            Ok(None) if Instant::now() < until => std::thread::sleep(END_PAUSE),
            found => return found.ok().flatten(),
        }
    }
}

/// Kills processes.
pub fn kill(ids: Vec<u32>) {
    let _ = in_thread(move |children| {
        for running in &mut children.running {
            if ids.contains(&running.child.id()) {
                let _ = running.child.kill();
            }
        }
    });
}

/// Notes the group in which processes are connected to this one.
pub fn connect(ids: Vec<u32>, realm: &Arc<Realm>) {
    let realm = Arc::downgrade(realm);
    let _ = in_thread(move |children| {
        let concerned = children.running.iter_mut();
        for running in concerned.filter(|running| ids.contains(&running.child.id())) {
            running.realm = realm.clone();
        }
    });
}

/// Kills the processes that are connected to this one.
pub fn end_connected() {
    let has_thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    if has_thread {
        let _ = in_thread(|children| {
            for running in &mut children.running {
                if running.realm.strong_count() > 0 {
                    let _ = running.child.kill();
                }
            }
        });
    }
}

/// The file of this library, as the system has loaded it.
pub fn own_library() -> Option<PathBuf> {
    // SAFETY: an empty description, which the call fills.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function in this library, and the name is valid while the library is loaded.
    let name = unsafe {
        if libc::dladdr(own_library as *const libc::c_void, &raw mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.dli_fname)
    };
    Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()))
        .canonicalize()
        .ok()
}
