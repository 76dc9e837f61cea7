//! The library, loaded at its first use, and its providers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use super::abi::*;
use crate::libfabric::FabricError;

/// File name of every version so far.
const FILE: &str = "libfabric.so.1";
/// From this version on, `tcp` has native reliable datagram endpoints. In 1.17 that provider was named `net`; before,
/// `ofi_rxm` provided them on top of `tcp`.
const TCP_IS_NET: u32 = version(1, 18);
/// Bytes of remote completion data that a provider must support, for [`dayfly_protocol::fabric::notice`].
const DATA_BYTES: usize = 4;

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;

/// The loaded libfabric.
pub struct Library {
    pub version: u32,
    getinfo: GetInfo,
    dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    freeinfo: unsafe extern "C" fn(*mut Info),
    pub(super) fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FabricFid, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// Returns the library, and loads it at the first call. Never call it before a fork, because it may start threads.
    pub fn get() -> Result<&'static Self, FabricError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let found = LIBRARY.get_or_init(Self::open);
        found.as_ref().map_err(|why| FabricError::Absent(why.clone()))
    }

    fn open() -> Result<Self, String> {
        // SAFETY: the effects of its constructors on this process, other than setting up tables, are undone.
        let file = undisturbed(|| unsafe { Loaded::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) })
            .map_err(|error| error.to_string())?;
        // SAFETY: each symbol has had the named type since the first version of the library. The library is never
        // closed (forgotten below), so the pointers stay good.
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

    /// Returns the library's text for an error number.
    pub fn text(&self, error: c_int) -> String {
        // SAFETY: returns a string that lives as long as the library, or a null pointer.
        let text = unsafe { (self.strerror)(error) };
        // SAFETY: as above.
        unsafe { text_of(text) }.unwrap_or_else(|| format!("error {error}"))
    }

    /// Returns the names of a provider in this version, the best first.
    fn names(&self, wanted: &str) -> Vec<String> {
        match wanted {
            "tcp" if self.version < TCP_IS_NET => vec!["net".into(), "tcp;ofi_rxm".into()],
            other => vec![other.into()],
        }
    }

    /// Returns the provider of this name with the given domain; without one, the domain with this address, else its
    /// first.
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

    /// Returns the offers of the provider of this name that have the required capabilities.
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

/// Signals that end a program, whose handlers libraries replace.
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

/// Runs code that loads foreign libraries, and restores the signal handlers that they changed. In Debian, libfabric
/// brings a library for old hardware that replaces even the handlers of Ctrl-C and of crashes; `shm` does so too. Other
/// signals are left alone, because another thread may be setting their handlers.
pub(super) fn undisturbed<T>(load: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before: Vec<(c_int, libc::sigaction)> = TAKEN_OVER
        .into_iter()
        .filter_map(|signal| {
            // SAFETY: every member may be zero.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: only queries.
            let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
            (asked == 0).then_some((signal, action))
        })
        .collect();
    let loaded = load();
    for (signal, action) in before {
        // SAFETY: restores the previous handler.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    loaded
}

/// A list of offers, freed when dropped.
struct Infos(NonNull<Info>, &'static Library);

// SAFETY: plain memory with a single owner; the library keeps no thread-local state about it.
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

/// A chosen provider and domain, not yet opened.
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

    pub fn name(&self) -> String {
        // SAFETY: the library fills in attributes and names of every offer.
        unsafe { text_of((*self.info().fabric_attr).prov_name) }.unwrap_or_default()
    }

    /// Name of the domain: a network interface or a device.
    pub fn domain(&self) -> String {
        domain_of(self.info())
    }

    /// Wire protocol and its version. The peer's must be the same.
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

    /// Most bytes of a write that the provider copies at once.
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

/// Returns the IP address of an offer, if it has one.
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
