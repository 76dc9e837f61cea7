//! Tests of the C bindings: the generated header is current, statuses equal the protocol's codes, and misuse is an
//! error.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use dayfly_client::Code;

use crate::allowance::*;
use crate::buffer::*;
use crate::channel::*;
use crate::client::*;
use crate::collective::*;
use crate::fleet::*;
use crate::group::*;
use crate::lease::*;
use crate::message::*;
use crate::operation::*;
use crate::pool::memory::*;
use crate::pool::outcome::*;
use crate::pool::*;
use crate::pool_options::*;
use crate::printed::*;
use crate::renewal::*;
use crate::request::*;
use crate::status::*;

fn message() -> String {
    // SAFETY: a C string that lives until the next error of this thread.
    unsafe { CStr::from_ptr(dfly_last_error_message()) }
        .to_string_lossy()
        .into_owned()
}

fn refused(status: dfly_status, words: &str) {
    assert_eq!(status, dfly_status::DFLY_INVALID_REQUEST, "{}", message());
    assert_eq!(dfly_last_error(), status);
    assert!(message().contains(words), "{words:?} is not in {:?}", message());
}

fn header() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in [
        "status",
        "client",
        "lease",
        "renewal",
        "printed",
        "allowance",
        "buffer",
        "channel_options",
        "channel",
        "pool_options",
        "pool/outcome",
        "pool",
        "pool/memory",
        "fleet",
        "offload",
        "delegation",
        "group",
        "operation",
        "request",
        "message",
        "collective",
        "collective/reduction",
    ] {
        builder = builder.with_src(here.join(format!("src/{name}.rs")));
    }
    let mut out = Vec::new();
    builder.generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    let mut kept = String::from(
        "/* Dayfly for C: lease workers, invoke functions on them, and exchange messages between ranks. Generated\n \
         * from bindings/c/src by `make generate`.\n \
         *\n \
         * Functions return a status; after an error dfly_last_error_message() returns the message of this thread.\n \
         * All pointer arguments are required unless a description states that they may be NULL. Texts are UTF-8 and\n \
         * end with NUL. A missing or malformed argument gives DFLY_INVALID_REQUEST, a fault of the library\n \
         * DFLY_INTERNAL.\n \
         *\n \
         * The caller owns every handle that a function returns, and frees it with the function named there. On an\n \
         * error the handle is NULL. Handles may be freed in any order: a channel keeps its lease open, a lease its\n \
         * client. Clients, leases, pools and groups are thread-safe. Channels, buffers, outputs and requests may\n \
         * be used by one thread at a time. No thread may use a handle that another thread frees. In a forked child\n \
         * every handle of the parent returns DFLY_FORKED; the child may connect again. */\n",
    );
    // The safety contracts of the Rust functions are not part of the header: the descriptions state what C callers
    // need.
    let mut skipping = false;
    for line in text.lines() {
        if line.trim() == "// # Safety" {
            skipping = true;
            if kept.ends_with("\n//\n") {
                kept.truncate(kept.len() - 3);
            }
            continue;
        }
        skipping &= line.starts_with("//");
        if !skipping {
            kept.push_str(line.trim_end());
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn committed_header_matches_the_code() {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/dayfly.h");
    let header = header();
    if std::env::var_os("DAYFLY_REGENERATE").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == header,
        "{} has drifted: run `make generate`",
        path.display()
    );
}

#[test]
fn every_protocol_code_has_status_name_and_remedy() {
    assert_eq!(Code::ALL.len(), dfly_status::ERRORS.len());
    for (code, status) in Code::ALL.iter().zip(dfly_status::ERRORS) {
        assert_eq!(*code as i32, status as i32);
        assert_eq!(dfly_status::from(*code), status);
        let constant = format!("DFLY_{}", code.name().to_uppercase());
        assert_eq!(format!("{status:?}"), constant);
        // SAFETY: static C strings.
        let (name, remedy) = unsafe {
            (
                CStr::from_ptr(dfly_error_name(status as i32)),
                CStr::from_ptr(dfly_error_remedy(status as i32)),
            )
        };
        assert_eq!(name.to_str().unwrap(), code.name());
        assert!(!remedy.is_empty());
    }
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(dfly_error_name(-7)) }, c"unknown");
    assert_eq!(
        dfly_error_retry(dfly_status::DFLY_REJECTED as i32),
        dfly_retry::DFLY_RETRY_ELSEWHERE
    );
}

