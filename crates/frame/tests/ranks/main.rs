//! Queries over real ranks. One program has all of them, because each takes a minute and a half to link.

#[path = "../../../comm/tests/thread_group/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod thread_group;

mod queries;
mod tpch;
mod writing;
