//! Groups: ranks that exchange messages.

use std::ffi::c_char;
use std::sync::Arc;

use dayfly_client::Error;
use dayfly_comm::membership::Membership;
use dayfly_comm::{Channel, Communicator, Invitation, LostRanks, Options, World};

use crate::handle::{Birth, Handle, get, give, optional_text, options, put_required, take, text};
use crate::lease::DFLY_FOR_EVER;
use crate::status::{dfly_status, guard, misuse, value};

/// Any rank: as the source of a message, or any free rank in `dfly_group_options`.
pub const DFLY_ANY_RANK: u32 = 4294967295;
/// No rank: a message to it is discarded, and a receive from it completes at once without data.
pub const DFLY_NO_RANK: u32 = 4294967294;
/// No part, in `dfly_group_split`.
pub const DFLY_NO_COLOR: u32 = 4294967295;

/// How a process that `dayfly run` did not start finds its group. Initialise with `dfly_group_options_init`, then set
/// `rendezvous`, `name`, `secret` and `ranks`. The other fields have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_group_options {
    /// Set by `dfly_group_options_init`.
    pub size: usize,
    /// Address of the rendezvous, `host:port`: a manager's, or one that `dayfly rendezvous` started.
    pub rendezvous: *const c_char,
    /// Public key of the rendezvous in hexadecimal, as `dayfly rendezvous` prints it. If NULL, the rendezvous is not
    /// authenticated, and an impostor can keep the ranks apart.
    pub key: *const c_char,
    /// Name of the group.
    pub name: *const c_char,
    /// Run of the group: ranks of different runs do not meet. NULL for none.
    pub run: *const c_char,
    /// Shared secret of the ranks: at least 16 bytes, in hexadecimal.
    pub secret: *const c_char,
    /// Number of ranks of the group.
    pub ranks: u32,
    /// This process's rank, counted from 0; DFLY_ANY_RANK for any free one.
    pub rank: u32,
    /// Time limit in seconds until all ranks have joined and are connected.
    pub patience_s: u32,
    /// Time limit of one operation, in seconds.
    pub deadline_s: u32,
    /// How long a waiting rank polls before it sleeps, in microseconds. DFLY_FOR_EVER means that it never sleeps, or,
    /// if it waits for a store, that it does not poll.
    pub spin_us: u32,
    /// 1 if the network between the hosts is trusted, so that messages are not encrypted; else 0.
    pub trust_fabric: u32,
    /// URL of a store for ranks that have no direct connection: `s3://bucket/prefix`, `redis://host:port`, `rediss://`
    /// or `file:///directory`. NULL for none. It must be equal on all ranks.
    pub store: *const c_char,
    /// `direct`, or `stored` for ranks that exchange messages only through the store. NULL for `direct`. It must be
    /// equal on all ranks.
    pub channel: *const c_char,
    /// libfabric provider, such as `verbs`, for ranks on different hosts that both have it. Requires `trust_fabric`.
    /// NULL for none. It must be equal on all ranks.
    pub fabric: *const c_char,
    /// 1 to connect two ranks when one first needs the other; 0 to connect all ranks at the start. It must be equal on
    /// all ranks.
    pub lazy_connect: u32,
}

/// State that all communicators of a rank share.
pub struct GroupState {
    // Drop order: a rank closes its connections before it leaves the group.
    pub communicator: Communicator,
    membership: Option<Arc<Membership>>,
}

/// A group of ranks that exchange messages, as one of them sees it. Thread-safe: threads take turns. Counts are numbers
/// of elements of a datatype (DFLY_F64 and so on).
///
/// All ranks must call the collectives, `dfly_group_barrier` to `dfly_group_exscan`, in the same order. If the calls do
/// not match, they fail with DFLY_MISMATCH, and the message names the calls. If `request` is NULL, a collective returns
/// when this rank's part is complete. Else it continues in the background and writes a request to `request`; all memory
/// arguments except counts and displacements must stay valid until that request completes. Input and output may
/// overlap: the input is then copied first. Memory arguments may be NULL if they have no elements.
///
/// An operation that needs a lost rank fails with DFLY_RANK_LOST, and the message names the rank. An operation that
/// exceeds the group's deadline (default: one hour) fails with DFLY_TIMED_OUT.
pub struct dfly_group {
    birth: Birth,
    pub(crate) state: Arc<GroupState>,
}

