//! Errors: MPI's classes, codes that carry a message, and their texts.
//!
//! A code is a class in its lowest bits ([`CLASS_BITS`]), and above them the number of a recent message. Programs' own
//! classes and codes have bit 30 set.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use dayfly_protocol::error::{Code, Failure};

use crate::errhandler::Place;
use crate::face::mpi;
use crate::interface::CLASS_BITS;
use crate::pointer::{Out, Text, TextOut};

/// Numbers of the classes, in MPICH and in the standard.
pub mod class {
    use std::ffi::c_int;

    macro_rules! classes {
        ($($name:ident = $mpich:literal, $standard:literal: $text:literal)*) => {
            $(#[allow(dead_code)] pub const $name: c_int = if cfg!(face = "mpich") { $mpich } else { $standard };)*

            /// Names of the classes in MPI, and what they mean.
            pub const TEXTS: &[(c_int, &str, &str)] = &[$(($name, stringify!($name), $text)),*];
        };
    }

    // Programs see all of them; not all occur in this library. The standard leaves those from 0x3f00 on free.
    classes! {
        BUFFER = 1, 1: "invalid buffer"
        COUNT = 2, 2: "invalid count"
        TYPE = 3, 3: "invalid datatype"
        TAG = 4, 4: "invalid tag"
        COMM = 5, 5: "invalid communicator"
        RANK = 6, 6: "invalid rank"
        ROOT = 7, 8: "invalid root"
        GROUP = 8, 9: "invalid group"
        OP = 9, 10: "invalid operation"
        TOPOLOGY = 10, 11: "invalid topology"
        DIMS = 11, 12: "invalid dimensions"
        ARG = 12, 13: "invalid argument"
        UNKNOWN = 13, 14: "unknown error"
        TRUNCATE = 14, 15: "message truncated"
        OTHER = 15, 16: "other error"
        INTERN = 16, 17: "internal error"
        IN_STATUS = 17, 19: "the error is in the status"
        PENDING = 18, 18: "pending request"
        REQUEST = 19, 7: "invalid request"
        ACCESS = 20, 20: "permission denied"
        AMODE = 21, 21: "invalid access mode of a file"
        BAD_FILE = 22, 23: "invalid name of a file"
        CONVERSION = 23, 25: "error in a conversion of data"
        DUP_DATAREP = 24, 27: "a data representation of that name exists"
        FILE_EXISTS = 25, 28: "the file exists"
        FILE_IN_USE = 26, 29: "the file is in use"
        FILE = 27, 30: "invalid file"
        INFO = 28, 34: "invalid info"
        INFO_KEY = 29, 31: "the key of an info is too long"
        INFO_VALUE = 30, 33: "the value of an info is too long"
        INFO_NOKEY = 31, 32: "an info has no such key"
        IO = 32, 35: "input or output failed"
        NAME = 33, 38: "no such service name"
        NO_MEM = 34, 39: "out of memory"
        NOT_SAME = 35, 40: "an argument differs between ranks"
        NO_SPACE = 36, 41: "no space left"
        NO_SUCH_FILE = 37, 42: "no such file"
        PORT = 38, 43: "invalid port"
        QUOTA = 39, 44: "quota exceeded"
        READ_ONLY = 40, 45: "the file or its file system is read-only"
        SERVICE = 41, 51: "invalid service name"
        SPAWN = 42, 53: "processes could not be started"
        UNSUPPORTED_DATAREP = 43, 54: "unsupported data representation"
        UNSUPPORTED_OPERATION = 44, 55: "unsupported operation"
        WIN = 45, 56: "invalid window"
        BASE = 46, 24: "invalid base of a window"
        LOCKTYPE = 47, 37: "invalid type of lock"
        KEYVAL = 48, 36: "invalid key of an attribute"
        RMA_CONFLICT = 49, 47: "conflicting accesses to a window"
        RMA_SYNC = 50, 50: "wrong synchronisation of a window"
        SIZE = 51, 52: "invalid size"
        DISP = 52, 26: "invalid displacement"
        ASSERT = 53, 22: "invalid assertion"
        RMA_RANGE = 55, 48: "outside of the window"
        RMA_ATTACH = 56, 46: "memory cannot be attached"
        RMA_SHARED = 57, 49: "memory cannot be shared"
        RMA_FLAVOR = 58, 57: "wrong flavor of a window"
        T_MEMORY = 59, 1005: "the interface for tools is out of memory"
        T_NOT_INITIALIZED = 60, 1003: "the interface for tools is not initialised"
        T_CANNOT_INIT = 61, 1001: "the interface for tools cannot be initialised"
        T_INVALID_INDEX = 62, 1007: "invalid index"
        T_INVALID_ITEM = 63, 1008: "invalid index of an item"
        T_INVALID_HANDLE = 64, 1010: "invalid handle of a variable, an enumeration or an event"
        T_OUT_OF_HANDLES = 65, 1012: "there are no more handles"
        T_OUT_OF_SESSIONS = 66, 1013: "there are no more sessions of the interface for tools"
        T_INVALID_SESSION = 67, 1009: "invalid session of the interface for tools"
        T_CVAR_SET_NOT_NOW = 68, 1014: "the control variable cannot be set now"
        T_CVAR_SET_NEVER = 69, 1015: "the control variable cannot be set"
        T_PVAR_NO_STARTSTOP = 70, 1017: "the performance variable cannot be started or stopped"
        T_PVAR_NO_WRITE = 71, 1016: "the performance variable cannot be written or reset"
        T_PVAR_NO_ATOMIC = 72, 1018: "the performance variable cannot be read and written at once"
        T_INVALID_NAME = 73, 1011: "there is nothing of that name"
        T_INVALID = 74, 1006: "invalid argument, or invalid use of the interface for tools"
        SESSION = 75, 60: "invalid session"
        PROC_ABORTED = 76, 58: "a process has aborted"
        VALUE_TOO_LARGE = 77, 59: "value too large"
        T_NOT_SUPPORTED = 78, 1004: "the interface for tools does not support this"
        T_NOT_ACCESSIBLE = 79, 1002: "not accessible now: there is no group"
        ERRHANDLER = 80, 61: "invalid error handler"
        ABI = 81, 62: "the information about Fortran is set already"
        PROC_FAILED = 101, 0x3f01: "a process has failed"
        PROC_FAILED_PENDING = 102, 0x3f02: "a process has failed, the request is pending"
        REVOKED = 103, 0x3f03: "the communicator is revoked"
        TIMEOUT = 107, 0x3f04: "timed out"
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
    /// The object whose error handler gets it, if not that of the function's arguments.
    pub place: Option<Place>,
}

impl Error {
    pub fn new(code: c_int, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            failure: None,
            place: None,
        }
    }

    /// A code to return for it, which [`text_of`] turns into its message.
    pub fn to_code(&self) -> c_int {
        if self.text.is_empty() || self.code & !CLASS_MASK != 0 {
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
        self.code | ((at + 1) as c_int) << CLASS_BITS
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

/// The bits of a class in a code.
const CLASS_MASK: c_int = (1 << CLASS_BITS) - 1;
/// Classes that MPI does not have.
const EXTENSIONS: [c_int; 4] = [
    class::PROC_FAILED,
    class::PROC_FAILED_PENDING,
    class::REVOKED,
    class::TIMEOUT,
];
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
    let class = code & CLASS_MASK;
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
                let (prefix, name) = match name.strip_prefix("T_") {
                    Some(name) => ("MPI_T_ERR_", name),
                    None if EXTENSIONS.contains(&class) => ("MPIX_ERR_", *name),
                    None => ("MPI_ERR_", *name),
                };
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
    let at = ((code >> CLASS_BITS) as usize).checked_sub(1)?;
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
