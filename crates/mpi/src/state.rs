//! Initialisation and the end; the world of this process.
//!
//! A worker of Dayfly serves one task after another, each with a group of its own, and a program like mpi4py initialises
//! only when it is loaded. So the worker leaves the world of a task by `MPIX_Dayfly_leave`, and the next call joins the
//! group of the invitation that the environment holds then. `MPI_COMM_WORLD` is that group.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::Instant;

use dayfly_comm::membership::Membership;
use dayfly_comm::{Communicator, Invitation, LostRanks, Options, World};
use dayfly_protocol::error::Code;

use crate::communicator::{self, Communicators};
use crate::error::{Error, Result, class};
use crate::face::{mpi, mpi_value};
use crate::handle::{Comm, Errhandler, Info};
use crate::interface::{self, RUN};
use crate::pointer::{Buffer, Out, TextOut};
use crate::realm::WorldId;
use crate::{attribute, buffers, dynamic, errhandler, error, file, info, inherited, probe, request, session, window};

/// Context of `MPI_COMM_SELF`, and of the messages by which ranks agree on new communicators. Equal on all ranks, since
/// the world's is 0.
const SELF_CONTEXT: u32 = 1;
const CONTROL_CONTEXT: u32 = 2;

/// What lives from initialisation to the end.
pub struct Instance {
    /// For the messages of this library itself.
    pub control: Communicator,
    /// What names the world.
    pub id: WorldId,
    /// The invitation that the world was joined by, without the rank; `None` in a world without one.
    pub invitation: Option<Invitation>,
    pub communicators: Communicators,
    // Declared last: a rank closes its connections before it leaves the group.
    _membership: Option<Membership>,
}

static INSTANCE: RwLock<Option<Arc<Instance>>> = RwLock::new(None);
static INITIALIZED: AtomicBool = AtomicBool::new(false);
static FINALIZED: AtomicBool = AtomicBool::new(false);
/// Whether the next call joins a group: a worker has left the world of its last task.
static RESUMES: AtomicBool = AtomicBool::new(false);
/// Whether the end of the process is the end of MPI: see `MPIX_Dayfly_abandon`.
static ABANDONED: AtomicBool = AtomicBool::new(false);
static LEVEL: AtomicI32 = AtomicI32::new(0);
static MAIN: Mutex<Option<ThreadId>> = Mutex::new(None);
/// Error handlers of `MPI_COMM_WORLD` and `MPI_COMM_SELF` while there is no instance: those that they had at the end.
static HANDLERS: Mutex<[Errhandler; 2]> = Mutex::new([Errhandler::FATAL; 2]);

/// Whether this process is in a group now.
static IN_GROUP: AtomicBool = AtomicBool::new(false);
/// Whether this process is a child of a rank, without a program of its own.
static FORKED: AtomicBool = AtomicBool::new(false);
/// What such a child may call; the connections are its parent's.
const OF_CHILDREN: [&str; 9] = [
    "MPI_Initialized",
    "MPI_Finalized",
    "MPI_Get_version",
    "MPI_Get_library_version",
    "MPI_Error_class",
    "MPI_Error_string",
    "MPI_Abort",
    "MPIX_Dayfly_abandon",
    "MPIX_Dayfly_failure",
];

/// Runs in a child after a fork. Another thread of the parent may have held any lock: this takes none.
extern "C" fn enter_child() {
    if IN_GROUP.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
        FINALIZED.store(true, Ordering::Release);
    }
}

/// Has children of this process not use its connections.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler changes atomic values only. Without memory for it, children are not told apart.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(enter_child)) });
}

/// Checks that this process may call a function: in a child of a rank, MPI has ended.
#[inline]
pub fn check_process(function: &str) -> Result<()> {
    match FORKED.load(Ordering::Relaxed) {
        true => check_in_child(function),
        false => Ok(()),
    }
}

#[cold]
fn check_in_child(function: &str) -> Result<()> {
    match OF_CHILDREN.contains(&function) {
        true => Ok(()),
        false => Err(Error::new(
            class::OTHER,
            "this process was forked from a rank; only the rank itself is in the group",
        )),
    }
}

