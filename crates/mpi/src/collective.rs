//! Collectives, each in its blocking, non-blocking and persistent form from one function that starts it.
//!
//! The engine's collectives move bytes. Memory that is one run of bytes goes to them as it is; other memory is packed
//! before, and unpacked after.

pub mod blocks;
pub mod exchange;
pub mod inter;
mod neighbour;
mod reduce;
mod rooted;

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use dayfly_comm::{Communicator, Datatype as Element, Operation, Request as ScopeRequest, Scope};
use dayfly_protocol::error::Failure;

use crate::communicator::CommObject;
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::handle::Count;
use crate::point::Data;
use crate::pointer::Buffer;
use crate::realm;
use crate::request::{Active, Collective, Finish, finish, serve};
use crate::status::Completion;

/// What a collective in the background uses besides the program's memory.
#[derive(Default)]
pub struct Kept {
    pub send: Vec<u8>,
    pub receive: Vec<u8>,
    pub sent: Vec<Range<usize>>,
    pub received: Vec<Range<usize>>,
    pub counts: Vec<usize>,
    pub operation: Option<Operation>,
}

/// What a program does after it has called a collective.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It waits, so nothing need be kept.
    Waits,
    GoesOn,
}

/// Runs a collective to its end if the program waits for it, else starts it. As [`launch`].
pub fn run(
    mode: Mode,
    comm: Arc<CommObject>,
    mut kept: Kept,
    begin: impl FnOnce(&Scope<'static>, &'static mut Kept) -> std::result::Result<ScopeRequest, Failure>,
    finish: impl FnOnce(&Kept) -> Result<()> + Send + 'static,
) -> Result<Active> {
    // While there are several engines, all are driven by the wait for a request.
    if mode == Mode::GoesOn || realm::is_any() {
        return launch(comm, kept, begin, finish);
    }
    let local: *const Communicator = comm.merged()?;
    // SAFETY: the collective has ended when `begin` returns, so nothing uses either after that.
    let (scope, lent) = unsafe { ((*local).waiting_scope(serve), &mut *std::ptr::from_mut(&mut kept)) };
    begin(&scope, lent)?;
    finish(&kept)?;
    Ok(Active::Over(Completion::empty()))
}

/// Starts a collective. `begin` gets what is kept for as long as the collective runs, and `finish` after it.
pub fn launch(
    comm: Arc<CommObject>,
    kept: Kept,
    begin: impl FnOnce(&Scope<'static>, &'static mut Kept) -> std::result::Result<ScopeRequest, Failure>,
    finish: impl FnOnce(&Kept) -> Result<()> + Send + 'static,
) -> Result<Active> {
    launch_then(comm, kept, begin, Box::new(|kept, _| finish(kept)))
}

fn launch_then(
    comm: Arc<CommObject>,
    kept: Kept,
    begin: impl FnOnce(&Scope<'static>, &'static mut Kept) -> std::result::Result<ScopeRequest, Failure>,
    finish: Finish,
) -> Result<Active> {
    let mut kept = Box::new(kept);
    let local: *const Communicator = comm.merged()?;
    // SAFETY: the request has the communicator and the box for longer than the scope, which it drops first.
    let (scope, lent) = unsafe { ((*local).detached_scope(), &mut *std::ptr::from_mut(&mut *kept)) };
    let request = begin(&scope, lent)?;
    Ok(Active::Collective(Collective {
        scope,
        request,
        finish: Some(finish),
        kept,
        _comm: comm,
    }))
}

/// Nothing to do when a collective has ended.
pub fn nothing(_: &Kept) -> Result<()> {
    Ok(())
}

