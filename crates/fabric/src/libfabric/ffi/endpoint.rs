//! One endpoint with its domain, completion queue and address vector: the fabric resources of a channel.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::*;
use super::library::{Library, Provider, undisturbed};
use crate::libfabric::FabricError;

/// Longest name of an endpoint, in bytes.
pub const NAME_BYTES: usize = 256;

/// Whether a caller will ever sleep on the endpoint. If so, some providers signal each completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// With a descriptor to block on, if the provider has one.
    Descriptor,
    /// Polled only.
    Never,
}

/// Address and key of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// Address in the peer's provider.
    pub address: u64,
    /// Key of the region.
    pub key: u64,
}

impl Target {
    /// Returns the target `bytes` further on.
    pub fn plus(self, bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

/// An object of libfabric, closed when dropped.
struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    fn fid(&self) -> *mut Fid {
        // Every object begins with its `Fid`.
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let fid = self.fid();
        // SAFETY: an open object, closed once; the order of fields below closes what depends on others first.
        unsafe { ((*(*fid).ops).close)(fid) };
    }
}

/// Objects that must stay open as long as anything made from them. Fields are closed in this order.
struct Base {
    domain: Object<DomainFid>,
    fabric: Object<FabricFid>,
    provider: Provider,
}

// SAFETY: accessed only through the endpoint, which one thread uses at a time; other holders only close it.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// Registered memory. The memory must outlive it.
pub struct Region {
    mr: Object<MrFid>,
    start: u64,
    _base: Arc<Base>,
}

impl Region {
    /// Returns the remote address of its first byte.
    pub fn target(&self) -> Target {
        Target {
            address: self.start,
            // SAFETY: an open registration.
            key: unsafe { self.mr.0.as_ref() }.key,
        }
    }

    /// Returns the local provider's descriptor of the memory.
    pub fn descriptor(&self) -> *mut c_void {
        // SAFETY: an open registration.
        unsafe { self.mr.0.as_ref() }.mem_desc
    }
}

/// An endpoint and its resources. Fields are closed in this order.
pub struct Endpoint {
    ep: Object<EpFid>,
    cq: Object<CqFid>,
    av: Object<AvFid>,
    base: Arc<Base>,
    wait: Option<Arc<OwnedFd>>,
    peer: u64,
    next_key: u64,
}

// SAFETY: a domain that is used by one thread at a time may be used by one after another (FI_THREAD_DOMAIN); everything
// that reaches it takes `&mut self` or belongs to one link.
unsafe impl Send for Endpoint {}
// SAFETY: as above; a region belongs to the link that has its endpoint.
unsafe impl Send for Region {}

impl Endpoint {
    /// Opens an endpoint with a queue for at least `completions` entries. `seed` makes its keys hard to guess.
    pub fn open(provider: Provider, completions: usize, wait: Wait, seed: u64) -> Result<Self, FabricError> {
        undisturbed(|| Self::open_disturbing(provider, completions, wait, seed))
    }

