//! Dayfly for C: the client library behind `dayfly.h`, which is generated from these files.
//!
//! Every function catches what could unwind, answers a [`dfly_status`] and leaves a sentence for
//! `dfly_last_error_message`. Nothing that C passes is believed: null pointers, unknown numbers and options that nobody
//! initialised are errors. What cannot be checked (a length beyond the memory, a handle used after its end) is the
//! caller's contract, stated in the header.
#![allow(non_camel_case_types)]

mod allowance;
mod buffer;
mod channel;
mod client;
mod collective;
mod delegation;
mod group;
mod handle;
mod lease;
mod memory;
mod message;
mod operation;
mod pool;
mod printed;
mod request;
mod status;

#[cfg(test)]
mod tests;
