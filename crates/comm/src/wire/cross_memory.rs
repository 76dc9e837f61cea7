//! Cross memory attach: copies between the memory of two processes in one step, where the kernel permits it.

use rustix::io::Errno;

/// A process whose memory can be read and written, as a probe has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrossMemory {
    process: libc::pid_t,
}

impl CrossMemory {
    /// Reads 8 bytes at an address that the other side sent, and compares them with the value that it sent. `process`
    /// must come from the kernel. Returns `None` if the kernel refuses or the values differ.
    pub fn probe(process: libc::pid_t, address: u64, expected: u64) -> Option<Self> {
        let memory = Self { process };
        let mut found = 0u64;
        // SAFETY: the target is a local variable of 8 bytes.
        unsafe { memory.read(address, (&raw mut found).cast(), 8) }.ok()?;
        (process > 0 && found == expected).then_some(memory)
    }

    /// Copies from the other process.
    ///
    /// # Safety
    /// `length` bytes at `into` must be writable memory in exclusive use.
    pub unsafe fn read(&self, from: u64, into: *mut u8, length: usize) -> Result<(), Errno> {
        // SAFETY: required of the caller.
        unsafe { self.copy(libc::SYS_process_vm_readv, into, from, length) }
    }

    /// Copies to the other process.
    ///
    /// # Safety
    /// `length` bytes at `from` must be readable.
    pub unsafe fn write(&self, from: *const u8, into: u64, length: usize) -> Result<(), Errno> {
        // SAFETY: required of the caller; the kernel only reads from `from`.
        unsafe { self.copy(libc::SYS_process_vm_writev, from.cast_mut(), into, length) }
    }

    unsafe fn copy(&self, call: libc::c_long, local: *mut u8, remote: u64, length: usize) -> Result<(), Errno> {
        let mut done = 0;
        while done < length {
            let here = libc::iovec {
                // SAFETY: `done` is less than `length`.
                iov_base: unsafe { local.add(done) }.cast(),
                iov_len: length - done,
            };
            let there = libc::iovec {
                iov_base: remote.wrapping_add(done as u64) as *mut libc::c_void,
                iov_len: length - done,
            };
            // SAFETY: the local range is the caller's; the kernel checks the remote one.
            let copied = unsafe {
                libc::syscall(
                    call,
                    libc::c_long::from(self.process),
                    &raw const here,
                    1 as libc::c_ulong,
                    &raw const there,
                    1 as libc::c_ulong,
                    0 as libc::c_ulong,
                )
            };
            match copied {
                1.. => done += copied as usize,
                0 => return Err(Errno::FAULT),
                _ => match std::io::Error::last_os_error()
                    .raw_os_error()
                    .map(Errno::from_raw_os_error)
                {
                    Some(Errno::INTR) => {}
                    other => return Err(other.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(())
    }
}