/// The instance, between initialisation and the end.
pub fn instance() -> Result<Arc<Instance>> {
    if let Some(instance) = current() {
        return Ok(instance);
    }
    if RESUMES.load(Ordering::Acquire) {
        resume()?;
    }
    current().ok_or_else(|| {
        Error::new(
            class::OTHER,
            match FINALIZED.load(Ordering::Acquire) {
                true => "MPI_Finalize was called already",
                false => "MPI_Init was not called yet",
            },
        )
    })
}

/// As [`instance`], but never joins a group.
pub fn current() -> Option<Arc<Instance>> {
    if FORKED.load(Ordering::Relaxed) {
        return None;
    }
    INSTANCE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// This process's rank in the world; `None` outside of initialisation and the end.
pub fn own_rank() -> Option<u32> {
    current().map(|instance| instance.control.rank())
}

/// The error handlers of `MPI_COMM_WORLD` and `MPI_COMM_SELF`. Never joins a group: joining may be what failed.
pub fn handlers() -> [Errhandler; 2] {
    match current() {
        Some(instance) => instance.communicators.handlers(),
        None if FORKED.load(Ordering::Relaxed) => of_parent().unwrap_or([Errhandler::RETURN; 2]),
        None => *HANDLERS.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// The error handlers of the parent of a child, unless another thread of it was changing the instance.
fn of_parent() -> Option<[Errhandler; 2]> {
    let instance = INSTANCE.try_read().ok()?;
    instance.as_ref().map(|instance| instance.communicators.handlers())
}

fn initialize(required: c_int) -> Result<c_int> {
    if !INITIALIZED.swap(true, Ordering::AcqRel) {
        begin_session().inspect_err(|_| INITIALIZED.store(false, Ordering::Release))?;
    } else if current().is_none() && RESUMES.load(Ordering::Acquire) {
        resume()?;
    } else {
        return Err(Error::new(class::OTHER, "MPI_Init was called already"));
    }
    let level = required.clamp(interface::thread::SINGLE, interface::thread::MULTIPLE);
    LEVEL.store(level, Ordering::Release);
    *MAIN.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
    Ok(level)
}

/// Sessions that are open; `MPI_Init` opens one too.
static SESSIONS: Mutex<usize> = Mutex::new(0);

/// Joins the group for the first session.
pub fn begin_session() -> Result<()> {
    if RESUMES.load(Ordering::Acquire) {
        resume()?;
    }
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if *sessions == 0 && current().is_none() {
        join()?;
    }
    *sessions += 1;
    Ok(())
}

/// Joins the group that `MPI_Init` would join, unless this process is in one.
fn join_ahead() -> Result<()> {
    if RESUMES.load(Ordering::Acquire) {
        return resume();
    }
    let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    match *sessions == 0 && current().is_none() && !INITIALIZED.load(Ordering::Acquire) {
        true => join(),
        false => Ok(()),
    }
}

/// Joins the group of a worker's next task, if no other thread has done so.
fn resume() -> Result<()> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if RESUMES.load(Ordering::Acquire) {
        join()?;
        *MAIN.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
        *sessions = 1;
        RESUMES.store(false, Ordering::Release);
    }
    Ok(())
}

/// Leaves the group after the last session.
pub fn end_session() -> Result<()> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    *sessions = sessions.saturating_sub(1);
    if *sessions == 0
        && let Some(instance) = current()
    {
        close(instance, true)?;
    }
    Ok(())
}

fn join() -> Result<()> {
    if FINALIZED.load(Ordering::Acquire) {
        return Err(Error::new(
            class::OTHER,
            "MPI cannot be initialised again after its end",
        ));
    }
    watch_forks();
    let (inherited, mut invitation) = (inherited::world()?, Invitation::from_environment()?);
    let (world, membership) = match (inherited, &mut invitation) {
        (Some(communicator), _) => (communicator, None),
        (None, Some(invitation)) => {
            invitation.run.push_str(RUN);
            let World {
                communicator,
                membership,
                ..
            } = invitation.accept()?;
            (communicator, Some(membership))
        }
        (None, None) => {
            let lost = Arc::new(LostRanks::default());
            (Communicator::form(0, 1, vec![None], lost, Options::default())?, None)
        }
    };
    let own = world.rank();
    let all = world.members().to_vec();
    let alone = world.with_members(SELF_CONTEXT, vec![own])?;
    let control = world.with_members(CONTROL_CONTEXT, all)?;
    attribute::set_universe_size(world.size());
    let id = dynamic::world_id(invitation.as_ref())?;
    let communicators = Communicators::new(world, alone, handlers());
    *INSTANCE.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Instance {
        control,
        id,
        invitation,
        communicators,
        _membership: membership,
    }));
    IN_GROUP.store(true, Ordering::Release);
    dynamic::meet_parents().inspect_err(|_| {
        IN_GROUP.store(false, Ordering::Release);
        *INSTANCE.write().unwrap_or_else(PoisonError::into_inner) = None;
    })
}

