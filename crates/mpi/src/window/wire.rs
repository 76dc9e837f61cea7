//! The messages of windows: words of eight bytes, then data.

use crate::error::{Error, Result, class};
use crate::interface::Number;

/// What a rank asks of another one's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    Put = 1,
    Get,
    Accumulate,
    GetAccumulate,
    CompareAndSwap,
    Lock,
    LockExclusive,
    Unlock,
    Post,
    Complete,
}

const KINDS: [Kind; 10] = [
    Kind::Put,
    Kind::Get,
    Kind::Accumulate,
    Kind::GetAccumulate,
    Kind::CompareAndSwap,
    Kind::Lock,
    Kind::LockExclusive,
    Kind::Unlock,
    Kind::Post,
    Kind::Complete,
];

/// Words before the runs of a request.
const HEAD_WORDS: usize = 6;
/// Bytes of a request that name it.
pub const HEAD_BYTES: usize = 8 * HEAD_WORDS;

/// A request.
pub struct Request {
    pub kind: Kind,
    pub id: u64,
    /// In units of the target's window.
    pub displacement: i64,
    /// Handles of the operation and of the elements' predefined datatype.
    pub operation: Number,
    pub element: Number,
    /// Ranges of the target's memory, from the displacement.
    pub runs: Vec<(isize, usize)>,
    pub data: Vec<u8>,
}

/// A response.
pub struct Response {
    pub id: u64,
    pub error: Option<Error>,
    pub bytes: Vec<u8>,
}

fn broken() -> Error {
    Error::new(class::INTERN, "a rank sent a message of a window that makes no sense")
}

fn words(bytes: &[u8], count: usize) -> Result<(Vec<u64>, &[u8])> {
    let (head, rest) = bytes
        .split_at_checked(count.checked_mul(8).ok_or_else(broken)?)
        .ok_or_else(broken)?;
    Ok((
        head.as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word))
            .collect(),
        rest,
    ))
}

impl Request {
    /// A request without data.
    pub fn new(kind: Kind, id: u64) -> Self {
        Self {
            kind,
            id,
            displacement: 0,
            operation: 0,
            element: 0,
            runs: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Bytes of the target's memory that it concerns; `None` if they are more than memory can have.
    pub fn length(&self) -> Option<usize> {
        let mut lengths = self.runs.iter().map(|(_, length)| length);
        let all = lengths.try_fold(0usize, |sum, length| sum.checked_add(*length));
        all.filter(|all| isize::try_from(*all).is_ok())
    }

    /// Whether its runs are possible, and have room for its data.
    pub fn is_sound(&self) -> bool {
        // The value to compare with, and the new one.
        let values = if self.kind == Kind::CompareAndSwap { 2 } else { 1 };
        let room = self.length().and_then(|length| length.checked_mul(values));
        room.is_some_and(|room| self.data.len() <= room)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = vec![
            self.kind as u64,
            self.id,
            self.displacement as u64,
            self.operation as u64,
            self.element as u64,
            self.runs.len() as u64,
        ];
        all.extend(
            self.runs
                .iter()
                .flat_map(|(start, length)| [*start as u64, *length as u64]),
        );
        let mut bytes: Vec<u8> = all.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(&self.data);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (head, rest) = words(bytes, HEAD_WORDS)?;
        let (runs, data) = words(rest, (head[5] as usize).checked_mul(2).ok_or_else(broken)?)?;
        let kind = KINDS.into_iter().find(|kind| *kind as u64 == head[0]);
        Ok(Self {
            kind: kind.ok_or_else(broken)?,
            id: head[1],
            displacement: head[2] as i64,
            operation: head[3] as Number,
            element: head[4] as Number,
            runs: runs
                .chunks_exact(2)
                .map(|run| (run[0] as isize, run[1] as usize))
                .collect(),
            data: data.to_vec(),
        })
    }

    /// The number of a request, of bytes that may hold no more than its first words.
    pub fn id_of(bytes: &[u8]) -> Result<u64> {
        Ok(words(bytes, HEAD_WORDS)?.0[1])
    }
}

impl Response {
    pub fn to_bytes(&self) -> Vec<u8> {
        let code = self.error.as_ref().map_or(0, |error| error.code as u64);
        let mut bytes: Vec<u8> = [self.id, code].iter().flat_map(|word| word.to_ne_bytes()).collect();
        match &self.error {
            Some(error) => bytes.extend(error.text.as_bytes()),
            None => bytes.extend(&self.bytes),
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (head, rest) = words(bytes, 2)?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        let error = (head[1] != 0).then(|| Error::new(head[1] as i32, text()));
        Ok(Self {
            id: head[0],
            bytes: if error.is_none() { rest.to_vec() } else { Vec::new() },
            error,
        })
    }
}
