//! The library itself, opened when it is first wanted, and the providers that it has.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use super::abi::*;
use crate::libfabric::FabricError;

/// Name under which every version so far is found.
const FILE: &str = "libfabric.so.1";
/// From here on `tcp` has reliable datagram endpoints of its own; in 1.17 its successor was called `net`, and before that
/// `ofi_rxm` made them of others.
const TCP_IS_NET: u32 = version(1, 18);
/// What the remote completion data must be able to carry: [`crate::libfabric::notice`].
const DATA_BYTES: usize = 4;

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;

/// libfabric, as this process found it.
pub struct Library {
    pub version: u32,
    getinfo: GetInfo,
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FabricFid, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// Opens it, the first time that anybody asks. Never before a fork: it may start threads.
    pub fn get() -> Result<&'static Self, FabricError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let found = LIBRARY.get_or_init(Self::open);
        found.as_ref().map_err(|why| FabricError::Absent(why.clone()))
    }

    fn open() -> Result<Self, String> {
        // SAFETY: what its constructors do to this process beside setting up tables is undone.
        let file = undisturbed(|| unsafe { Loaded::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) })
            .map_err(|error| error.to_string())?;
        // SAFETY: each symbol has had the named type since the first version of the library. The library is never closed
        // (forgotten below), so the pointers stay good.
        let library = unsafe {
            let version: unsafe extern "C" fn() -> u32 = *file.get(b"fi_version\0").map_err(|e| e.to_string())?;
            Self {
                version: version(),
                getinfo: *file.get(b"fi_getinfo\0").map_err(|e| e.to_string())?,
                dupinfo: *file.get(b"fi_dupinfo\0").map_err(|e| e.to_string())?,
                freeinfo: *file.get(b"fi_freeinfo\0").map_err(|e| e.to_string())?,
                fabric: *file.get(b"fi_fabric\0").map_err(|e| e.to_string())?,
                strerror: *file.get(b"fi_strerror\0").map_err(|e| e.to_string())?,
            }
        };
        std::mem::forget(file);
        if library.version < API {
            let (major, minor) = (library.version >> 16, library.version & 0xffff);
            return Err(format!(
                "{FILE} is version {major}.{minor}, and 1.15 or later is needed"
            ));
        }
        Ok(library)
    }

    /// What an error number means.
    pub fn text(&self, error: c_int) -> String {
        // SAFETY: answers a string that lives as long as the library, or a null pointer.
        let text = unsafe { (self.strerror)(error) };
        // SAFETY: as above.
        unsafe { text_of(text) }.unwrap_or_else(|| format!("error {error}"))
    }

    /// Names under which a provider may go in this version, the best first.
    fn names(&self, wanted: &str) -> Vec<String> {
        match wanted {
            "tcp" if self.version < TCP_IS_NET => vec!["net".into(), "tcp;ofi_rxm".into()],
            other => vec![other.into()],
        }
    }

    /// The provider of this name, and of its domains the named one; else the one with this address, else its first.
    pub fn provider(
        &'static self,
        wanted: &str,
        domain: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<Provider, FabricError> {
        let mut seen = Vec::new();
        for name in self.names(wanted) {
            let Some(all) = self.ask(&name)? else { continue };
            let mut fitting: Vec<&Info> = all.iter().filter(|info| fits(info)).collect();
            seen.extend(fitting.iter().map(|info| domain_of(info)));
            if let Some(domain) = domain {
                fitting.retain(|info| domain_of(info) == domain);
            }
            let here = fitting
                .iter()
                .position(|info| address.is_some() && address_of(info) == address);
            if let Some(info) = fitting.get(here.unwrap_or(0)) {
                return self.copy(info);
            }
        }
        seen.dedup();
        Err(match (domain, seen.is_empty()) {
            (Some(domain), false) => FabricError::NoDomain {
                provider: wanted.into(),
                domain: domain.into(),
                found: seen.join(", "),
            },
            _ => FabricError::NoProvider {
                provider: wanted.into(),
                version: format!("{}.{}", self.version >> 16, self.version & 0xffff),
            },
        })
    }

    /// All that a provider of this name offers for what we do.
    fn ask(&'static self, name: &str) -> Result<Option<Infos>, FabricError> {
        let Ok(text) = CString::new(name) else { return Ok(None) };
        let hints = Infos(self.new_info()?, self);
        // SAFETY: the library made the structure with everything that it points to, and nobody else has it. The name is
        // freed with it by `free`, which is why it comes from `strdup`.
        unsafe {
            let info = &mut *hints.0.as_ptr();
            info.caps = FI_MSG | FI_RMA;
            info.mode = FI_CONTEXT | FI_CONTEXT2;
            (*info.ep_attr).kind = FI_EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            domain.threading = FI_THREAD_DOMAIN;
            domain.data_progress = FI_PROGRESS_MANUAL;
            domain.control_progress = FI_PROGRESS_MANUAL;
            (*info.fabric_attr).prov_name = libc::strdup(text.as_ptr());
        }
        let mut found = std::ptr::null_mut();
        // SAFETY: hints as the library made them; it writes one pointer.
        let result = undisturbed(|| unsafe {
            (self.getinfo)(API, std::ptr::null(), std::ptr::null(), 0, hints.0.as_ptr(), &mut found)
        });
        Ok(NonNull::new(found)
            .filter(|_| result == 0)
            .map(|found| Infos(found, self)))
    }

    fn new_info(&self) -> Result<NonNull<Info>, FabricError> {
        // SAFETY: a null pointer asks for an empty structure.
        NonNull::new(unsafe { (self.dupinfo)(std::ptr::null()) }).ok_or(FabricError::NoMemory)
    }

    fn copy(&'static self, info: &Info) -> Result<Provider, FabricError> {
        // SAFETY: copies a structure that the library made.
        let copy = NonNull::new(unsafe { (self.dupinfo)(info) }).ok_or(FabricError::NoMemory)?;
        Ok(Provider(Infos(copy, self)))
    }
}