/// Leaves the group. Handles of its objects are invalid after that.
fn close(instance: Arc<Instance>, waits: bool) -> Result<()> {
    // A rank that leaves early would take messages with it that others still want.
    dynamic::part(&instance, waits)?;
    *HANDLERS.lock().unwrap_or_else(PoisonError::into_inner) = instance.communicators.handlers();
    *INSTANCE.write().unwrap_or_else(PoisonError::into_inner) = None;
    request::abandon_all(&mut instance.control.turn());
    // What has connections goes before the membership, which the instance has.
    request::clear();
    probe::clear();
    window::clear();
    file::FILES.clear();
    buffers::clear();
    communicator::COMMUNICATORS.clear();
    IN_GROUP.store(false, Ordering::Release);
    Ok(())
}

/// Calls the program's functions for the attributes of the predefined communicators.
fn delete_attributes(instance: &Instance) -> Result<()> {
    attribute::delete_all(&*instance.communicators.alone, Comm::SELF)?;
    attribute::delete_all(&*instance.communicators.world, Comm::WORLD)
}

fn finalize() -> Result<()> {
    // A worker between two tasks has nothing to leave.
    if RESUMES.swap(false, Ordering::AcqRel) {
        FINALIZED.store(true, Ordering::Release);
        return Ok(());
    }
    if ABANDONED.load(Ordering::Acquire) {
        return Ok(());
    }
    let instance = instance()?;
    delete_attributes(&instance)?;
    FINALIZED.store(true, Ordering::Release);
    drop(instance);
    end_session()
}