impl Handle for dfly_group {
    const NAME: &'static str = "group";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_group {
    fn new(communicator: Communicator, membership: Option<Arc<Membership>>) -> Self {
        Self {
            birth: Birth::now(),
            state: Arc::new(GroupState {
                communicator,
                membership,
            }),
        }
    }

    fn join(invitation: &Invitation) -> Result<Self, Error> {
        let World {
            communicator,
            membership,
            ..
        } = invitation.accept()?;
        Ok(Self::new(communicator, Some(Arc::new(membership))))
    }

    fn alone() -> Result<Self, Error> {
        let alone = Communicator::form(0, 1, vec![None], Arc::new(LostRanks::default()), Options::default())?;
        Ok(Self::new(alone, None))
    }

    /// Returns a handle for a communicator of some of this group's ranks.
    fn part(&self, communicator: Communicator) -> Self {
        Self::new(communicator, self.state.membership.clone())
    }
}

/// # Safety
/// The options' texts are C strings, unless they are null.
unsafe fn invitation(options: &dfly_group_options) -> Result<Invitation, Error> {
    // SAFETY: as the caller promises.
    let (rendezvous, key, name, run, secret, store, channel, fabric) = unsafe {
        (
            text(options.rendezvous, "the rendezvous")?,
            optional_text(options.key, "the rendezvous' key")?,
            text(options.name, "the group's name")?,
            optional_text(options.run, "the group's run")?,
            text(options.secret, "the group's secret")?,
            optional_text(options.store, "the store")?,
            optional_text(options.channel, "the channel")?,
            optional_text(options.fabric, "the fabric")?,
        )
    };
    let key = key.map(str::parse).transpose();
    Ok(Invitation {
        rendezvous: rendezvous.into(),
        key: key.map_err(|error| misuse(format!("the rendezvous' key: {error}")))?,
        // The environment supplies the voucher, if there is one.
        voucher: None,
        name: name.into(),
        run: run.unwrap_or_default().into(),
        secret: secret.into(),
        rank: (options.rank != DFLY_ANY_RANK).then_some(options.rank),
        size: options.ranks,
        trust_fabric: options.trust_fabric != 0,
        patience_s: options.patience_s.into(),
        deadline_s: options.deadline_s.into(),
        spin_us: (options.spin_us != DFLY_FOR_EVER).then_some(options.spin_us.into()),
        tables: None,
        fabric: fabric.map(Into::into),
        lazy_connect: options.lazy_connect != 0,
        store: store.map(Into::into),
        channel: channel.map_or(Ok(Channel::Direct), Channel::from_name)?,
    })
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_options_init(options: *mut dfly_group_options) -> dfly_status {
    let defaults = dfly_group_options {
        size: size_of::<dfly_group_options>(),
        rendezvous: std::ptr::null(),
        key: std::ptr::null(),
        name: std::ptr::null(),
        run: std::ptr::null(),
        secret: std::ptr::null(),
        ranks: 0,
        rank: DFLY_ANY_RANK,
        patience_s: 30,
        deadline_s: 3600,
        spin_us: DFLY_FOR_EVER,
        trust_fabric: 0,
        store: std::ptr::null(),
        channel: std::ptr::null(),
        fabric: std::ptr::null(),
        lazy_connect: 0,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

/// Joins a group, and returns when all ranks have joined and are connected. If `options` is NULL, the environment
/// variable DAYFLY_GROUP names the group; `dayfly run` sets it for the programs that it starts. Without the variable,
/// the process is a group of one. A process can join a group once; use `dfly_group_dup` for another handle. `group`
/// receives the group; free it with `dfly_group_free`. Errors: DFLY_TIMED_OUT if a rank does not join in time.
///
/// # Safety
/// `options` is NULL or options, `group` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_join(
    options: *const dfly_group_options,
    group: *mut *mut dfly_group,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(group, || match self::options(options, "dfly_group_options")? {
                Some(options) => dfly_group::join(&invitation(&options)?),
                None => match Invitation::from_environment()? {
                    Some(invitation) => dfly_group::join(&invitation),
                    None => dfly_group::alone(),
                },
            })
        }?;
        Ok(())
    })
}

