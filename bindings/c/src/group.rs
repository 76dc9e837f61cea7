//! Groups: programs whose ranks talk to each other.

use std::ffi::c_char;
use std::sync::Arc;

use dayfly_client::Error;
use dayfly_comm::membership::Membership;
use dayfly_comm::road::Lost;
use dayfly_comm::{Channel, Communicator, Invitation, Options, World};

use crate::handle::{Birth, Handle, get, give, optional_text, options, put_required, take, text};
use crate::lease::DFLY_FOR_EVER;
use crate::status::{dfly_status, guard, misuse, value};

/// Any rank, as a source of messages; also: whichever rank is free, in `dfly_group_options`.
pub const DFLY_ANY_RANK: u32 = 4294967295;
/// No rank: what is sent there goes nowhere, and nothing is received from it.
pub const DFLY_NO_RANK: u32 = 4294967294;
/// No part, in `dfly_group_split`.
pub const DFLY_NO_COLOR: u32 = 4294967295;

/// How a process finds its group where `dayfly run` has not started it. Initialise with `dfly_group_options_init`, then set
/// `rendezvous`, `name`, `secret` and `ranks`, and change what else you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_group_options {
    /// Set by `dfly_group_options_init`.
    pub size: usize,
    /// Where the rendezvous is: `host:port`. A manager has one, `dayfly rendezvous` is one.
    pub rendezvous: *const c_char,
    /// Its key, in hexadecimal, as `dayfly rendezvous` prints it; NULL trusts whoever answers not to keep the ranks apart.
    pub key: *const c_char,
    /// Name of the group.
    pub name: *const c_char,
    /// Which run of it: ranks of one do not meet those of another; NULL for none.
    pub run: *const c_char,
    /// What all ranks know and nobody else: at least 16 bytes, in hexadecimal.
    pub secret: *const c_char,
    /// How many ranks the group has.
    pub ranks: u32,
    /// Which one this is; DFLY_ANY_RANK for any that is free.
    pub rank: u32,
    /// Seconds within which all ranks must have come and be connected.
    pub patience_s: u32,
    /// Seconds that one operation may take.
    pub deadline_s: u32,
    /// How long a rank that waits polls before it sleeps, in microseconds; DFLY_FOR_EVER for ever, and for not
    /// at all where it waits for a store.
    pub spin_us: u32,
    /// 1 if nobody listens between the hosts, so that nothing is encrypted; else 0.
    pub trust_fabric: u32,
    /// URL of a store for ranks that reach each other in no other way: `s3://bucket/prefix`, `redis://host:port`, `rediss://` or
    /// `file:///directory`; NULL for none. The same for all ranks.
    pub store: *const c_char,
    /// `direct`, or `stored` for ranks that exchange through the store alone; NULL for `direct`. The same for all ranks.
    pub channel: *const c_char,
    /// Provider of libfabric over which ranks on different hosts exchange, where both have it, such as `verbs`; NULL for none.
    /// The same for all ranks, and with `trust_fabric`.
    pub fabric: *const c_char,
    /// 1 if two ranks are connected when one of them first needs the other, instead of all with all at the start; else 0. The same
    /// for all ranks.
    pub lazily: u32,
}

/// What all communicators of a rank are of.
pub struct Place {
    // In this order: ranks say good-bye to each other before they leave the group.
    pub communicator: Communicator,
    membership: Option<Arc<Membership>>,
}