/// Leaves the world of a worker's task: waits for the other ranks if the task has succeeded. Otherwise it leaves at once,
/// so that they see that this rank is lost.
fn leave(has_succeeded: bool) -> Result<()> {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = current() {
        // A function that fails must not keep the next task from its group.
        let _ = delete_attributes(&instance);
        close(instance, has_succeeded)?;
    }
    session::clear();
    *sessions = 0;
    FINALIZED.store(false, Ordering::Release);
    RESUMES.store(INITIALIZED.load(Ordering::Acquire), Ordering::Release);
    Ok(())
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

const MAX_PROCESSOR_NAME: usize = 128;
const MAX_LIBRARY_VERSION_STRING: usize = 8192;

/// Ends the process.
pub fn abort(code: c_int) -> ! {
    // Output of the C library that the program has written must not be lost. SAFETY: flushes all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    let code = if code & 0xff == 0 && code != 0 { 1 } else { code };
    // SAFETY: ends the process, without the handlers of a program that is in an unknown state.
    unsafe { libc::_exit(code) }
}

mpi! {
    fn MPI_Init(_argc: Out<c_int>, _argv: Out<*mut *mut c_char>) [()] {
        start();
        initialize(0).map(|_| ())
    }

    fn MPI_Init_thread(_argc: Out<c_int>, _argv: Out<*mut *mut c_char>, required: c_int, provided: Out<c_int>) [()] {
        start();
        provided.set(initialize(required)?);
        Ok(())
    }

    fn MPI_Finalize() [()] {
        finalize()
    }

    /// For bindings that want the error of a group that cannot be joined, which ends the process in `MPI_Init`: joins the
    /// group before. Writes the code and the message of the error, each into room for 512 bytes; two empty texts if there
    /// is none.
    fn MPIX_Dayfly_join(name: TextOut, message: TextOut) [()] {
        match join_ahead() {
            Ok(()) => error::describe(None, "", name, message),
            Err(error) => error::describe(Some(error.failure.unwrap_or(Code::Internal)), &error.text, name, message),
        }
    }

    /// For workers, between two tasks: see the top of this module.
    fn MPIX_Dayfly_leave(has_succeeded: c_int) [()] {
        leave(has_succeeded != 0)
    }

    /// For programs that fail: MPI counts as finalized, without waiting for the other ranks. They see that this rank is
    /// lost when its process ends, and not before, so that its status comes before theirs.
    fn MPIX_Dayfly_abandon() [()] {
        if current().is_some() {
            ABANDONED.store(true, Ordering::Release);
            FINALIZED.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn MPI_Initialized(flag: Out<c_int>) [()] {
        flag.set(INITIALIZED.load(Ordering::Acquire).into());
        Ok(())
    }

    fn MPI_Finalized(flag: Out<c_int>) [()] {
        flag.set(FINALIZED.load(Ordering::Acquire).into());
        Ok(())
    }

    fn MPI_Query_thread(provided: Out<c_int>) [()] {
        provided.set(LEVEL.load(Ordering::Acquire));
        Ok(())
    }

    fn MPI_Is_thread_main(flag: Out<c_int>) [()] {
        let main = *MAIN.lock().unwrap_or_else(PoisonError::into_inner);
        flag.set((main == Some(std::thread::current().id())).into());
        Ok(())
    }

    fn MPI_Abort(_comm: Comm, code: c_int) [()] {
        let rank = own_rank().map_or_else(|| "a process outside of MPI".into(), |rank| format!("rank {rank}"));
        errhandler::print(&format!("MPI_Abort: {rank} ends the program with status {code}"));
        abort(code)
    }

    fn MPI_Get_version(version: Out<c_int>, subversion: Out<c_int>) [()] {
        version.set(interface::VERSION[0]);
        subversion.set(interface::VERSION[1]);
        Ok(())
    }

    fn MPI_Get_library_version(text: TextOut, length: Out<c_int>) [()] {
        let version = concat!("Dayfly ", env!("CARGO_PKG_VERSION"), ", with the binary interface of ");
        length.set(text.set(&format!("{version}{}", interface::NAME), MAX_LIBRARY_VERSION_STRING)?);
        Ok(())
    }

    fn MPI_Get_processor_name(name: TextOut, length: Out<c_int>) [()] {
        let mut host = [0u8; MAX_PROCESSOR_NAME];
        // SAFETY: the room is as long as it is said to be.
        unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
        let end = host.iter().position(|byte| *byte == 0).unwrap_or(0);
        length.set(name.set(&String::from_utf8_lossy(&host[..end]), MAX_PROCESSOR_NAME)?);
        Ok(())
    }

    fn MPI_Get_address(location: Buffer, address: Out<isize>) [()] {
        address.check()?.set(location.address() as isize);
        Ok(())
    }

    fn MPI_Get_hw_resource_info(result: Out<Info>) [()] {
        // The only resource that `MPI_Comm_split_type` knows: every process has the memory of its host.
        result.check()?.set(info::make(vec![("mpi_shared_memory".into(), "true".into())]));
        Ok(())
    }

    fn MPI_Pcontrol(_level: c_int) [()] {
        Ok(())
    }
}

mpi_value! {
    fn MPI_Wtime() -> f64 {
        // A number of seconds since 1970 has no room for nanoseconds.
        start().elapsed().as_secs_f64()
    }

    fn MPI_Wtick() -> f64 {
        1e-9
    }

    fn MPI_Aint_add(base: isize, displacement: isize) -> isize {
        base.wrapping_add(displacement)
    }

    fn MPI_Aint_diff(one: isize, other: isize) -> isize {
        one.wrapping_sub(other)
    }
}