/// Gathers bytes of one length from all ranks. Windows are served meanwhile, as in every wait.
pub fn gathered(comm: &Arc<CommObject>, own: &[u8]) -> Result<Vec<u8>> {
    let kept = Kept {
        send: own.to_vec(),
        receive: vec![0; own.len() * comm.merged()?.size() as usize],
        ..Kept::default()
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    let active = run(
        Mode::Waits,
        comm.clone(),
        kept,
        |scope, kept| scope.iallgather(&kept.send, &mut kept.receive),
        move |kept| {
            // The receiver waits below.
            let _ = sender.send(kept.receive.clone());
            Ok(())
        },
    )?;
    finish(active, "a communicator's agreement")?;
    receiver
        .try_recv()
        .map_err(|_| Error::new(class::INTERN, "an agreement has no result"))
}

/// Makes a communicator of all ranks in the background.
pub fn start_agreement(
    comm: Arc<CommObject>,
    finish: impl FnOnce(Communicator) -> Result<()> + Send + 'static,
) -> Result<Active> {
    let proposal = u64::from(comm.local()?.propose_context());
    let kept = Kept {
        send: proposal.to_ne_bytes().to_vec(),
        receive: vec![0; 8],
        operation: Some(Operation::Max),
        ..Kept::default()
    };
    let own = comm.clone();
    launch_then(
        comm,
        kept,
        |scope, kept| {
            let operation = kept.operation.as_ref().unwrap_or(&Operation::Max);
            scope.iallreduce(&kept.send, &mut kept.receive, Element::U64, operation)
        },
        Box::new(move |kept, turn| {
            let mut word = [0; 8];
            word.copy_from_slice(&kept.receive);
            let local = own.local()?;
            let context = u64::from_ne_bytes(word) as u32;
            finish(turn.with_members(local, context, local.members().to_vec())?)
        }),
    )
}

/// `count` elements at `buffer`.
#[derive(Clone)]
pub struct Side {
    pub buffer: Buffer,
    pub count: usize,
    pub of: Arc<TypeObject>,
}

impl Side {
    pub fn new(buffer: Buffer, count: Count, datatype: crate::handle::Datatype) -> Result<Self> {
        let data = Data {
            buffer,
            count,
            datatype,
        };
        // A collective may get NULL where it has no elements, and MPI_BOTTOM.
        let (of, count) = data.check()?;
        Ok(Self { buffer, count, of })
    }

    pub fn bytes(&self) -> Result<usize> {
        self.of.bytes(self.count)
    }

    /// The same with another count.
    pub fn of_count(&self, count: usize) -> Self {
        Self { count, ..self.clone() }
    }

    /// The elements from this one on.
    pub fn from(&self, element: isize) -> Self {
        Self {
            buffer: self.buffer.offset(element * self.of.extent),
            ..self.clone()
        }
    }

    /// A packed copy.
    pub fn packed(&self) -> Result<Vec<u8>> {
        let mut packed = vec![0; self.bytes()?];
        self.of.pack(self.buffer, self.count, &mut packed);
        Ok(packed)
    }

    /// The bytes to send: the program's own, or a packed copy in `kept`.
    pub fn source(&self, kept: &'static [u8]) -> &'static [u8] {
        match self.of.dense {
            true => self.dense(),
            false => kept,
        }
    }

    /// What `source` needs.
    pub fn source_copy(&self) -> Result<Vec<u8>> {
        match self.of.dense {
            true => Ok(Vec::new()),
            false => self.packed(),
        }
    }

    fn dense(&self) -> &'static [u8] {
        self.buffer.offset(self.of.true_lower).bytes(self.of.size * self.count)
    }

    /// Where bytes arrive: in the program's memory, or in `kept`.
    pub fn target(&self, kept: &'static mut [u8]) -> &'static mut [u8] {
        match self.of.dense {
            true => self
                .buffer
                .offset(self.of.true_lower)
                .bytes_mut(self.of.size * self.count),
            false => kept,
        }
    }

    /// What `target` needs.
    pub fn target_room(&self) -> Result<Vec<u8>> {
        match self.of.dense {
            true => Ok(Vec::new()),
            false => Ok(vec![0; self.bytes()?]),
        }
    }

    /// Unpacks what arrived in `kept`.
    pub fn unpack(&self, kept: &[u8]) {
        if !self.of.dense {
            self.of.unpack(kept, self.buffer, self.count);
        }
    }
}

/// Whether this rank is the root, which is checked.
pub fn is_root(comm: &CommObject, root: c_int) -> Result<bool> {
    let size = comm.intra()?.size();
    match u32::try_from(root) {
        Ok(root) if root < size => Ok(root == comm.rank()),
        _ => Err(Error::new(
            class::ROOT,
            format!("there is no root {root} in a communicator of {size}"),
        )),
    }
}

/// What runs or starts a collective as often as it is wanted; its arguments were checked and copied.
pub fn plan<F: Fn(Mode) -> Result<Active> + Send + Sync + 'static>(start: F) -> Result<F> {
    Ok(start)
}

/// Collectives with all their forms: the body plans one.
macro_rules! collectives {
    ($(
        fn $blocking:ident $blocking_c:ident $start:ident $start_c:ident $init:ident $init_c:ident
        ( $($argument:ident : $type:ty),* $(,)? ) [$comm:ident] $body:block
    )*) => { $crate::face::mpi! { $(
        fn $blocking / $blocking_c ( $($argument: $type,)* ) [$comm] {
            let start = (|| $body)()?;
            let active = start($crate::collective::Mode::Waits)?;
            $crate::request::finish(active, stringify!($blocking)).map(|_| ())
        }

        fn $start / $start_c ( $($argument: $type,)* request: $crate::pointer::Out<$crate::handle::Request> ) [$comm] {
            let start = (|| $body)()?;
            request.check()?.set($crate::request::make(start($crate::collective::Mode::GoesOn)?));
            Ok(())
        }

        fn $init / $init_c (
            $($argument: $type,)* info: $crate::handle::Info, request: $crate::pointer::Out<$crate::handle::Request>
        ) [$comm] {
            $crate::info::optional(info)?;
            let start = (|| $body)()?;
            let start = move || start($crate::collective::Mode::GoesOn);
            request.check()?.set($crate::request::make_persistent(Box::new(start)));
            Ok(())
        }
    )* } };
}

pub(crate) use collectives;
pub use rooted::barrier;