#[test]
fn null_handle_or_result_is_an_error() {
    let mut client = null_mut();
    let mut lease = null_mut();
    let mut channel = null_mut();
    let mut pool = null_mut();
    let mut fleet = null_mut();
    let mut buffer = null_mut();
    let mut output = null_mut();
    let mut code = dfly_code { hash: [0; 32] };
    let mut completion = std::mem::MaybeUninit::uninit();
    let (mut index, mut id, mut call, mut came, mut length) = (0, 0, 0, false, 0);
    let symbol = c"f".as_ptr();
    // SAFETY: handles are null, all other arguments are valid.
    unsafe {
        refused(
            dfly_client_connect(null(), null_mut()),
            "the place for the new handle is NULL",
        );
        refused(dfly_client_node(null(), &mut client), "allowance's path is NULL");
        refused(dfly_lease_options_init(null_mut()), "NULL");
        refused(dfly_allowance_options_init(null_mut()), "NULL");
        refused(dfly_client_allowance(null(), null(), &mut client), "client is NULL");
        refused(dfly_lease_open(null(), null(), &mut lease), "client is NULL");
        refused(
            dfly_lease_load_library(null(), c"/x".as_ptr(), &mut code),
            "lease is NULL",
        );
        refused(dfly_lease_load_bytes(null(), null(), 0, &mut code), "lease is NULL");
        refused(dfly_lease_renew(null(), 1), "lease is NULL");
        refused(dfly_lease_renew_with(null(), null()), "lease is NULL");
        refused(dfly_renew_options_init(null_mut()), "NULL");
        refused(dfly_lease_release(null()), "lease is NULL");
        let mut printed = null_mut();
        refused(dfly_printed_open(null(), &mut printed), "lease is NULL");
        refused(
            dfly_printed_read(null_mut(), 0, null_mut(), 0, &mut length, null_mut()),
            "printed output is NULL",
        );
        refused(dfly_channel_open(null(), 0, null(), &mut channel), "lease is NULL");
        refused(
            dfly_channel_load(null_mut(), &code, symbol, 0, &mut index),
            "channel is NULL",
        );
        refused(
            dfly_channel_call(null_mut(), 1, 0, null(), 0, null_mut(), 0, &mut length),
            "channel is NULL",
        );
        refused(
            dfly_channel_submit(null_mut(), 1, 0, null(), 0, &mut id),
            "channel is NULL",
        );
        refused(
            dfly_channel_submit_buffer(null_mut(), 1, 0, null_mut(), 0, &mut id),
            "buffer is NULL",
        );
        refused(
            dfly_channel_call_into(null_mut(), 1, 0, null(), 0, null_mut(), &mut length),
            "one buffer",
        );
        refused(
            dfly_channel_poll(null_mut(), completion.as_mut_ptr(), &mut came),
            "channel is NULL",
        );
        refused(
            dfly_channel_wait(null_mut(), 0, completion.as_mut_ptr()),
            "channel is NULL",
        );
        refused(dfly_channel_done(null_mut()), "channel is NULL");
        refused(dfly_channel_cancel(null_mut(), 1), "channel is NULL");
        refused(dfly_buffer_alloc(null_mut(), 1, &mut buffer), "channel is NULL");
        refused(dfly_buffer_resize(null_mut(), 1), "buffer is NULL");
        refused(dfly_pool_open(null(), null(), &mut pool), "lease is NULL");
        refused(dfly_pool_function(null(), &code, symbol, 0, &mut id), "pool is NULL");
        refused(
            dfly_pool_submit(null(), 0, null(), 0, null(), &mut call),
            "pool is NULL",
        );
        refused(
            dfly_pool_submit_callback(null(), 0, null(), 0, null(), None, null_mut(), &mut call),
            "pool is NULL",
        );
        refused(dfly_pool_drive(null(), 0, &mut length), "pool is NULL");
        refused(dfly_pool_wait(null(), 1, 0, &mut output), "pool is NULL");
        refused(dfly_pool_cancel(null(), 1, &mut came), "pool is NULL");
        refused(dfly_pool_buffer_alloc(null(), 1, &mut buffer, &mut id), "pool is NULL");
        refused(dfly_pool_buffer_alloc_for(null(), 0, 1, &mut buffer), "pool is NULL");
        refused(dfly_pool_copied(null(), null_mut(), null_mut()), "pool is NULL");
        refused(dfly_fleet_open(null(), null(), &mut fleet), "client is NULL");
        refused(dfly_fleet_wait(null(), 1, 0), "fleet is NULL");
        refused(dfly_fleet_close(null()), "fleet is NULL");
        assert!(fleet.is_null() && dfly_fleet_pool(null()).is_null());
        assert!(dfly_buffer_data(null()).is_null());
        assert_eq!(dfly_lease_workers(null()), 0);
        assert!(dfly_output_data(null()).is_null());
        // Freeing NULL is a no-op.
        dfly_client_free(null_mut());
        dfly_lease_free(null_mut());
        dfly_channel_free(null_mut());
        dfly_buffer_free(null_mut());
        dfly_pool_free(null_mut());
        dfly_fleet_free(null_mut());
        dfly_output_free(null_mut());
    }
    let handles: [*mut c_void; 4] = [client.cast(), lease.cast(), channel.cast(), pool.cast()];
    assert!(handles.iter().all(|handle| handle.is_null()), "an error leaves NULL");
}

