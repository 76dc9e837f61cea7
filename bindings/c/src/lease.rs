//! Leases, and the code that their workers run.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::time::Duration;

use dayfly_client::{
    Choice, ChoiceError, Code, CodeHash, Error, Form, Lease, LeaseOptions, MilliCores, Mode, Sandbox, Transport,
};

use crate::client::dfly_client;
use crate::handle::{Birth, Handle, bytes, get, give, optional_path, optional_text, options, put_required, take, text};
use crate::status::{dfly_status, guard, misuse, value};

/// Hot if the node has cores to reserve, else warm. `dfly_lease_is_hot` returns which.
pub const DFLY_MODE_AUTO: u32 = 0;
/// Each worker owns its cores and polls.
pub const DFLY_MODE_HOT: u32 = 1;
/// Workers sleep until woken, and share cores.
pub const DFLY_MODE_WARM: u32 = 2;

/// The fastest available transport: shared memory on the same host, TCP over the loopback interface, else TLS.
pub const DFLY_TRANSPORT_BEST: u32 = 0;
/// Shared memory, on the same host.
pub const DFLY_TRANSPORT_SHM: u32 = 1;
/// TCP without encryption, over the loopback interface or where the site trusts its network.
pub const DFLY_TRANSPORT_TCP: u32 = 2;
/// TCP with TLS 1.3.
pub const DFLY_TRANSPORT_TLS: u32 = 3;
/// Remote memory access with libfabric, if the node offers it.
pub const DFLY_TRANSPORT_LIBFABRIC: u32 = 4;

/// `uint32_t f(void *in, uint32_t size, void *out)`, which returns the number of bytes written.
pub const DFLY_FORM_PLAIN: u32 = 0;
/// `int32_t f(dfly_context *, const void *in, size_t in_len, void *out, size_t out_capacity, size_t *out_len)`.
pub const DFLY_FORM_CHECKED: u32 = 1;

/// The site's policy chooses the sandbox.
pub const DFLY_SANDBOX_SITE: u32 = 0;
/// Processes of the node's own user, for trusted code.
pub const DFLY_SANDBOX_PROCESS: u32 = 1;
/// No privileges, no network, no files except programs and libraries, bounded memory: for untrusted code.
pub const DFLY_SANDBOX_ISOLATED: u32 = 2;
/// As DFLY_SANDBOX_ISOLATED, with an image in place of the host's programs and libraries.
pub const DFLY_SANDBOX_CONTAINER: u32 = 3;

/// No limit, for a time in milliseconds or microseconds.
pub const DFLY_FOR_EVER: u32 = 4294967295;

/// Options of a lease. Initialise with `dfly_lease_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_lease_options {
    /// Set by `dfly_lease_options_init`.
    pub size: usize,
    /// Number of workers. Default: 1.
    pub workers: u32,
    /// Whole cores of each worker. Default: 1.
    pub cores_per_worker: u32,
    /// GPUs of each worker, set in its CUDA_VISIBLE_DEVICES. Default: 0.
    pub gpus_per_worker: u32,
    /// Thousandths of a core of each worker beside `cores_per_worker`: 0 and 500 are half a core. Default: 0. Workers with
    /// a part of a core are warm.
    pub milli_cores_per_worker: u32,
    /// Memory of the whole lease, in bytes. Default: 0, the node's usual share.
    pub memory_bytes: u64,
    /// Duration from the first use, in milliseconds. Default: one hour.
    pub duration_ms: u64,
    /// How long the lease outlives its last channel, in milliseconds; 0 for its whole duration. Default: 10 seconds.
    pub idle_release_ms: u64,
    /// DFLY_MODE_AUTO, DFLY_MODE_HOT or DFLY_MODE_WARM.
    pub mode: u32,
    /// How long a hot worker polls after a call before it sleeps, in milliseconds. Default: DFLY_FOR_EVER.
    pub hot_for_ms: u32,
    /// DFLY_SANDBOX_SITE, DFLY_SANDBOX_PROCESS, DFLY_SANDBOX_ISOLATED or DFLY_SANDBOX_CONTAINER.
    pub sandbox: u32,
    /// How long a warm worker polls after a call before it sleeps, in microseconds; at most 10,000. Default: 0.
    pub poll_for_us: u32,
    /// Name or path of a container image that the site allows. NULL for the site's first, or for no container.
    pub image: *const c_char,
}

/// Identity of code: the SHA-256 hash of its bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_code {
    /// SHA-256 hash.
    pub hash: [u8; 32],
}

/// The right to use some workers. Thread-safe. The lease is released when the handle and all its channels and pools are
/// freed.
pub struct dfly_lease {
    birth: Birth,
    pub(crate) lease: Lease,
}

impl dfly_lease {
    pub(crate) fn new(lease: Lease) -> Self {
        let birth = Birth::now();
        Self { birth, lease }
    }
}

