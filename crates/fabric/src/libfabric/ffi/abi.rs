//! The part of libfabric's binary interface that is used here: layouts and numbers of its public headers.
//!
//! They have been the same since 1.15 and grow only at the end of each structure. The library allocates the structures
//! itself wherever that matters. Unused members are words of the right size.

use std::ffi::{c_char, c_int, c_void};

/// The requested API version. Every later library supports it.
pub const API: u32 = version(1, 15);

/// Like `FI_VERSION`.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_TRANSMIT: u64 = 1 << 11;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Supported modes: we supply an operation's context, which is large enough for either mode.
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_CONTEXT2: u64 = 1 << 52;

pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;

pub const FI_EP_RDM: c_int = 3;
pub const FI_THREAD_DOMAIN: c_int = 3;
pub const FI_PROGRESS_MANUAL: c_int = 2;
pub const FI_CQ_FORMAT_DATA: c_int = 3;
pub const FI_WAIT_NONE: c_int = 0;
pub const FI_WAIT_FD: c_int = 3;
/// Commands of `fi_control`.
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;

/// Address formats based on `sockaddr`, for [`Info::addr_format`].
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN6: u32 = 3;

pub const FI_EINTR: isize = 4;
pub const FI_EAGAIN: isize = 11;
pub const FI_EAVAIL: isize = 259;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut c_void,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut c_void,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
}

/// First member of every object.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const FidOps,
}

#[repr(C)]
pub struct FidOps {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct FabricFid {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FabricFid, *mut Info, *mut *mut DomainFid, *mut c_void) -> c_int,
    pub passive_ep: usize,
    pub eq_open: usize,
    pub wait_open: usize,
    pub trywait: unsafe extern "C" fn(*mut FabricFid, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct DomainFid {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut DomainFid, *mut AvAttr, *mut *mut AvFid, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut DomainFid, *mut CqAttr, *mut *mut CqFid, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut DomainFid, *mut Info, *mut *mut EpFid, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    #[allow(clippy::type_complexity)] // as the header has it
    pub reg:
        unsafe extern "C" fn(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut MrFid, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrFid {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct AvFid {
    pub fid: Fid,
    pub ops: *const AvOps,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut AvFid, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

/// A completion: `fi_cq_data_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub context: *mut c_void,
    pub flags: u64,
    pub length: usize,
    pub buffer: *mut c_void,
    pub data: u64,
}

// SAFETY: plain numbers from the provider; its pointers are never dereferenced.
unsafe impl Send for Entry {}

impl Entry {
    pub const EMPTY: Self = Self {
        context: std::ptr::null_mut(),
        flags: 0,
        length: 0,
        buffer: std::ptr::null_mut(),
        data: 0,
    };
}

/// Whether it reports a write by the peer with its notice.
#[inline]
pub fn is_from_peer(entry: &Entry) -> bool {
    entry.flags & FI_REMOTE_CQ_DATA != 0 && entry.flags & FI_WRITE == 0
}

/// `fi_cq_err_entry`, with room for members that later versions add.
#[repr(C)]
pub struct ErrorEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub length: usize,
    pub buffer: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub later: [u64; 8],
}

#[repr(C)]
pub struct CqFid {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize) -> isize,
    pub readfrom: usize,
    pub readerr: unsafe extern "C" fn(*mut CqFid, *mut ErrorEntry, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut CqFid, *mut c_void, usize, *const c_void, c_int) -> isize,
}

#[repr(C)]
pub struct EpFid {
    pub fid: Fid,
    pub ops: *const c_void,
    pub cm: *const CmOps,
    pub msg: *const c_void,
    pub rma: *const RmaOps,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: usize,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct Iovec {
    pub base: *const c_void,
    pub length: usize,
}

#[repr(C)]
pub struct RmaIov {
    pub address: u64,
    pub length: usize,
    pub key: u64,
}

#[repr(C)]
pub struct RmaMessage {
    pub iov: *const Iovec,
    pub descriptors: *mut *mut c_void,
    pub iov_count: usize,
    pub peer: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: usize,
    pub readv: usize,
    pub readmsg: usize,
    pub write: usize,
    pub writev: usize,
    pub writemsg: unsafe extern "C" fn(*mut EpFid, *const RmaMessage, u64) -> isize,
    pub inject: usize,
    #[allow(clippy::type_complexity)] // as the header has it
    pub writedata:
        unsafe extern "C" fn(*mut EpFid, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut EpFid, *const c_void, usize, u64, u64, u64, u64) -> isize,
}

/// Memory that an operation may use until it completes. Large enough for both kinds of context.
#[repr(C, align(64))]
pub struct Context(pub [usize; 8]);