#[test]
fn uninitialised_options_are_refused_unread() {
    let options = std::mem::MaybeUninit::<dfly_lease_options>::zeroed();
    // SAFETY: memory of the right size, and only its first word is read.
    let result = unsafe { crate::handle::options(options.as_ptr(), "dfly_lease_options") };
    let text = result.err().unwrap().0.message;
    assert!(text.contains("dfly_lease_options_init"), "{text}");
    let mut defaults = std::mem::MaybeUninit::<dfly_pool_options>::zeroed();
    // SAFETY: `options` is writable and filled by the call.
    let defaults = unsafe {
        assert_eq!(dfly_pool_options_init(defaults.as_mut_ptr()), dfly_status::DFLY_OK);
        defaults.assume_init()
    };
    assert_eq!(defaults.channel.slots, 64);
}

#[test]
fn missing_manager_is_reported_with_its_path() {
    let mut client = null_mut();
    // SAFETY: a C string and a place.
    let status = unsafe { dfly_client_connect(c"/nowhere/at/all".as_ptr(), &mut client) };
    assert_eq!(status, dfly_status::DFLY_UNREACHABLE);
    assert!(message().contains("/nowhere/at/all"), "{}", message());
    assert!(client.is_null());
}

#[test]
fn panic_becomes_internal_error() {
    let status = guard(|| panic!("out of cheese"));
    assert_eq!(status, dfly_status::DFLY_INTERNAL);
    assert!(message().contains("out of cheese"));
}

#[test]
fn error_messages_are_per_thread() {
    // SAFETY: NULL is an error.
    refused(unsafe { dfly_lease_release(null()) }, "lease is NULL");
    let other = std::thread::spawn(message).join().unwrap();
    assert_eq!(other, "");
    assert_eq!(message(), "lease is NULL");
}