/// What they take over: the end of a program, by whom or by what.
const TAKEN_OVER: [c_int; 11] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTERM,
];

/// Does something that loads other people's libraries, and puts back the signal handlers that those changed: the one for an old
/// kind of hardware, which libfabric of Debian brings along, takes over even those of Ctrl-C and of crashes; so does `shm`. Signals
/// that programs use for themselves are left alone: another thread may be about to set their handlers.
pub(super) fn undisturbed<T>(load: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before: Vec<(c_int, libc::sigaction)> = TAKEN_OVER
        .into_iter()
        .filter_map(|signal| {
            // SAFETY: every member may be zero.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: asks only.
            let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
            (asked == 0).then_some((signal, action))
        })
        .collect();
    let loaded = load();
    for (signal, action) in before {
        // SAFETY: what was in force before.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    loaded
}

/// A list of offers, freed with this.
struct Infos(NonNull<Info>, &'static Library);

// SAFETY: plain memory that nobody else has; the library keeps nothing of it by thread.
unsafe impl Send for Infos {}

impl Infos {
    fn iter(&self) -> impl Iterator<Item = &Info> {
        let mut next = self.0.as_ptr().cast_const();
        std::iter::from_fn(move || {
            // SAFETY: a list as the library made it, which lives as long as `self`.
            let info = unsafe { next.as_ref() }?;
            next = info.next;
            Some(info)
        })
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { (self.1.freeinfo)(self.0.as_ptr()) }
    }
}

/// A provider and one of its domains, chosen and not yet opened.
pub struct Provider(Infos);

impl Provider {
    pub(super) fn info(&self) -> &Info {
        // SAFETY: made by the library, and ours until dropped.
        unsafe { self.0.0.as_ref() }
    }

    pub(super) fn raw(&self) -> *mut Info {
        self.0.0.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.0.1
    }

    /// The provider's name.
    pub fn name(&self) -> String {
        // SAFETY: the library fills in attributes and names of every offer.
        unsafe { text_of((*self.info().fabric_attr).prov_name) }.unwrap_or_default()
    }

    /// The domain's name: a network interface, a device.
    pub fn domain(&self) -> String {
        domain_of(self.info())
    }

    /// What it speaks on the wire, and in which version: the peer's must be the same.
    pub fn protocol(&self) -> (u32, u32) {
        // SAFETY: as above.
        let ep = unsafe { &*self.info().ep_attr };
        (ep.protocol, ep.protocol_version)
    }

    /// Most bytes of one write.
    pub fn largest_write(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.info().ep_attr).max_msg_size }
    }

    /// Most bytes of a write that is taken over at once.
    pub fn largest_inject(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.info().tx_attr).inject_size }
    }
}

fn fits(info: &Info) -> bool {
    if info.tx_attr.is_null() || info.ep_attr.is_null() || info.domain_attr.is_null() || info.fabric_attr.is_null() {
        return false;
    }
    // SAFETY: not null, so filled in by the library.
    let (ep, domain) = unsafe { (&*info.ep_attr, &*info.domain_attr) };
    ep.kind == FI_EP_RDM && domain.cq_data_size >= DATA_BYTES && info.caps & FI_RMA != 0
}

fn domain_of(info: &Info) -> String {
    // SAFETY: `fits` has looked at the pointer; names end in zero.
    unsafe { text_of((*info.domain_attr).name) }.unwrap_or_default()
}

/// The IP address of an offer, if it is one.
fn address_of(info: &Info) -> Option<IpAddr> {
    let known = (FI_SOCKADDR..=FI_SOCKADDR_IN6).contains(&info.addr_format);
    if !known || info.src_addr.is_null() || info.src_addrlen < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: of that format and at least as long as an IPv4 address; the length for IPv6 is checked before its use.
    unsafe {
        match i32::from((*info.src_addr.cast::<libc::sockaddr>()).sa_family) {
            libc::AF_INET => {
                let address = (*info.src_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                Some(Ipv4Addr::from(address.to_ne_bytes()).into())
            }
            libc::AF_INET6 if info.src_addrlen >= size_of::<libc::sockaddr_in6>() => {
                let address = (*info.src_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                Some(Ipv6Addr::from(address).into())
            }
            _ => None,
        }
    }
}

/// # Safety
/// Null, or a string that ends in zero.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: as promised.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
