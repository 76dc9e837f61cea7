//! Queries over real ranks. One program has all of them, because each takes a minute and a half to link.

#[path = "../../../comm/tests/thread_group/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod thread_group;

mod memory;
mod queries;
mod tpch;
mod writing;

/// Number of files in a directory and below it.
fn files_below(place: &std::path::Path) -> usize {
    let Ok(entries) = std::fs::read_dir(place) else {
        return 0;
    };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { files_below(&path) } else { 1 })
        .sum()
}