impl Handle for dfly_lease {
    const NAME: &'static str = "lease";
    fn birth(&self) -> Birth {
        self.birth
    }
}

pub(crate) fn narrow(number: u32, what: &str) -> Result<u16, Error> {
    u16::try_from(number).map_err(|_| misuse(format!("{number} {what}: at most {}", u16::MAX)))
}

pub(crate) fn sandbox(number: u32) -> Result<Option<Sandbox>, Error> {
    Ok(match number {
        DFLY_SANDBOX_SITE => None,
        DFLY_SANDBOX_PROCESS => Some(Sandbox::Process),
        DFLY_SANDBOX_ISOLATED => Some(Sandbox::Isolated),
        DFLY_SANDBOX_CONTAINER => Some(Sandbox::Container),
        other => return Err(misuse(format!("there is no sandbox {other}: see DFLY_SANDBOX_SITE"))),
    })
}

pub(crate) fn mode(number: u32) -> Result<Mode, Error> {
    Ok(match number {
        DFLY_MODE_AUTO => Mode::Auto,
        DFLY_MODE_HOT => Mode::Hot,
        DFLY_MODE_WARM => Mode::Warm,
        other => {
            return Err(misuse(format!(
                "there is no mode {other}: see DFLY_MODE_AUTO, _HOT, _WARM"
            )));
        }
    })
}

fn worker_cores(whole: u32, thousandths: u32) -> Result<MilliCores, Error> {
    let whole: u16 = narrow(whole, "cores of a worker")?;
    let cores = MilliCores::from(whole)
        .plus(MilliCores::new(thousandths.into()))
        .for_worker();
    cores.map_err(|error| misuse(error.to_string()))
}

/// # Safety
/// The image is a C string, unless it is null.
pub(crate) unsafe fn lease_options(options: dfly_lease_options) -> Result<LeaseOptions, Error> {
    // SAFETY: as the caller promises.
    let image = unsafe { optional_text(options.image, "the image") }?;
    let hot_for = Duration::from_millis(options.hot_for_ms.into());
    Ok(LeaseOptions {
        cores_per_worker: worker_cores(options.cores_per_worker, options.milli_cores_per_worker)?,
        gpus_per_worker: narrow(options.gpus_per_worker, "GPUs of a worker")?,
        memory_bytes: options.memory_bytes,
        duration: Duration::from_millis(options.duration_ms),
        mode: mode(options.mode)?,
        hot_for: (options.hot_for_ms != DFLY_FOR_EVER).then_some(hot_for),
        poll_for: Duration::from_micros(options.poll_for_us.into()),
        idle_release: Duration::from_millis(options.idle_release_ms),
        sandbox: sandbox(options.sandbox)?,
        image: image.map(Into::into),
        ..LeaseOptions::native(narrow(options.workers, "workers")?)
    })
}

pub(crate) fn transport(number: u32, fabric: Option<&str>) -> Result<Option<Transport>, Error> {
    if fabric.is_some() && number != DFLY_TRANSPORT_LIBFABRIC {
        return Err(misuse("a fabric is for DFLY_TRANSPORT_LIBFABRIC".to_owned()));
    }
    Ok(Some(match number {
        DFLY_TRANSPORT_BEST => return Ok(None),
        DFLY_TRANSPORT_SHM => Transport::Shm,
        DFLY_TRANSPORT_TCP => Transport::Tcp,
        DFLY_TRANSPORT_TLS => Transport::Tls,
        DFLY_TRANSPORT_LIBFABRIC => Transport::Libfabric(match fabric {
            None => Choice::ANY,
            Some(name) => name.parse().map_err(|error: ChoiceError| misuse(error.to_string()))?,
        }),
        other => {
            return Err(misuse(format!(
                "there is no transport {other}: see DFLY_TRANSPORT_BEST"
            )));
        }
    }))
}

pub(crate) fn transport_number(transport: Transport) -> u32 {
    match transport {
        Transport::Shm => DFLY_TRANSPORT_SHM,
        Transport::Tcp => DFLY_TRANSPORT_TCP,
        Transport::Tls => DFLY_TRANSPORT_TLS,
        Transport::Libfabric(_) => DFLY_TRANSPORT_LIBFABRIC,
        Transport::Inproc => DFLY_TRANSPORT_BEST,
    }
}

pub(crate) fn read_library(path: Option<&Path>) -> Result<Vec<u8>, Error> {
    let path = path.ok_or_else(|| misuse("the library's path is NULL"))?;
    std::fs::read(path)
        .map_err(|error| Error::new(Code::NotFound, format!("{} cannot be read: {error}", path.display())))
}