#[test]
fn null_group_is_an_error_in_every_function() {
    let mut group = null_mut();
    let mut request = null_mut();
    let mut message = dfly_message {
        source: 0,
        tag: 0,
        length: 0,
    };
    let (mut data, count, mut number, mut came) = ([0_u8; 8], [1_usize], 0, false);
    let (own, into) = (data.as_ptr().cast::<c_void>(), data.as_mut_ptr().cast::<c_void>());
    let (counts, later) = (count.as_ptr(), &raw mut request);
    // SAFETY: groups and requests are null, all other arguments are valid.
    unsafe {
        let of_group = [
            dfly_group_member(null(), 0, &mut number),
            dfly_group_split(null(), 0, 0, &mut group),
            dfly_group_dup(null(), &mut group),
            dfly_group_shrink(null(), &mut group),
            dfly_group_send(null(), own, 1, DFLY_F64, 0, 0),
            dfly_group_recv(null(), into, 1, DFLY_F64, 0, 0, &mut message),
            dfly_group_sendrecv(null(), own, 1, 0, 0, into, 1, 0, 0, DFLY_F64, &mut message),
            dfly_group_probe(null(), 0, 0, &mut message),
            dfly_group_iprobe(null(), 0, 0, &mut message, &mut came),
            dfly_group_isend(null(), own, 1, DFLY_F64, 0, 0, later),
            dfly_group_irecv(null(), into, 1, DFLY_F64, 0, 0, later),
            dfly_group_barrier(null(), later),
            dfly_group_bcast(null(), into, 1, DFLY_F64, 0, later),
            dfly_group_gather(null(), own, 1, DFLY_F64, into, 0, later),
            dfly_group_gatherv(null(), own, 1, DFLY_F64, into, counts, null(), 0, later),
            dfly_group_scatter(null(), own, into, 1, DFLY_F64, 0, later),
            dfly_group_scatterv(null(), own, counts, null(), into, 1, DFLY_F64, 0, later),
            dfly_group_allgather(null(), own, 1, DFLY_F64, into, later),
            dfly_group_allgatherv(null(), own, 1, DFLY_F64, into, counts, null(), later),
            dfly_group_alltoall(null(), own, into, 1, DFLY_F64, later),
            dfly_group_alltoallv(null(), own, counts, null(), into, counts, null(), DFLY_F64, later),
            dfly_group_reduce(null(), own, into, 1, DFLY_F64, DFLY_SUM, 0, later),
            dfly_group_allreduce(null(), own, into, 1, DFLY_F64, DFLY_SUM, later),
            dfly_group_reduce_scatter(null(), own, into, counts, DFLY_F64, DFLY_SUM, later),
            dfly_group_scan(null(), own, into, 1, DFLY_F64, DFLY_SUM, later),
            dfly_group_exscan(null(), own, into, 1, DFLY_F64, DFLY_SUM, later),
        ];
        for (at, status) in of_group.into_iter().enumerate() {
            assert_eq!(status, dfly_status::DFLY_INVALID_REQUEST, "function {at}");
        }
        refused(dfly_group_barrier(null(), null_mut()), "group is NULL");
        refused(dfly_group_options_init(null_mut()), "NULL");
        refused(
            dfly_group_join(null(), null_mut()),
            "the place for the new handle is NULL",
        );
        refused(dfly_request_wait(null_mut(), &mut message), "request is NULL");
        refused(dfly_request_wait_all(null(), 1), "requests are NULL");
        refused(
            dfly_request_test(null_mut(), &mut message, &mut came),
            "request is NULL",
        );
        refused(dfly_operation_create(None, null_mut(), true, &mut number), "NULL");
        assert_eq!((dfly_group_rank(null()), dfly_group_size(null())), (DFLY_NO_RANK, 0));
        dfly_group_free(null_mut());
        dfly_request_free(null_mut());
    }
    assert!(group.is_null() && request.is_null(), "an error leaves NULL");
}

#[test]
fn c_datatypes_and_operations_match_the_crate() {
    use dayfly_comm::Datatype;

    for (number, known) in (0..).zip(Datatype::ALL) {
        assert_eq!(datatype(number).unwrap(), known);
        assert_eq!(dfly_datatype_bytes(number), known.bytes());
    }
    assert!(datatype(Datatype::ALL.len() as u32).is_err());
    for number in DFLY_SUM..=DFLY_MAX_AT {
        let name = format!("{:?}", operation(number).unwrap());
        assert_ne!(name, "user operation");
    }
    assert!(operation(0).is_err() && operation(DFLY_MAX_AT + 1).is_err());
}

#[test]
fn overlapping_input_is_copied() {
    use dayfly_comm::Datatype;

    use crate::memory::Memory;

    let mut buffer: Vec<u8> = (0..8).collect();
    let start = buffer.as_mut_ptr();
    let at = |from: usize, count: usize| {
        // SAFETY: within the buffer.
        Memory::of(unsafe { start.add(from) }.cast(), count, Datatype::U8, "it").unwrap()
    };
    for (read, written, overlaps) in [
        ((0, 8), (0, 8), true),
        ((0, 5), (4, 4), true),
        ((4, 4), (0, 5), true),
        ((0, 4), (4, 4), false),
        ((0, 0), (0, 8), false),
    ] {
        let copied = at(read.0, read.1).beside(&at(written.0, written.1));
        assert_eq!(matches!(copied, Memory::Own(_)), overlaps, "{read:?} and {written:?}");
        assert_eq!(copied.bytes().len(), read.1);
    }
}
