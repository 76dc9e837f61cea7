//! The file of a journal: lines of a checksum, a space, and JSON.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::contents::{JournalContents, Record};

/// The line of a record.
pub fn line(record: &Record) -> std::io::Result<Vec<u8>> {
    let body = serde_json::to_vec(record)?;
    let mut line = check(&body).into_bytes();
    line.push(b' ');
    line.extend(body);
    line.push(b'\n');
    Ok(line)
}

fn check(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..4])
}

/// Every valid line before the first invalid one.
pub fn read(path: &Path) -> std::io::Result<Vec<Record>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let parse = |line: &[u8]| {
        let (sum, body) = line.split_at_checked(9)?;
        let whole = sum[..8] == *check(body).as_bytes();
        whole.then(|| serde_json::from_slice(body).ok()).flatten()
    };
    let mut records = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n").and_then(parse) {
            Some(record) => records.push(record),
            None => {
                tracing::warn!(path = %path.display(), "the journal ends in the middle of a line; the lines before it are used");
                break;
            }
        }
    }
    Ok(records)
}

/// Replaces the file by the smallest one with the same meaning. Returns it, open for appending.
pub fn rewrite(path: &Path, contents: &JournalContents) -> std::io::Result<File> {
    let part = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    let mut bytes = Vec::new();
    for record in contents.records() {
        bytes.extend(line(&record)?);
    }
    file.write_all(&bytes)?;
    file.sync_data()?;
    std::fs::rename(&part, path)?;
    Ok(file)
}
