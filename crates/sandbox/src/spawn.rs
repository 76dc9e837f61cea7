//! The thread that starts all processes.
//!
//! A parent-death signal follows the *thread* that made the child, so that thread must live as long as the node. The
//! child shares the node's memory until it runs its program (as in posix_spawn). So starting it copies no page tables,
//! and its cost does not depend on the node's size.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::descriptors;
use crate::filter::{self, Filters, Watch};
use crate::isolation::{Identity, Plan as Isolation, Precaution};
use crate::{Child, Program, SandboxError, umask};

type Order = (Program, mpsc::SyncSender<Result<Child, SandboxError>>);

/// Stack of a child until it runs its program, in bytes; it makes a dozen system calls.
const STACK_BYTES: usize = 64 << 10;
/// Inherited descriptors are moved above this number first, away from their destinations 0 to 3.
const CLEAR_OF: c_int = 10;

/// Owns the thread. Dropping it ends the thread, and with it every process that it started and that still runs.
#[derive(Debug)]
pub struct Spawner {
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Spawner {
    /// Starts the thread.
    pub fn new() -> Result<Self, SandboxError> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let thread = std::thread::Builder::new()
            .name("dayfly-spawner".into())
            .spawn(move || {
                block_signals();
                let filters = filter::compile().map_err(SandboxError::Filter);
                for (program, reply) in inbox {
                    // The caller may be gone; then the child's control socket closes and the child ends.
                    let _ = reply.send(start(&program, &filters));
                }
            })?;
        Ok(Self {
            orders: Mutex::new(Some(orders)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Starts a process. Blocks for a fraction of a millisecond, longer on a slow file system.
    pub fn spawn(&self, program: Program) -> Result<Child, SandboxError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = orders.is_some_and(|orders| orders.send((program, reply)).is_ok());
        if !sent {
            return Err(SandboxError::Stopped);
        }
        answer.recv().unwrap_or(Err(SandboxError::Stopped))
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Blocks all signals on this thread: its children share its memory, and no signal handler of the node may run in them.
fn block_signals() {
    // SAFETY: both calls are given a properly sized set of our own.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Everything that the child needs, prepared because the child may not allocate.
struct Plan {
    /// Candidates with their arguments, the first of which is the name. The first existing one is run.
    programs: Vec<(CString, Vec<*const c_char>)>,
    environment: Vec<*const c_char>,
    /// Descriptors that become 0, 1, 2 and 3.
    files: [RawFd; 4],
    parent: libc::pid_t,
    no_signals: libc::sigset_t,
    /// The child's limit on descriptors, if the node has raised its own.
    descriptors: Option<libc::rlimit>,
    /// The child's umask, if it differs from the node's.
    mask: Option<libc::mode_t>,
    isolation: Option<Isolation>,
    error: AtomicI32,
}

fn start(program: &Program, filters: &Result<Filters, SandboxError>) -> Result<Child, SandboxError> {
    let zero = |_| SandboxError::ZeroByte(program.program.clone());
    let text = |bytes: &OsStr| CString::new(bytes.as_bytes()).map_err(zero);
    let arguments = program
        .arguments
        .iter()
        .map(|argument| text(argument))
        .collect::<Result<Vec<_>, _>>()?;
    let environment = environment(program);
    let image = program.isolation.as_ref().and_then(|isolation| isolation.base.image());
    let paths = match image {
        Some(_) => paths_within(program, &environment),
        None => vec![find(&program.program)?],
    };
    let path = paths.first().cloned().unwrap_or_else(|| program.program.clone());
    let programs = paths
        .iter()
        .map(|path| {
            let path = text(path.as_os_str())?;
            // The text does not move when its owner does.
            let arguments = std::iter::once(path.as_ptr()).chain(pointers(&arguments)).collect();
            Ok((path, arguments))
        })
        .collect::<Result<Vec<_>, SandboxError>>()?;
    let environment = environment
        .into_iter()
        .map(CString::new)
        .collect::<Result<Vec<_>, _>>()
        .map_err(zero)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(std::io::Error::from)?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(std::io::Error::from)?;
    let pipe = || -> std::io::Result<_> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((ours, theirs))
    };
    let ((output, written), (errors, complained)) = (pipe()?, pipe()?);
    let null = std::fs::File::open("/dev/null")?;
    let clear = |fd: &dyn AsRawFd| rustix::io::fcntl_dupfd_cloexec(borrow(fd), CLEAR_OF).map_err(std::io::Error::from);
    let (null, theirs) = (clear(&null)?, clear(&theirs)?);
    let (written, complained) = (clear(&written)?, clear(&complained)?);
    let (isolation, identity_socket) = match (&program.isolation, filters) {
        (None, _) => (None, None),
        (Some(isolation), Ok(filters)) => {
            // Between an isolated process and the thread that writes its identity.
            let (identity_socket, ask) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .map_err(std::io::Error::from)?;
            let plan = isolation.plan(&path, filters, [ask.as_raw_fd(), identity_socket.as_raw_fd()])?;
            (Some(plan), Some((identity_socket, ask)))
        }
        (Some(_), Err(error)) => return Err(SandboxError::Filter(error.to_string())),
    };
    let namespaces = program.isolation.as_ref().map_or(0, crate::Isolation::namespaces);

    // SAFETY: an all-zero set is what sigemptyset makes; it is emptied properly all the same.
    let no_signals = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    };
    let plan = Plan {
        programs,
        environment: pointers(&environment),
        files: [
            null.as_raw_fd(),
            written.as_raw_fd(),
            complained.as_raw_fd(),
            theirs.as_raw_fd(),
        ],
        parent: std::process::id() as libc::pid_t,
        no_signals,
        descriptors: descriptors::original_limit_raw(),
        mask: match &isolation {
            Some(_) => Some(umask::ISOLATED),
            None => umask::original().map(|mask| mask.as_raw_mode()),
        },
        isolation,
        error: AtomicI32::new(0),
    };
    let (pid, pidfd) = std::thread::scope(|scope| {
        let mut asks = None;
        // This thread is blocked until the new process runs its program, so another one writes the identity.
        if let (Some(isolation), Some((identity_socket, ask))) = (&plan.isolation, identity_socket) {
            let identity = &isolation.identity;
            let thread = std::thread::Builder::new().name("dayfly-identity".into());
            thread.spawn_scoped(scope, move || write_identity(identity, &identity_socket))?;
            asks = Some(ask);
        }
        let made = clone(&plan, namespaces);
        // Wake the identity's thread if the process was not made or has died.
        drop(asks);
        made
    })?;
    match plan.error.load(Ordering::Acquire) {
        0 => {
            let skipped = plan
                .isolation
                .as_ref()
                .map_or(0, |plan| plan.skipped.load(Ordering::Acquire));
            let watch = match plan.isolation.is_some() && skipped & Precaution::Record as u32 == 0 {
                true => Some(Watch::new(receive_listener(&ours)?)),
                false => None,
            };
            Ok(Child {
                pid,
                pidfd,
                control: ours,
                output,
                errors,
                watch,
                skipped: Precaution::ALL
                    .into_iter()
                    .filter(|precaution| skipped & *precaution as u32 != 0)
                    .collect(),
            })
        }
        error => {
            // It has exited already; only its zombie is left.
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(borrow(&pidfd)),
                rustix::process::WaitIdOptions::EXITED,
            );
            let error = std::io::Error::from_raw_os_error(error);
            let is_missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
            Err(match &plan.isolation {
                Some(isolation) if is_missing && isolation.was_ready() && image.is_some() => SandboxError::NotInImage {
                    image: image.unwrap_or(&path).to_path_buf(),
                    program: program.program.clone(),
                },
                Some(plan) => SandboxError::Isolation {
                    program: path,
                    step: plan.describe(),
                    error,
                },
                None => SandboxError::Exec { program: path, error },
            })
        }
    }
}

/// Makes the process and waits until it runs its program or has failed.
fn clone(plan: &Plan, namespaces: c_int) -> Result<(libc::pid_t, OwnedFd), SandboxError> {
    let mut stack = vec![0u8; STACK_BYTES];
    let mut pidfd: c_int = -1;
    let was_dumpable = rustix::process::dumpable_behavior();
    // SAFETY: the child runs `child` on a stack of its own. CLONE_VFORK blocks this thread until the child runs its
    // program or exits, so the stack, the plan and everything that it points to outlive the child's use.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(STACK_BYTES);
        let top = top.sub(top as usize % 16);
        libc::clone(
            child,
            top.cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD | namespaces,
            std::ptr::from_ref(plan).cast_mut().cast::<c_void>(),
            std::ptr::from_mut(&mut pidfd),
        )
    };
    if pid < 0 {
        let error = std::io::Error::last_os_error();
        return Err(match namespaces {
            0 => error.into(),
            _ => SandboxError::Namespaces(error),
        });
    }
    if let (true, Ok(was)) = (namespaces != 0, was_dumpable) {
        // A process that changes its user clears the dumpable flag of its memory, which is ours.
        let _ = rustix::process::set_dumpable_behavior(was);
    }
    // SAFETY: clone made this descriptor for us, and it has no other owner.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Waits for an isolated process's request, writes its identity, and reports the result.
fn write_identity(identity: &Identity, identity_socket: &OwnedFd) {
    let mut pid = [0u8; 4];
    if rustix::io::read(identity_socket, &mut pid) != Ok(pid.len()) {
        return;
    }
    let process = PathBuf::from(format!("/proc/{}", i32::from_ne_bytes(pid)));
    let write = |file: &str, text: &str| std::fs::write(process.join(file), text);
    let written = match identity.keeps_groups {
        true => write("setgroups", "deny"),
        false => Ok(()),
    }
    .and_then(|()| write("uid_map", &identity.users))
    .and_then(|()| write("gid_map", &identity.groups));
    // The process learns whether to continue, and names the failed step if not.
    let _ = rustix::io::write(identity_socket, &[u8::from(written.is_ok())]);
}

/// Receives the listener for refused system calls, which the process sent before it ran its program.
fn receive_listener(control: &OwnedFd) -> Result<OwnedFd, SandboxError> {
    let mut byte = [0u8];
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = rustix::net::RecvAncillaryBuffer::new(&mut room);
    rustix::net::recvmsg(
        control,
        &mut [std::io::IoSliceMut::new(&mut byte)],
        &mut files,
        rustix::net::RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(std::io::Error::from)?;
    let mut received = files.drain().filter_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let missing = || std::io::Error::other("a sandbox kept its record to itself");
    received.next().ok_or_else(|| missing().into())
}

/// Runs in the child, in the node's memory: system calls only, no allocation, no lock.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passes a plan that outlives this function; every call below is a plain system call on prepared
    // values.
    unsafe {
        let plan = &*plan.cast::<Plan>();
        let fail = || {
            plan.error.store(*libc::__errno_location(), Ordering::Release);
            libc::_exit(127)
        };
        // Before anything is made in its root directory.
        if let Some(mask) = plan.mask {
            libc::umask(mask);
        }
        if let Some(isolation) = &plan.isolation {
            // If the node died before the death signal was set, the control socket shows it.
            if !isolation.enter() {
                fail();
            }
        } else {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                fail();
            }
            // The node may have died before the death signal was set.
            if libc::getppid() != plan.parent {
                libc::_exit(127);
            }
        }
        if libc::setsid() < 0 {
            fail();
        }
        for (to, from) in plan.files.iter().enumerate() {
            if libc::dup2(*from, to as c_int) < 0 {
                fail();
            }
        }
        // All our descriptors are close-on-exec. This covers those that a library of the host program opened without
        // it. An old kernel does not know the call; then close-on-exec must suffice.
        libc::syscall(libc::SYS_close_range, 4, libc::c_uint::MAX, 0);
        // Not earlier: until here the node's own descriptors occupied low numbers.
        if let Some(limit) = &plan.descriptors
            && libc::setrlimit(libc::RLIMIT_NOFILE, limit) != 0
        {
            fail();
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_SETMASK, &plan.no_signals, std::ptr::null_mut());
        if let Some(isolation) = &plan.isolation
            && !isolation.confine(3)
        {
            fail();
        }
        for (program, arguments) in &plan.programs {
            libc::execve(program.as_ptr(), arguments.as_ptr(), plan.environment.as_ptr());
            if !matches!(*libc::__errno_location(), libc::ENOENT | libc::ENOTDIR) {
                break;
            }
        }
        fail();
    }
    127
}

fn borrow(fd: &(impl AsRawFd + ?Sized)) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: the borrow lasts no longer than the owner.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts
        .iter()
        .map(|text| text.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Variables of the node's environment that an isolated process gets: language and time zone.
const HARMLESS: [&str; 4] = ["LANG", "LC_ALL", "LC_CTYPE", "TZ"];
/// Variables that replace the rest.
const ISOLATED: [(&str, &str); 4] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("USER", "worker"),
];

/// The node's environment without the node's own variables, with the program's changes.
fn environment(program: &Program) -> Vec<Vec<u8>> {
    let isolated = program.isolation.is_some();
    let changed = |name: &OsStr| program.environment.iter().any(|(changed, _)| changed == name);
    let kept = std::env::vars_os().filter(|(name, _)| {
        let allowed = !isolated || HARMLESS.iter().any(|harmless| name == harmless);
        allowed && !name.as_bytes().starts_with(b"DAYFLY_") && !changed(name)
    });
    let fixed = ISOLATED
        .iter()
        .filter(|(name, _)| isolated && !changed(OsStr::new(name)))
        .map(|(name, value)| (name.into(), value.into()));
    let kept = kept.chain(fixed);
    let set = program
        .environment
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
    kept.chain(set)
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect()
}

/// Candidate paths of a program in an image, in order. The image is not searched, since its links would resolve on the
/// host.
fn paths_within(program: &Program, environment: &[Vec<u8>]) -> Vec<PathBuf> {
    let path = environment.iter().find_map(|variable| variable.strip_prefix(b"PATH="));
    let directories: Vec<PathBuf> = std::env::split_paths(OsStr::from_bytes(path.unwrap_or_default())).collect();
    let names = std::iter::once(&program.program).chain(&program.otherwise);
    names
        .flat_map(|name| match name.components().count() {
            1 => directories.iter().map(|directory| directory.join(name)).collect(),
            _ => vec![name.clone()],
        })
        .filter(|path| path.is_absolute())
        .collect()
}

/// The path of a program: as given, or from `PATH`.
pub fn find(program: &Path) -> Result<PathBuf, SandboxError> {
    let missing = || SandboxError::NotFound(program.to_path_buf());
    if program.components().count() > 1 {
        return if program.is_file() {
            Ok(program.to_path_buf())
        } else {
            Err(missing())
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(missing)
}