/// Returns this process's rank, counted from 0; DFLY_NO_RANK if `group` is NULL.
///
/// # Safety
/// `group` is NULL or a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_rank(group: *const dfly_group) -> u32 {
    // SAFETY: as the caller promises.
    value(DFLY_NO_RANK, || Ok(unsafe { get(group) }?.state.communicator.rank()))
}

/// Returns the number of ranks; 0 if `group` is NULL.
///
/// # Safety
/// `group` is NULL or a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_size(group: *const dfly_group) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(group) }?.state.communicator.size()))
}

/// Translates a rank of a part into the rank in the group that the process joined. `member` receives it.
///
/// # Safety
/// `group` is a group, `member` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_member(group: *const dfly_group, rank: u32, member: *mut u32) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let communicator = unsafe { &get(group)?.state.communicator };
        let found = communicator.members().get(rank as usize);
        let found =
            found.ok_or_else(|| misuse(format!("there is no rank {rank} in a group of {}", communicator.size())))?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(member, "the place for the rank", *found) }?)
    })
}

/// Splits a group. Ranks with the same colour form a part, ordered by key and then by rank. A rank with colour
/// DFLY_NO_COLOR belongs to no part and receives NULL. All ranks must call it. `part` receives the part; free it with
/// `dfly_group_free`.
///
/// # Safety
/// `group` is a group, `part` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_split(
    group: *const dfly_group,
    color: u32,
    key: i64,
    part: *mut *mut dfly_group,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let whole = unsafe { get(group) }?;
        // SAFETY: as the caller promises.
        unsafe { put_required(part, "the place for the new handle", std::ptr::null_mut()) }?;
        let color = (color != DFLY_NO_COLOR).then_some(color);
        let Some(found) = whole.state.communicator.split(color, key).map_err(Error)? else {
            return Ok(());
        };
        // SAFETY: as the caller promises.
        unsafe { give(part, || Ok(whole.part(found))) }?;
        Ok(())
    })
}

/// Makes another group of the same ranks, whose messages are separate. All ranks must call it. `copy` receives the
/// group; free it with `dfly_group_free`.
///
/// # Safety
/// `group` is a group, `copy` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_dup(group: *const dfly_group, copy: *mut *mut dfly_group) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(copy, || {
                let whole = get(group)?;
                Ok(whole.part(whole.state.communicator.dup()?))
            })
        }?;
        Ok(())
    })
}

/// Makes a group of the surviving ranks, after they agree on which ranks are lost. All surviving ranks must call it.
/// `rest` receives the group; free it with `dfly_group_free`.
///
/// # Safety
/// `group` is a group, `rest` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_shrink(group: *const dfly_group, rest: *mut *mut dfly_group) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(rest, || {
                let whole = get(group)?;
                Ok(whole.part(whole.state.communicator.shrink()?))
            })
        }?;
        Ok(())
    })
}

/// Frees a group. This rank leaves when its last part and request are freed. The others treat this as a normal end; a
/// process that exits without it is a lost rank for every rank that still waits for it. NULL is a no-op.
///
/// # Safety
/// `group` is NULL or a group that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_free(group: *mut dfly_group) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(group) });
        Ok(())
    });
}