/// # Safety
/// `code` points to a code and `symbol` to a C string, unless they are null.
pub(crate) unsafe fn function(
    code: *const dfly_code,
    symbol: *const c_char,
    form: u32,
) -> Result<(CodeHash, Form), Error> {
    // SAFETY: as the caller promises.
    let code = unsafe { code.as_ref() }.ok_or_else(|| misuse("the code is NULL"))?;
    // SAFETY: as the caller promises.
    let symbol = unsafe { text(symbol, "the symbol") }?.to_owned();
    let form = match form {
        DFLY_FORM_PLAIN => Form::Plain { symbol },
        DFLY_FORM_CHECKED => Form::Checked { symbol },
        other => {
            return Err(misuse(format!(
                "there is no form {other}: see DFLY_FORM_PLAIN, DFLY_FORM_CHECKED"
            )));
        }
    };
    Ok((CodeHash(code.hash), form))
}

pub(crate) fn default_lease_options() -> dfly_lease_options {
    dfly_lease_options {
        size: size_of::<dfly_lease_options>(),
        workers: 1,
        cores_per_worker: 1,
        gpus_per_worker: 0,
        milli_cores_per_worker: 0,
        memory_bytes: 0,
        duration_ms: 3_600_000,
        idle_release_ms: 10_000,
        mode: DFLY_MODE_AUTO,
        sandbox: DFLY_SANDBOX_SITE,
        hot_for_ms: DFLY_FOR_EVER,
        poll_for_us: 0,
        image: std::ptr::null(),
    }
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_options_init(options: *mut dfly_lease_options) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", default_lease_options()) }?))
}

/// Leases workers. `options` may be NULL for the defaults: one worker for one hour. `lease` receives the lease; free it
/// with `dfly_lease_free`. Errors: DFLY_NO_CAPACITY, DFLY_TOO_LARGE, DFLY_QUOTA_EXCEEDED, DFLY_UNREACHABLE, and
/// DFLY_ISOLATION_UNAVAILABLE for a sandbox that the node does not offer.
///
/// # Safety
/// `client` is a client, `options` NULL or options, `lease` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_open(
    client: *const dfly_client,
    options: *const dfly_lease_options,
    lease: *mut *mut dfly_lease,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(lease, || {
                let client = get(client)?;
                let options = match self::options(options, "dfly_lease_options")? {
                    Some(options) => lease_options(options)?,
                    None => LeaseOptions::native(1),
                };
                Ok(dfly_lease::new(client.client.lease(options)?))
            })
        }?;
        Ok(())
    })
}

/// Sends the shared library at `path` to the node, unless the node already has it. `code` receives its identity.
///
/// # Safety
/// `lease` is a lease, `path` a C string, `code` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_load_library(
    lease: *const dfly_lease,
    path: *const c_char,
    code: *mut dfly_code,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (lease, path) = unsafe { (get(lease)?, optional_path(path, "the library's path")?) };
        let hash = lease.lease.put_code(&read_library(path)?)?.0;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(code, "the place for the code", dfly_code { hash }) }?)
    })
}

/// As `dfly_lease_load_library`, for `length` bytes in memory.
///
/// # Safety
/// `lease` is a lease, `data` points to `length` bytes, `code` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_load_bytes(
    lease: *const dfly_lease,
    data: *const c_void,
    length: usize,
    code: *mut dfly_code,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (lease, data) = unsafe { (get(lease)?, bytes(data, length)?) };
        let hash = lease.lease.put_code(data)?.0;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(code, "the place for the code", dfly_code { hash }) }?)
    })
}

/// Sets the lease's remaining duration, in milliseconds from now. Errors: DFLY_LEASE_EXPIRED or DFLY_LEASE_ENDED if it
/// is over.
///
/// # Safety
/// `lease` is a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_renew(lease: *const dfly_lease, duration_ms: u64) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(lease) }?.lease.renew(Duration::from_millis(duration_ms))?))
}

/// Releases the workers now. Closes all channels, and stops running calls.
///
/// # Safety
/// `lease` is a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_release(lease: *const dfly_lease) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(lease) }?.lease.release()?))
}

/// Returns the number of workers; 0 if `lease` is NULL.
///
/// # Safety
/// `lease` is NULL or a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_workers(lease: *const dfly_lease) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(lease) }?.lease.workers().into()))
}

/// Returns whether the workers poll on cores of their own; false if `lease` is NULL.
///
/// # Safety
/// `lease` is NULL or a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_is_hot(lease: *const dfly_lease) -> bool {
    // SAFETY: as the caller promises.
    value(false, || Ok(unsafe { get(lease) }?.lease.is_hot()))
}

/// Returns the default transport for channels of this lease.
///
/// # Safety
/// `lease` is NULL or a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_transport(lease: *const dfly_lease) -> u32 {
    value(DFLY_TRANSPORT_BEST, || {
        // SAFETY: as the caller promises.
        Ok(transport_number(unsafe { get(lease) }?.lease.best_transport()))
    })
}

/// Frees the handle. The lease is released when its channels and pools are freed too. NULL is a no-op.
///
/// # Safety
/// `lease` is NULL or a lease that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_free(lease: *mut dfly_lease) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(lease) });
        Ok(())
    });
}