/// Ranks that exchange messages and compute together, seen from one of them. Any thread may use it, one at a time; others
/// wait meanwhile. Counts are of elements of a datatype (DFLY_F64 and so on).
///
/// The collectives, `dfly_group_barrier` to `dfly_group_exscan`, must be called by all ranks in the same order; those that do not
/// fit together fail with DFLY_MISMATCH, and a message that says what the ranks called. They return when this rank's part is
/// done if `request` is NULL; else they go on in the background, and all memory that they were given, but not the counts and
/// displacements, must stay until that request is over. What they read may lie where they write: it is copied first.
///
/// What needs a rank that is lost fails with DFLY_RANK_LOST, and a message that names it. What takes longer than the group's
/// deadline, an hour unless it is said, fails with DFLY_TIMED_OUT.
pub struct dfly_group {
    birth: Birth,
    pub(crate) place: Arc<Place>,
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
            place: Arc::new(Place {
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
        let alone = Communicator::form(0, 1, vec![None], Arc::new(Lost::default()), Options::default())?;
        Ok(Self::new(alone, None))
    }

    /// Some ranks of this group.
    fn part(&self, communicator: Communicator) -> Self {
        Self::new(communicator, self.place.membership.clone())
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
        // Whoever has one is told by its environment.
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
        lazily: options.lazily != 0,
        store: store.map(Into::into),
        channel: channel.map_or(Ok(Channel::Direct), Channel::from_name)?,
    })
}

/// Sets every option to its default.
///
/// # Safety
/// `options` is NULL or a place for options.
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
        lazily: 0,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

/// Joins a group, and returns when all its ranks are there and connected. NULL for `options` means the group that the
/// environment variable DAYFLY_GROUP names, which `dayfly run` sets for the programs that it starts; a process without it is
/// a group of one. A process joins a group once; `dfly_group_dup` makes another of the same ranks.
///
/// # Safety
/// `options` is NULL or options, `group` a place for a pointer.
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

/// This rank, counted from 0; DFLY_NO_RANK for NULL.
///
/// # Safety
/// `group` is NULL or a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_rank(group: *const dfly_group) -> u32 {
    // SAFETY: as the caller promises.
    value(DFLY_NO_RANK, || Ok(unsafe { get(group) }?.place.communicator.rank()))
}

/// How many ranks there are; 0 for NULL.
///
/// # Safety
/// `group` is NULL or a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_size(group: *const dfly_group) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(group) }?.place.communicator.size()))
}

/// Which rank of the group that was joined a rank of a part of it is.
///
/// # Safety
/// `group` is a group, `member` a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_member(group: *const dfly_group, rank: u32, member: *mut u32) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let communicator = unsafe { &get(group)?.place.communicator };
        let found = communicator.members().get(rank as usize);
        let found =
            found.ok_or_else(|| misuse(format!("there is no rank {rank} in a group of {}", communicator.size())))?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(member, "the place for the rank", *found) }?)
    })
}

/// Splits a group: all ranks that give the same colour are in one part, in the order of their keys, and of their ranks where
/// those are equal. Who gives DFLY_NO_COLOR is in none, and gets NULL. All ranks must call it.
///
/// # Safety
/// `group` is a group, `part` a place for a pointer.
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
        let Some(found) = whole.place.communicator.split(color, key).map_err(Error)? else {
            return Ok(());
        };
        // SAFETY: as the caller promises.
        unsafe { give(part, || Ok(whole.part(found))) }?;
        Ok(())
    })
}

/// Another group of the same ranks, whose messages do not mix with this one's. All ranks must call it.
///
/// # Safety
/// `group` is a group, `copy` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_dup(group: *const dfly_group, copy: *mut *mut dfly_group) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(copy, || {
                let whole = get(group)?;
                Ok(whole.part(whole.place.communicator.dup()?))
            })
        }?;
        Ok(())
    })
}

/// A group of the ranks that are left, on which they agree. All that are left must call it.
///
/// # Safety
/// `group` is a group, `rest` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_shrink(group: *const dfly_group, rest: *mut *mut dfly_group) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(rest, || {
                let whole = get(group)?;
                Ok(whole.part(whole.place.communicator.shrink()?))
            })
        }?;
        Ok(())
    })
}

/// Frees a group. With the last of its parts and requests this rank leaves: the others take that for the end of its work,
/// while a process that ends without it is a lost rank to whoever still waits for it. NULL is nothing.
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