    fn open_disturbing(provider: Provider, completions: usize, wait: Wait, seed: u64) -> Result<Self, FabricError> {
        let library = provider.library();
        let info = provider.raw();
        let failed = |what: &'static str| move |error: c_int| library.failed(what, error);
        // SAFETY: attributes as the library filled them in; each call writes one pointer, and returns 0 if it did.
        unsafe {
            let fabric =
                made(|to| (library.fabric)((*info).fabric_attr, to, null())).map_err(failed("open a fabric"))?;
            let ops = (*fabric.0.as_ptr()).ops;
            let domain =
                made(|to| ((*ops).domain)(fabric.0.as_ptr(), info, to, null())).map_err(failed("open a domain"))?;
            let ops = (*domain.0.as_ptr()).ops;
            let mut attributes = AvAttr {
                kind: (*(*info).domain_attr).av_type,
                rx_ctx_bits: 0,
                count: 1,
                ep_per_node: 0,
                name: std::ptr::null(),
                map_addr: null(),
                flags: 0,
            };
            let av = made(|to| ((*ops).av_open)(domain.0.as_ptr(), &mut attributes, to, null()))
                .map_err(failed("open an address vector"))?;
            let (cq, wait) = queue(&domain, completions, wait).map_err(failed("open a completion queue"))?;
            let ep = made(|to| ((*ops).endpoint)(domain.0.as_ptr(), info, to, null()))
                .map_err(failed("open an endpoint"))?;
            let bind = |fid, flags| done(((*(*ep.fid()).ops).bind)(ep.fid(), fid, flags));
            bind(av.fid(), 0)
                .and_then(|()| bind(cq.fid(), FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
                .and_then(|()| done(((*(*ep.fid()).ops).control)(ep.fid(), FI_ENABLE, null())))
                .map_err(failed("enable an endpoint"))?;
            Ok(Self {
                ep,
                cq,
                av,
                base: Arc::new(Base {
                    domain,
                    fabric,
                    provider,
                }),
                wait: wait.map(Arc::new),
                peer: 0,
                next_key: seed,
            })
        }
    }

    /// Provider of the endpoint.
    pub fn provider(&self) -> &Provider {
        &self.base.provider
    }

    /// Descriptor to block on, if there is one.
    pub fn wait_descriptor(&self) -> Option<&Arc<OwnedFd>> {
        self.wait.as_ref()
    }

    /// Returns the name by which the peer addresses the endpoint.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES];
        let mut length = name.len();
        // SAFETY: an open endpoint; at most `length` bytes are written.
        let result = unsafe {
            let cm = (*self.ep.0.as_ptr()).cm;
            ((*cm).getname)(self.ep.fid(), name.as_mut_ptr().cast(), &mut length)
        };
        done(result).map_err(|error| self.failed("name an endpoint", error))?;
        name.truncate(length);
        Ok(name)
    }

    /// Sets the endpoint that later writes go to, by its name of at most [`NAME_BYTES`].
    pub fn connect(&mut self, name: &[u8]) -> Result<(), FabricError> {
        // Providers read as many bytes of a name as their address format has.
        let mut padded = [0u8; NAME_BYTES];
        let length = name.len().min(NAME_BYTES);
        padded[..length].copy_from_slice(&name[..length]);
        let mut peer = 0;
        // SAFETY: an open vector, one name with room behind it, and one address to write.
        let inserted = unsafe {
            let ops = (*self.av.0.as_ptr()).ops;
            ((*ops).insert)(self.av.0.as_ptr(), padded.as_ptr().cast(), 1, &mut peer, 0, null())
        };
        if inserted != 1 {
            return Err(self.failed("learn the peer's address", -inserted.min(0)));
        }
        self.peer = peer;
        Ok(())
    }

    /// Registers memory that the peer may write and that we may send from.
    ///
    /// # Safety
    /// The memory must be mapped as long as the region is registered, and must be expected to change at any moment.
    pub unsafe fn register(&mut self, start: *mut u8, length: usize) -> Result<Region, FabricError> {
        // SAFETY: attributes of the provider that opened the domain.
        let (mode, key_bytes) = unsafe {
            let domain = &*self.base.provider.info().domain_attr;
            (domain.mr_mode, domain.mr_key_size)
        };
        self.next_key = self.next_key.wrapping_add(1);
        let key = match key_bytes {
            0..8 => self.next_key & ((1 << (8 * key_bytes)) - 1),
            _ => self.next_key,
        };
        let access = FI_WRITE | FI_REMOTE_WRITE;
        // SAFETY: an open domain; the caller promises the memory.
        let mr = unsafe {
            let domain = self.base.domain.0.as_ptr();
            made(|to| ((*(*domain).mr).reg)(domain.cast(), start.cast(), length, access, 0, key, 0, to, null()))
        };
        let mr: Object<MrFid> = mr.map_err(|error| self.failed("register memory", error))?;
        if mode & FI_MR_ENDPOINT != 0 {
            // SAFETY: both are open.
            let bound = unsafe {
                let ops = (*mr.fid()).ops;
                done(((*ops).bind)(mr.fid(), self.ep.fid(), 0))
                    .and_then(|()| done(((*ops).control)(mr.fid(), FI_ENABLE, null())))
            };
            bound.map_err(|error| self.failed("bind memory to an endpoint", error))?;
        }
        // SAFETY: an open registration.
        if unsafe { mr.0.as_ref() }.key == FI_KEY_NOTAVAIL {
            return Err(self.failed("get a key for memory", libc::EOPNOTSUPP));
        }
        let start = if mode & FI_MR_VIRT_ADDR != 0 { start as u64 } else { 0 };
        Ok(Region {
            mr,
            start,
            _base: self.base.clone(),
        })
    }

    /// Whether memory must be registered before it is sent.
    pub fn sends_registered(&self) -> bool {
        // SAFETY: attributes of the provider that opened the domain.
        unsafe { (*self.base.provider.info().domain_attr).mr_mode & FI_MR_LOCAL != 0 }
    }

    /// Writes bytes with a notice. The provider copies them at once. Returns false if it cannot take them now.
    #[inline]
    pub fn inject(&mut self, bytes: &[u8], to: Target, notice: u32) -> Result<bool, FabricError> {
        let ep = self.ep.0.as_ptr();
        // SAFETY: an open endpoint, whose operations the provider may exchange, so they are looked up for each call.
        // The bytes are read before it returns.
        let sent = unsafe {
            let data = u64::from(notice);
            ((*(*ep).rma).injectdata)(
                ep,
                bytes.as_ptr().cast(),
                bytes.len(),
                data,
                self.peer,
                to.address,
                to.key,
            )
        };
        self.taken(sent)
    }

    /// Writes bytes with a notice and without a local completion. Returns false if the provider cannot take them now.
    ///
    /// # Safety
    /// The bytes must not change until the peer has received them, and the context must live until the endpoint is
    /// closed.
    #[inline]
    pub unsafe fn write(
        &mut self,
        bytes: &[u8],
        from: Option<&Region>,
        to: Target,
        notice: u32,
        context: *mut Context,
    ) -> Result<bool, FabricError> {
        let ep = self.ep.0.as_ptr();
        let descriptor = from.map_or(null(), Region::descriptor);
        // SAFETY: an open endpoint; the caller promises the bytes and the context.
        let sent = unsafe {
            ((*(*ep).rma).writedata)(
                ep,
                bytes.as_ptr().cast(),
                bytes.len(),
                descriptor,
                notice.into(),
                self.peer,
                to.address,
                to.key,
                context.cast(),
            )
        };
        self.taken(sent)
    }

    /// Like [`Endpoint::write`], with a completion of this context once the bytes may change again.
    ///
    /// # Safety
    /// Bytes and context must stay unchanged until that completion, or until the endpoint is closed.
    pub unsafe fn write_and_tell(
        &mut self,
        bytes: &[u8],
        from: Option<&Region>,
        to: Target,
        notice: u32,
        context: *mut Context,
    ) -> Result<bool, FabricError> {
        let ep = self.ep.0.as_ptr();
        let local = Iovec {
            base: bytes.as_ptr().cast(),
            length: bytes.len(),
        };
        let remote = RmaIov {
            address: to.address,
            length: bytes.len(),
            key: to.key,
        };
        let mut descriptor = from.map_or(null(), Region::descriptor);
        let message = RmaMessage {
            iov: &local,
            descriptors: &mut descriptor,
            iov_count: 1,
            peer: self.peer,
            rma_iov: &remote,
            rma_iov_count: 1,
            context: context.cast(),
            data: notice.into(),
        };
        // SAFETY: an open endpoint; the message is read before the call returns, and the caller promises the rest.
        let sent = unsafe { ((*(*ep).rma).writemsg)(ep, &message, FI_COMPLETION | FI_REMOTE_CQ_DATA) };
        self.taken(sent)
    }

    #[inline]
    fn taken(&self, result: isize) -> Result<bool, FabricError> {
        match result {
            0 => Ok(true),
            error if error == -FI_EAGAIN => Ok(false),
            error => Err(self.failed("write", -error as c_int)),
        }
    }

    /// Drives the provider and reads completions. Returns the number of entries written.
    #[inline]
    pub fn read(&mut self, entries: &mut [Entry]) -> Result<usize, FabricError> {
        let cq = self.cq.0.as_ptr();
        // SAFETY: an open queue of this format, and room for that many entries.
        let count = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), entries.len()) };
        self.read_so_many(count, entries.len())
    }

    /// Like [`Endpoint::read`], but blocks for a millisecond if there is none. In version 1.17, `net` clears the event
    /// of its descriptor only this way, and not when asked whether one may sleep.
    pub fn read_slowly(&mut self, entries: &mut [Entry]) -> Result<usize, FabricError> {
        let cq = self.cq.0.as_ptr();
        // SAFETY: as above.
        let count =
            unsafe { ((*(*cq).ops).sread)(cq, entries.as_mut_ptr().cast(), entries.len(), std::ptr::null(), 1) };
        self.read_so_many(count, entries.len())
    }

    #[inline]
    fn read_so_many(&mut self, count: isize, most: usize) -> Result<usize, FabricError> {
        match count {
            0.. => Ok((count as usize).min(most)),
            // An interrupted wait counts as no completion.
            error if [-FI_EAGAIN, -FI_EINTR].contains(&error) => Ok(0),
            error if error == -FI_EAVAIL => Err(self.error()),
            error => Err(self.failed("read completions", -error as c_int)),
        }
    }

    #[cold]
    fn error(&mut self) -> FabricError {
        let cq = self.cq.0.as_ptr();
        // SAFETY: every member may be zero, and zero room asks for no further data.
        let mut entry: ErrorEntry = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue, and an entry with room for what any version writes.
        let read = unsafe { ((*(*cq).ops).readerr)(cq, &mut entry, 0) };
        match read {
            1.. => self.failed("write or receive", entry.err),
            error => self.failed("read an error", -error as c_int),
        }
    }

    /// Whether a caller may now block on the descriptor without missing an event. If not, there is something to read.
    pub fn may_sleep(&mut self) -> bool {
        let mut fids = [self.cq.fid()];
        let fabric = self.base.fabric.0.as_ptr();
        // SAFETY: an open fabric and one queue of it.
        unsafe { ((*(*fabric).ops).trywait)(fabric, fids.as_mut_ptr(), 1) == 0 }
    }

    fn failed(&self, what: &'static str, error: c_int) -> FabricError {
        self.base.provider.library().failed(what, error)
    }
}

