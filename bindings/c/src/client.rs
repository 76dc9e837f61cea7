//! Clients: where leases come from.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use dayfly_client::{Client, Code, Error};

use crate::handle::{Birth, Handle, get, give, optional_path, take};
use crate::status::{dfly_status, guard, misuse, value};

/// A client of a manager, or of one node. Any thread may use it.
pub struct dfly_client {
    birth: Birth,
    pub(crate) client: Client,
    description: CString,
}

impl Handle for dfly_client {
    const NAME: &'static str = "client";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_client {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            birth: Birth::now(),
            description: CString::new(client.describe()).unwrap_or_default(),
            client,
        }
    }
}

/// The program `dayfly` beside this library, for programs that are installed elsewhere.
fn binary_beside() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here = binary_beside as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: any address may be asked about, and `info` has room for the answer.
    if unsafe { libc::dladdr(here, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled by the call above, which succeeded.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: the linker's own C string, which lives as long as this library.
    let file = std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    Some(PathBuf::from(file).parent()?.join("dayfly")).filter(|path| path.is_file())
}

fn embedded_beside(error: Error) -> Result<Client, Error> {
    match binary_beside() {
        Some(binary) if error.code() == Code::NotFound => Client::embedded(Some(&binary)),
        _ => Err(error),
    }
}

/// Connects to the manager that `path` names (a connection file, or a state directory). NULL means: the one of the
/// environment variable DAYFLY_MANAGER, else the one that this user runs, else an embedded one that ends with the last
/// of this client, its leases, channels and pools, or with this process.
///
/// # Safety
/// `path` is NULL or a C string, `client` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_connect(path: *const c_char, client: *mut *mut dfly_client) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(client, || {
                let path = optional_path(path, "the path")?;
                let found = Client::connect(path);
                let found = if path.is_none() {
                    found.or_else(embedded_beside)
                } else {
                    found
                };
                Ok(dfly_client::new(found?))
            })
        }?;
        Ok(())
    })
}

/// Starts an embedded manager and node, whatever else is configured. `binary` names the program `dayfly`; NULL means the
/// one of the environment variable DAYFLY_BIN, on the PATH, or beside this library.
///
/// # Safety
/// `binary` is NULL or a C string, `client` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_embedded(binary: *const c_char, client: *mut *mut dfly_client) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(client, || {
                let binary = optional_path(binary, "the binary")?;
                let started = Client::embedded(binary);
                let started = if binary.is_none() {
                    started.or_else(embedded_beside)
                } else {
                    started
                };
                Ok(dfly_client::new(started?))
            })
        }?;
        Ok(())
    })
}

/// Leases from one node without a manager, by the allowance that the node wrote (`allowance.json`).
///
/// # Safety
/// `allowance` is a C string, `client` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_node(allowance: *const c_char, client: *mut *mut dfly_client) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(client, || {
                let path = optional_path(allowance, "the allowance")?;
                let path = path.ok_or_else(|| misuse("the allowance's path is NULL"))?;
                Ok(dfly_client::new(Client::node(path)?))
            })
        }?;
        Ok(())
    })
}

/// What it is connected to, for people. Lives as long as the client; empty for NULL.
///
/// # Safety
/// `client` is NULL or a client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_describe(client: *const dfly_client) -> *const c_char {
    // SAFETY: as the caller promises.
    value(c"".as_ptr(), || Ok(unsafe { get(client) }?.description.as_ptr()))
}

/// Closes the client. Leases, channels and pools of it live on. NULL is nothing.
///
/// # Safety
/// `client` is NULL or a client that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_free(client: *mut dfly_client) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(client) });
        Ok(())
    });
}
