//! Clients: connections to a manager or a node.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use dayfly_client::{Client, Code, Error};

use crate::handle::{Birth, Handle, get, give, optional_path, take};
use crate::status::{dfly_status, guard, misuse, value};

/// A client of a manager, or of one node. Thread-safe.
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

/// Returns the path of the program `dayfly` beside this library.
fn binary_beside() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here = binary_beside as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: `dladdr` accepts any address, and `info` is writable.
    if unsafe { libc::dladdr(here, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call above succeeded and filled `info`.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string of the dynamic linker, valid as long as this library is loaded.
    let file = std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    Some(PathBuf::from(file).parent()?.join("dayfly")).filter(|path| path.is_file())
}

fn embedded_beside(error: Error) -> Result<Client, Error> {
    match binary_beside() {
        Some(binary) if error.code() == Code::NotFound => Client::embedded(Some(&binary)),
        _ => Err(error),
    }
}

/// Connects to the manager that `path` names: a connection file or a state directory. If `path` is NULL, connects to
/// the manager that the environment variable DAYFLY_MANAGER names, else to the one that this user runs, else starts an
/// embedded manager. An embedded manager ends with this process, or when the client and all its leases, channels and
/// pools are freed. `client` receives the new client; free it with `dfly_client_free`. Errors: DFLY_UNREACHABLE if the
/// manager does not respond, DFLY_EXECUTOR_FAILED if no embedded manager can be started.
///
/// # Safety
/// `path` is NULL or a C string, `client` writable.
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

/// Starts an embedded manager and node, regardless of the configuration. `binary` is the path of the program `dayfly`.
/// If it is NULL, the library uses the environment variable DAYFLY_BIN, else the program on the PATH, else the one
/// beside this library. `client` receives the new client; free it with `dfly_client_free`. Errors:
/// DFLY_EXECUTOR_FAILED.
///
/// # Safety
/// `binary` is NULL or a C string, `client` writable.
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

/// Makes a client that leases from one node without a manager. `allowance` is the path of the file `allowance.json`
/// that the node wrote. `client` receives the new client; free it with `dfly_client_free`.
///
/// # Safety
/// `allowance` is a C string, `client` writable.
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

/// Returns a readable description of what the client is connected to. The text is valid as long as the client. Returns
/// "" if `client` is NULL.
///
/// # Safety
/// `client` is NULL or a client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_describe(client: *const dfly_client) -> *const c_char {
    // SAFETY: as the caller promises.
    value(c"".as_ptr(), || Ok(unsafe { get(client) }?.description.as_ptr()))
}

/// Frees a client. Its leases, channels and pools remain usable. NULL is a no-op.
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
