//! Errors: MPI's classes, codes that carry a message, and their texts.
//!
//! A code is a class in its lowest eight bits, and above them the number of a recent message. Programs' own classes and
//! codes have bit 30 set.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use dayfly_protocol::error::{Code, Failure};

use crate::face::mpi;
use crate::pointer::{Out, Text, TextOut};

/// Numbers of the classes, as in MPICH's `mpi.h`.
pub mod class {
    use std::ffi::c_int;

    macro_rules! classes {
        ($($name:ident = $number:literal: $text:literal)*) => {
            $(#[allow(dead_code)] pub const $name: c_int = $number;)*

            /// Names of the classes in MPI, and what they mean.
            pub const TEXTS: &[(c_int, &str, &str)] = &[$(($number, stringify!($name), $text)),*];
        };
    }

    // Programs see all of them; not all occur in this library.
    classes! {
        BUFFER = 1: "invalid buffer"
        COUNT = 2: "invalid count"
        TYPE = 3: "invalid datatype"
        TAG = 4: "invalid tag"
        COMM = 5: "invalid communicator"
        RANK = 6: "invalid rank"
        ROOT = 7: "invalid root"
        GROUP = 8: "invalid group"
        OP = 9: "invalid operation"
        TOPOLOGY = 10: "invalid topology"
        DIMS = 11: "invalid dimensions"
        ARG = 12: "invalid argument"
        UNKNOWN = 13: "unknown error"
        TRUNCATE = 14: "message truncated"
        OTHER = 15: "other error"
        INTERN = 16: "internal error"
        IN_STATUS = 17: "the error is in the status"
        PENDING = 18: "pending request"
        REQUEST = 19: "invalid request"
        ACCESS = 20: "permission denied"
        AMODE = 21: "invalid access mode of a file"
        BAD_FILE = 22: "invalid name of a file"
        CONVERSION = 23: "error in a conversion of data"
        DUP_DATAREP = 24: "a data representation of that name exists"
        FILE_EXISTS = 25: "the file exists"
        FILE_IN_USE = 26: "the file is in use"
        FILE = 27: "invalid file"
        INFO = 28: "invalid info"
        INFO_KEY = 29: "the key of an info is too long"
        INFO_VALUE = 30: "the value of an info is too long"
        INFO_NOKEY = 31: "an info has no such key"
        IO = 32: "input or output failed"
        NAME = 33: "no such service name"
        NO_MEM = 34: "out of memory"
        NOT_SAME = 35: "an argument differs between ranks"
        NO_SPACE = 36: "no space left"
        NO_SUCH_FILE = 37: "no such file"
        PORT = 38: "invalid port"
        QUOTA = 39: "quota exceeded"
        READ_ONLY = 40: "the file or its file system is read-only"
        SERVICE = 41: "invalid service name"
        SPAWN = 42: "processes could not be started"
        UNSUPPORTED_DATAREP = 43: "unsupported data representation"
        UNSUPPORTED_OPERATION = 44: "unsupported operation"
        WIN = 45: "invalid window"
        BASE = 46: "invalid base of a window"
        LOCKTYPE = 47: "invalid type of lock"
        KEYVAL = 48: "invalid key of an attribute"
        RMA_CONFLICT = 49: "conflicting accesses to a window"
        RMA_SYNC = 50: "wrong synchronisation of a window"
        SIZE = 51: "invalid size"
        DISP = 52: "invalid displacement"
        ASSERT = 53: "invalid assertion"
        RMA_RANGE = 55: "outside of the window"
        RMA_ATTACH = 56: "memory cannot be attached"
        RMA_SHARED = 57: "memory cannot be shared"
        RMA_FLAVOR = 58: "wrong flavor of a window"
        SESSION = 75: "invalid session"
        PROC_ABORTED = 76: "a process has aborted"
        VALUE_TOO_LARGE = 77: "value too large"
        ERRHANDLER = 80: "invalid error handler"
        PROC_FAILED = 101: "a process has failed"
        PROC_FAILED_PENDING = 102: "a process has failed, the request is pending"
        REVOKED = 103: "the communicator is revoked"
        TIMEOUT = 107: "timed out"
    }
}

/// Result of the body of an MPI function.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an MPI function.
#[derive(Debug, Clone)]
pub struct Error {
    /// A class of [`class`], or a program's own code.
    pub code: c_int,
    pub text: String,
    /// Why the group failed; `None` if the program or this library is the cause.
    pub failure: Option<Code>,
}

impl Error {
    pub fn new(code: c_int, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            failure: None,
        }
    }

    /// A code to return for it, which [`text_of`] turns into its message.
    pub fn to_code(&self) -> c_int {
        if self.text.is_empty() || self.code & !0xff != 0 {
            return self.code;
        }
        let mut texts = lock(&MESSAGES);
        let at = texts.next % MAX_MESSAGES;
        texts.next += 1;
        let message = Message {
            text: self.text.clone(),
            failure: self.failure,
        };
        match texts.all.get_mut(at) {
            Some(slot) => *slot = message,
            None => texts.all.push(message),
        }
        self.code | ((at + 1) as c_int) << 8
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let code = match failure.code {
            Code::RankLost => class::PROC_FAILED,
            Code::Truncated => class::TRUNCATE,
            Code::InvalidRequest => class::ARG,
            Code::TimedOut => class::TIMEOUT,
            Code::OutOfMemory => class::NO_MEM,
            _ => class::OTHER,
        };
        Self {
            failure: Some(failure.code),
            ..Self::new(code, failure.message)
        }
    }
}

/// Messages that are kept for codes.
const MAX_MESSAGES: usize = 4096;
/// First code of programs.
const FIRST_OWN: c_int = 0x4000_0000;

