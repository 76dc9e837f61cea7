//! C bindings: the client library behind `dayfly.h`, which is generated from these files.
//!
//! Every function catches panics, returns a [`dfly_status`] and sets the message for `dfly_last_error_message`. All
//! arguments from C are checked: null pointers, unknown numbers and uninitialised options are errors. The header states
//! the caller's contract for the rest (a length beyond the memory, a handle used after it was freed).
#![allow(non_camel_case_types)]

mod allowance;
mod buffer;
mod channel;
mod channel_options;
mod client;
mod collective;
mod delegation;
mod fleet;
mod group;
mod handle;
mod lease;
mod memory;
mod message;
mod offload;
mod operation;
mod pool;
mod pool_options;
mod printed;
mod renewal;
mod request;
mod status;

#[cfg(test)]
mod tests;