impl Library {
    #[cold]
    fn failed(&self, what: &'static str, error: c_int) -> FabricError {
        FabricError::Failed {
            what,
            error,
            text: self.text(error),
        }
    }
}

fn null() -> *mut c_void {
    std::ptr::null_mut()
}

fn done(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(-result) }
}

/// Creates an object, or returns the library's error.
fn made<T>(make: impl FnOnce(*mut *mut T) -> c_int) -> Result<Object<T>, c_int> {
    let mut object = std::ptr::null_mut();
    match make(&mut object) {
        0 => NonNull::new(object).map(Object).ok_or(libc::EIO),
        error => Err(-error),
    }
}

/// Creates a queue to block on, if wanted and supported, else a queue to poll.
fn queue(domain: &Object<DomainFid>, size: usize, wait: Wait) -> Result<(Object<CqFid>, Option<OwnedFd>), c_int> {
    let open = |wait_obj| {
        let mut attributes = CqAttr {
            size,
            flags: 0,
            format: FI_CQ_FORMAT_DATA,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null(),
        };
        // SAFETY: an open domain; the attributes are read before the call returns.
        unsafe {
            let ops = (*domain.0.as_ptr()).ops;
            made(|to| ((*ops).cq_open)(domain.0.as_ptr(), &mut attributes, to, null()))
        }
    };
    if wait == Wait::Descriptor
        && let Ok(queue) = open(FI_WAIT_FD)
    {
        let mut descriptor: c_int = -1;
        // SAFETY: an open queue, which writes its descriptor.
        let asked =
            unsafe { ((*(*queue.fid()).ops).control)(queue.fid(), FI_GETWAIT, (&mut descriptor as *mut c_int).cast()) };
        if asked == 0 && descriptor >= 0 {
            // SAFETY: the queue is open, and its descriptor with it.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            // Duplicate the descriptor, so that a sleeper without the queue can block on it.
            if let Ok(copy) = borrowed.try_clone_to_owned() {
                return Ok((queue, Some(copy)));
            }
        }
    }
    open(FI_WAIT_NONE).map(|queue| (queue, None))
}