#[derive(Clone)]
struct Message {
    text: String,
    failure: Option<Code>,
}

struct Messages {
    all: Vec<Message>,
    next: usize,
}

static MESSAGES: Mutex<Messages> = Mutex::new(Messages {
    all: Vec::new(),
    next: 0,
});

/// A program's own class or code.
struct Own {
    class: c_int,
    text: String,
    removed: bool,
}

static OWN: Mutex<Vec<Own>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The greatest code that is in use.
pub fn last_used_code() -> c_int {
    match lock(&OWN).len() {
        0 => 0x3fff_ffff,
        count => FIRST_OWN + count as c_int - 1,
    }
}

fn own<T>(code: c_int, using: impl FnOnce(&mut Own) -> T) -> Option<T> {
    let mut all = lock(&OWN);
    let entry = all.get_mut(usize::try_from(code.checked_sub(FIRST_OWN)?).ok()?)?;
    (!entry.removed).then(|| using(entry))
}

/// The class of a code.
pub fn class_of(code: c_int) -> Option<c_int> {
    if code >= FIRST_OWN {
        return own(code, |own| own.class);
    }
    let class = code & 0xff;
    (code >= 0 && (class == 0 || class::TEXTS.iter().any(|(number, ..)| *number == class))).then_some(class)
}

/// The text of a code.
pub fn text_of(code: c_int) -> Option<String> {
    if code >= FIRST_OWN {
        return own(code, |own| own.text.clone());
    }
    let class = class_of(code)?;
    let name = match class {
        0 => "MPI_SUCCESS: no error".into(),
        _ => class::TEXTS
            .iter()
            .find(|(number, ..)| *number == class)
            .map(|(_, name, text)| {
                let prefix = if class > 100 { "MPIX_ERR_" } else { "MPI_ERR_" };
                format!("{prefix}{name}: {text}")
            })?,
    };
    match message_of(code) {
        Some(message) => Some(format!("{name}: {}", message.text)),
        None => Some(name),
    }
}

/// The message that a code carries, if it carries one.
fn message_of(code: c_int) -> Option<Message> {
    if !(0..FIRST_OWN).contains(&code) {
        return None;
    }
    let at = ((code >> 8) as usize).checked_sub(1)?;
    lock(&MESSAGES).all.get(at).cloned()
}

/// Writes why a group failed, as the name of a [`Code`] and a message; two empty texts if it did not.
pub fn describe(failure: Option<Code>, text: &str, name: TextOut, message: TextOut) -> Result<()> {
    name.set(failure.map_or("", Code::name), MAX_ERROR_STRING)?;
    message.set(if failure.is_some() { text } else { "" }, MAX_ERROR_STRING)?;
    Ok(())
}

fn add(of: Option<c_int>) -> c_int {
    let mut all = lock(&OWN);
    let number = FIRST_OWN + all.len() as c_int;
    all.push(Own {
        class: of.unwrap_or(number),
        text: String::new(),
        removed: false,
    });
    number
}

fn invalid_code(code: c_int) -> Error {
    Error::new(class::ARG, format!("{code} is no error code"))
}

/// Removes a program's class or code, which nothing may use any more.
fn remove(code: c_int, is_class: bool) -> Result<()> {
    let of = own(code, |own| own.class).ok_or_else(|| invalid_code(code))?;
    let text = own(code, |own| own.text.clone()).unwrap_or_default();
    let mut others = lock(&OWN)
        .iter()
        .filter(|own| !own.removed && own.class == code)
        .count();
    others = others.saturating_sub(1);
    if (of == code) != is_class || !text.is_empty() || (is_class && others > 0) {
        return Err(Error::new(
            class::OTHER,
            format!("{code} is still in use, or not of this kind"),
        ));
    }
    own(code, |own| own.removed = true).ok_or_else(|| invalid_code(code))
}

const MAX_ERROR_STRING: usize = 512;

mpi! {
    fn MPI_Error_class(code: c_int, class: Out<c_int>) [()] {
        class.check()?.set(class_of(code).ok_or_else(|| invalid_code(code))?);
        Ok(())
    }

    fn MPI_Error_string(code: c_int, text: TextOut, length: Out<c_int>) [()] {
        let written = text_of(code).ok_or_else(|| invalid_code(code))?;
        length.set(text.set(&written, MAX_ERROR_STRING)?);
        Ok(())
    }

    /// For bindings: the code and the message of Dayfly's own error that a code of MPI stands for, each with room for
    /// 512 bytes; empty if the program is the cause.
    fn MPIX_Dayfly_failure(code: c_int, name: TextOut, message: TextOut) [()] {
        let found = message_of(code);
        let text = found.as_ref().map_or("", |found| &found.text);
        describe(found.as_ref().and_then(|found| found.failure), text, name, message)
    }

    fn MPI_Add_error_class(class: Out<c_int>) [()] {
        class.check()?.set(add(None));
        Ok(())
    }

    fn MPI_Add_error_code(class: c_int, code: Out<c_int>) [()] {
        let class = class_of(class).ok_or_else(|| invalid_code(class))?;
        code.check()?.set(add(Some(class)));
        Ok(())
    }

    fn MPI_Add_error_string(code: c_int, text: Text) [()] {
        let text = text.get()?;
        own(code, |own| own.text = text).ok_or_else(|| invalid_code(code))
    }

    fn MPI_Remove_error_class(class: c_int) [()] {
        remove(class, true)
    }

    fn MPI_Remove_error_code(code: c_int) [()] {
        remove(code, false)
    }

    fn MPI_Remove_error_string(code: c_int) [()] {
        own(code, |own| own.text.clear()).ok_or_else(|| invalid_code(code))
    }
}
