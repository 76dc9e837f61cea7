//! Options of a channel.

use std::ffi::c_char;
use std::time::Duration;

use dayfly_client::{ChannelOptions, Error, Geometry};

use crate::handle::{optional_text, put_required};
use crate::lease::{DFLY_FOR_EVER, transport, transport_number};
use crate::status::{dfly_status, guard, misuse};

/// Options of a channel. Initialise with `dfly_channel_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_channel_options {
    /// Set by `dfly_channel_options_init`.
    pub size: usize,
    /// DFLY_TRANSPORT_BEST, _SHM, _TCP, _TLS or _LIBFABRIC.
    pub transport: u32,
    /// Number of slots of each ring, a power of two. It limits the outstanding calls.
    pub slots: u32,
    /// Size of a slot in bytes, a multiple of 128. Larger payloads use bulk memory.
    pub stride_bytes: u32,
    /// How long a wait polls before it sleeps, in microseconds. DFLY_FOR_EVER means that it never sleeps, which spares
    /// the worker a memory fence.
    pub spin_us: u32,
    /// Address space for bulk payloads in each direction, in bytes, a multiple of 4096.
    pub bulk_bytes: u64,
    /// For DFLY_TRANSPORT_LIBFABRIC: a provider, or a provider and a domain such as `verbs/mlx5_0`. NULL for the first
    /// that the node offers.
    pub fabric: *const c_char,
}

pub(crate) fn channel_options(options: Option<dfly_channel_options>) -> Result<ChannelOptions, Error> {
    let Some(options) = options else {
        return Ok(ChannelOptions::default());
    };
    let slots = u16::try_from(options.slots).map_err(|_| misuse(format!("{} slots are too many", options.slots)))?;
    let spin = Duration::from_micros(options.spin_us.into());
    // SAFETY: the caller of this library promises a C string where the field is not null.
    let fabric = unsafe { optional_text(options.fabric, "the fabric") }?;
    Ok(ChannelOptions {
        transport: transport(options.transport, fabric)?,
        geometry: Geometry {
            slots,
            stride_bytes: options.stride_bytes,
            bulk_bytes: options.bulk_bytes,
        },
        spin: (options.spin_us != DFLY_FOR_EVER).then_some(spin),
    })
}

pub(crate) fn default_channel_options() -> dfly_channel_options {
    let defaults = ChannelOptions::default();
    dfly_channel_options {
        size: size_of::<dfly_channel_options>(),
        transport: defaults.transport.map_or(0, transport_number),
        slots: defaults.geometry.slots.into(),
        stride_bytes: defaults.geometry.stride_bytes,
        spin_us: defaults.spin.map_or(DFLY_FOR_EVER, |spin| spin.as_micros() as u32),
        bulk_bytes: defaults.geometry.bulk_bytes,
        fabric: std::ptr::null(),
    }
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_options_init(options: *mut dfly_channel_options) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", default_channel_options()) }?))
}
