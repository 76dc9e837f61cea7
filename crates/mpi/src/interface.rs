//! The two binary interfaces: the values by which they differ. The crate `dayfly-mpi` compiles these sources with those of
//! MPICH, and `dayfly-mpi-abi` with those of the standard (MPI 5.0, chapter 20). Each constant has both, in that order.
//!
//! Also different: the type of handles ([`Number`]), the layout of [`Status`], and some symbols that only MPICH has.

use std::ffi::c_int;

/// The number in a handle: an `int` in MPICH, and a pointer in the standard.
#[cfg(face = "mpich")]
pub type Number = c_int;
#[cfg(face = "standard")]
pub type Number = isize;

#[cfg(face = "mpich")]
pub type AtomicNumber = std::sync::atomic::AtomicI32;
#[cfg(face = "standard")]
pub type AtomicNumber = std::sync::atomic::AtomicIsize;

macro_rules! values {
    ($( $(#[$meta:meta])* $name:ident: $type:ty = $mpich:expr, $standard:expr; )*) => { $(
        $(#[$meta])*
        #[cfg(face = "mpich")]
        pub const $name: $type = $mpich;
        $(#[$meta])*
        #[cfg(face = "standard")]
        pub const $name: $type = $standard;
    )* };
}

values! {
    /// Name of the interface in messages.
    NAME: &str = "MPICH", "the MPI standard";
    /// Run of the invitation's group that MPI joins. A process may join the group itself too, as `dayfly.groups` does, and
    /// may load both libraries.
    RUN: &str = "mpi", "mpi-abi";
    /// Version of MPI of the header.
    VERSION: [c_int; 2] = [4, 0], [5, 0];
    /// Version of the standard's binary interface; -1 if this is not that one.
    ABI_VERSION: [c_int; 2] = [-1, -1], [1, 0];
}

// Special ranks and tags.
values! {
    PROC_NULL: c_int = -1, -3;
    ANY_SOURCE: c_int = -2, -1;
    ROOT: c_int = -3, -4;
    ANY_TAG: c_int = -1, -2;
    UNDEFINED: c_int = -32766, -32766;
}

// Special addresses.
values! {
    /// `MPI_IN_PLACE`.
    IN_PLACE: isize = -1, 1;
    /// `MPI_BUFFER_AUTOMATIC`.
    BUFFER_AUTOMATIC: isize = -2, 2;
    /// What `MPI_COMM_DUP_FN` and its relatives are; `None` where they are a symbol.
    DUP_FUNCTION: Option<usize> = None, Some(1);
}

// Null handles.
values! {
    COMM_NULL: Number = 0x0400_0000, 0x100;
    GROUP_NULL: Number = 0x0800_0000, 0x108;
    DATATYPE_NULL: Number = 0x0c00_0000, 0x200;
    FILE_NULL: usize = 0, 0x118;
    ERRHANDLER_NULL: Number = 0x1400_0000, 0x140;
    OP_NULL: Number = 0x1800_0000, 0x20;
    INFO_NULL: Number = 0x1c00_0000, 0x130;
    WIN_NULL: Number = 0x2000_0000, 0x110;
    KEYVAL_INVALID: c_int = 0x2400_0000, 0;
    REQUEST_NULL: Number = 0x2c00_0000, 0x180;
    MESSAGE_NULL: Number = 0x2c00_0000, 0x128;
    SESSION_NULL: Number = 0x3800_0000, 0x120;
}

// Handles of predefined objects. Those of datatypes are in `datatype/predefined.rs`.
values! {
    COMM_WORLD: Number = 0x4400_0000, 0x101;
    COMM_SELF: Number = 0x4400_0001, 0x102;
    GROUP_EMPTY: Number = 0x4800_0000, 0x109;
    MESSAGE_NO_PROC: Number = 0x6c00_0000, 0x129;
    ERRORS_ARE_FATAL: Number = 0x5400_0000, 0x141;
    ERRORS_RETURN: Number = 0x5400_0001, 0x143;
    ERRORS_ABORT: Number = 0x5400_0003, 0x142;
    INFO_ENV: Number = 0x5c00_0001, 0x131;
    /// MAX, MIN, SUM, PROD, LAND, BAND, LOR, BOR, LXOR, BXOR, MINLOC, MAXLOC, REPLACE and NO_OP.
    OPERATIONS: [Number; 14] = [
        0x5800_0001, 0x5800_0002, 0x5800_0003, 0x5800_0004, 0x5800_0005, 0x5800_0006, 0x5800_0007, 0x5800_0008, 0x5800_0009,
        0x5800_000a, 0x5800_000b, 0x5800_000c, 0x5800_000d, 0x5800_000e,
    ], [0x23, 0x22, 0x21, 0x24, 0x30, 0x28, 0x31, 0x29, 0x32, 0x2a, 0x38, 0x39, 0x3c, 0x3d];
    /// The highest bits of handles of objects that are made at run time.
    DYNAMIC: u32 = 0x8000_0000, 0x4000_0000;
}

/// Bits of a code that hold its class. Programs' own classes and codes have bit 30 set.
pub const CLASS_BITS: u32 = if cfg!(face = "mpich") { 8 } else { 14 };

/// Keys of predefined attributes.
pub mod key {
    use std::ffi::c_int;

    values! {
        TAG_UB: c_int = 0x6440_0001, 501;
        HOST: c_int = 0x6440_0003, 503;
        IO: c_int = 0x6440_0005, 502;
        WTIME_IS_GLOBAL: c_int = 0x6440_0007, 504;
        UNIVERSE_SIZE: c_int = 0x6440_0009, 507;
        LAST_USED_CODE: c_int = 0x6440_000b, 506;
        APPNUM: c_int = 0x6440_000d, 505;
        WIN_BASE: c_int = 0x6600_0001, 601;
        WIN_SIZE: c_int = 0x6600_0003, 603;
        WIN_DISP_UNIT: c_int = 0x6600_0005, 602;
        WIN_CREATE_FLAVOR: c_int = 0x6600_0007, 604;
        WIN_MODEL: c_int = 0x6600_0009, 605;
    }
}

/// Levels of threads.
pub mod thread {
    use std::ffi::c_int;

    values! {
        SINGLE: c_int = 0, 0;
        MULTIPLE: c_int = 3, 4096;
    }
}

/// Results of comparisons, in increasing order.
pub mod comparison {
    use std::ffi::c_int;

    values! {
        IDENT: c_int = 0, 201;
        CONGRUENT: c_int = 1, 202;
        SIMILAR: c_int = 2, 203;
        UNEQUAL: c_int = 3, 204;
    }
}

/// Kinds of topologies.
pub mod topology {
    use std::ffi::c_int;

    values! {
        GRAPH: c_int = 1, 212;
        CART: c_int = 2, 211;
        DIST_GRAPH: c_int = 3, 213;
    }
}

/// Types of parts of communicators.
pub mod part {
    use std::ffi::c_int;

    values! {
        SHARED: c_int = 1, 221;
        HW_GUIDED: c_int = 2, 223;
        HW_UNGUIDED: c_int = 3, 222;
        RESOURCE_GUIDED: c_int = 4, 224;
    }
}

/// How a datatype was made.
pub mod combiner {
    use std::ffi::c_int;

    values! {
        NAMED: c_int = 1, 101;
        DUP: c_int = 2, 102;
        CONTIGUOUS: c_int = 3, 103;
        VECTOR: c_int = 4, 104;
        HVECTOR: c_int = 6, 105;
        INDEXED: c_int = 7, 106;
        HINDEXED: c_int = 9, 107;
        INDEXED_BLOCK: c_int = 10, 108;
        STRUCT: c_int = 12, 110;
        SUBARRAY: c_int = 13, 111;
        DARRAY: c_int = 14, 112;
        F90_REAL: c_int = 15, 113;
        F90_COMPLEX: c_int = 16, 114;
        F90_INTEGER: c_int = 17, 115;
        RESIZED: c_int = 18, 116;
        HINDEXED_BLOCK: c_int = 19, 109;
    }
}

/// Orders and distributions of arrays, and classes of datatypes.
pub mod array {
    use std::ffi::c_int;

    values! {
        ORDER_C: c_int = 56, 0xc;
        ORDER_FORTRAN: c_int = 57, 0xf;
        BLOCK: c_int = 121, 17;
        CYCLIC: c_int = 122, 18;
        NONE: c_int = 123, 16;
        DEFAULT: c_int = -49767, 19;
        CLASS_REAL: c_int = 1, 193;
        CLASS_INTEGER: c_int = 2, 192;
        CLASS_COMPLEX: c_int = 3, 194;
    }
}

/// Flavors, models and locks of windows.
pub mod window {
    use std::ffi::c_int;

    values! {
        CREATE: c_int = 1, 311;
        ALLOCATE: c_int = 2, 312;
        DYNAMIC: c_int = 3, 313;
        SHARED: c_int = 4, 314;
        UNIFIED: c_int = 2, 321;
        LOCK_EXCLUSIVE: c_int = 234, 301;
        LOCK_SHARED: c_int = 235, 302;
    }
}

/// The interface for tools.
pub mod tool {
    use std::ffi::c_int;

    values! {
        BIND_NO_OBJECT: c_int = 9700, 1;
        USER_BASIC: c_int = 221, 0x09;
        TUNER_BASIC: c_int = 224, 0x11;
        SCOPE_READ_ONLY: c_int = 60439, 2;
        SCOPE_LOCAL: c_int = 60440, 3;
        CLASS_LEVEL: c_int = 241, 2;
        CLASS_COUNTER: c_int = 246, 7;
    }

    /// `MPI_T_PVAR_ALL_HANDLES`.
    #[cfg(face = "standard")]
    pub fn all_handles() -> usize {
        1
    }

    #[cfg(face = "mpich")]
    pub use super::markers::all_handles;
}

/// Modes, seeks and displacements of files.
pub mod file {
    use std::ffi::c_int;

    values! {
        CREATE: c_int = 1, 2;
        READ_ONLY: c_int = 2, 16;
        WRITE_ONLY: c_int = 4, 256;
        READ_WRITE: c_int = 8, 32;
        DELETE_ON_CLOSE: c_int = 16, 4;
        EXCLUSIVE: c_int = 64, 8;
        APPEND: c_int = 128, 1;
        SEQUENTIAL: c_int = 256, 64;
        SEEK_SET: c_int = 600, 403;
        SEEK_CUR: c_int = 602, 401;
        SEEK_END: c_int = 604, 402;
        /// `MPI_DISPLACEMENT_CURRENT`.
        DISPLACEMENT_CURRENT: i64 = -54_278_278, -1;
    }
}

/// `MPI_Status`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[cfg(face = "mpich")]
pub struct Status {
    pub count_low: c_int,
    /// The upper bits of the count, above one bit for a cancelled operation.
    pub count_high_and_cancelled: c_int,
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
}

/// `MPI_Status`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[cfg(face = "standard")]
pub struct Status {
    pub source: c_int,
    pub tag: c_int,
    pub error: c_int,
    pub count_low: c_int,
    /// The upper bits of the count, above one bit for a cancelled operation.
    pub count_high_and_cancelled: c_int,
    pub unused: [c_int; 3],
}

impl Status {
    /// Of nothing at all.
    #[cfg(face = "mpich")]
    pub const EMPTY: Self = Self {
        count_low: 0,
        count_high_and_cancelled: 0,
        source: ANY_SOURCE,
        tag: ANY_TAG,
        error: 0,
    };
    /// Of nothing at all.
    #[cfg(face = "standard")]
    pub const EMPTY: Self = Self {
        source: ANY_SOURCE,
        tag: ANY_TAG,
        error: 0,
        count_low: 0,
        count_high_and_cancelled: 0,
        unused: [0; 3],
    };
}

#[cfg(face = "mpich")]
pub use markers::{no_weights, unweighted};

/// Symbols of data that MPICH has, which programs compare pointers with.
#[cfg(face = "mpich")]
mod markers {
    use std::ffi::c_int;

    static UNWEIGHTED: c_int = 0;
    static NO_WEIGHTS: c_int = 0;
    static ALL_HANDLES: c_int = 0;

    /// A pointer that C programs compare with.
    #[repr(transparent)]
    pub struct Marker(*const c_int);

    // SAFETY: it is never written, and what it points to is a constant.
    unsafe impl Sync for Marker {}

    #[unsafe(export_name = "MPI_UNWEIGHTED")]
    pub static UNWEIGHTED_MARKER: Marker = Marker(&raw const UNWEIGHTED);
    #[unsafe(export_name = "MPI_WEIGHTS_EMPTY")]
    pub static NO_WEIGHTS_MARKER: Marker = Marker(&raw const NO_WEIGHTS);
    #[unsafe(export_name = "MPI_T_PVAR_ALL_HANDLES")]
    pub static ALL_HANDLES_MARKER: Marker = Marker(&raw const ALL_HANDLES);

    /// Statuses of Fortran that nobody reads.
    macro_rules! ignored {
        ($($name:literal $marker:ident $place:ident)*) => { $(
            static $place: c_int = 0;
            #[unsafe(export_name = $name)]
            pub static $marker: Marker = Marker(&raw const $place);
        )* };
    }

    ignored! {
        "MPI_F_STATUS_IGNORE" STATUS_MARKER STATUS
        "MPI_F_STATUSES_IGNORE" STATUSES_MARKER STATUSES
        "MPI_F08_STATUS_IGNORE" STATUS_08_MARKER STATUS_08
        "MPI_F08_STATUSES_IGNORE" STATUSES_08_MARKER STATUSES_08
    }

    /// The address that is `MPI_UNWEIGHTED`.
    pub fn unweighted() -> usize {
        UNWEIGHTED_MARKER.0 as usize
    }

    /// The address that is `MPI_T_PVAR_ALL_HANDLES`.
    pub fn all_handles() -> usize {
        ALL_HANDLES_MARKER.0 as usize
    }

    /// The address that is `MPI_WEIGHTS_EMPTY`.
    pub fn no_weights() -> usize {
        NO_WEIGHTS_MARKER.0 as usize
    }
}

/// The address that is `MPI_UNWEIGHTED`.
#[cfg(face = "standard")]
pub fn unweighted() -> usize {
    10
}

/// The address that is `MPI_WEIGHTS_EMPTY`.
#[cfg(face = "standard")]
pub fn no_weights() -> usize {
    11
}
