//! Functions of shared libraries.
//!
//! Two forms exist (`bindings/c/include/dayfly_function.h`). The plain form of the papers does not know its capacity,
//! so it writes into private memory that ends at a guard page; the output is then copied. The checked form receives its
//! capacity, can grow it and report an error, and writes where the output is sent, without a copy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

use dayfly_fabric::clock;
use dayfly_protocol::executor::{Form, LoadFunction};
use dayfly_protocol::ids::CodeHash;
use dayfly_protocol::sizes::{self, Sizes};
use dayfly_protocol::slot::Status;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::mm::{MapFlags, ProtFlags};

use crate::entry_point::EntryPoint;
use crate::{Call, LoadError, Runtime};

/// Output capacity of a plain function whose caller states none.
const PLAIN_OUTPUT_BYTES: usize = 16 << 20;
const PAGE: usize = 4096;

type PlainFunction = unsafe extern "C" fn(*mut c_void, u32, *mut c_void) -> u32;
type CheckedFunction = unsafe extern "C" fn(*mut Context, *const c_void, usize, *mut c_void, usize, *mut usize) -> i32;

#[derive(Clone, Copy)]
enum Function {
    Plain(PlainFunction),
    Checked(CheckedFunction),
    /// The index of an entry point.
    EntryPoint(usize),
}

/// The context of a checked function, with the layout of `dfly_context` in the header.
#[repr(C)]
pub struct Context {
    version: u32,
    reserved: u32,
    set_error: unsafe extern "C" fn(*mut Context, *const c_char),
    grow_output: unsafe extern "C" fn(*mut Context, usize, usize) -> *mut c_void,
    time_left_us: unsafe extern "C" fn(*mut Context) -> u64,
    call: *mut c_void,
    capacity: usize,
    error: Option<String>,
}

unsafe extern "C" fn set_error(context: *mut Context, text: *const c_char) {
    if context.is_null() || text.is_null() {
        return;
    }
    // SAFETY: this worker passed the context to the function, and the text is a C string by contract.
    unsafe { (*context).error = Some(CStr::from_ptr(text).to_string_lossy().into_owned()) };
}

unsafe extern "C" fn grow_output(context: *mut Context, used: usize, capacity: usize) -> *mut c_void {
    if context.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the context is ours, and `call` points to the running call, which is not used elsewhere meanwhile.
    let (context, call) = unsafe { (&mut *context, &mut *(*context).call.cast::<Call<'_>>()) };
    match call.grow(used, capacity) {
        Ok((start, capacity)) => {
            context.capacity = capacity;
            start.cast()
        }
        Err(_) => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn time_left_us(context: *mut Context) -> u64 {
    if context.is_null() {
        return u64::MAX;
    }
    // SAFETY: as above.
    let call = unsafe { &*(*context).call.cast::<Call<'_>>() };
    match call.deadline() {
        None => u64::MAX,
        Some((ms, since)) => {
            (u64::from(ms) * 1000).saturating_sub(clock::us_of_ticks(clock::ticks().saturating_sub(since)))
        }
    }
}

/// Memory that ends at a guard page.
struct Scratch {
    start: *mut u8,
    length: usize,
}

impl Scratch {
    fn new(length: usize) -> Option<Self> {
        let length = length.checked_next_multiple_of(PAGE)?;
        // SAFETY: a fresh private mapping overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length + PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .ok()?
        .cast::<u8>();
        // SAFETY: the last page of the new mapping.
        unsafe { rustix::mm::mprotect(start.add(length).cast(), PAGE, rustix::mm::MprotectFlags::empty()) }.ok()?;
        Some(Self { start, length })
    }

    /// Memory whose end is the guard page, rounded to the alignment of 64 that vector code needs.
    fn place(&self, capacity: usize) -> *mut u8 {
        // SAFETY: callers request at most `length`.
        unsafe { self.start.add(self.length - capacity.next_multiple_of(64)) }
    }
}

/// Loads and calls functions of shared libraries.
#[derive(Default)]
pub struct NativeRuntime {
    libraries: HashMap<CodeHash, Library>,
    numbers: HashMap<LoadFunctionKey, u16>,
    functions: Vec<Function>,
    entry_points: Vec<EntryPoint>,
    scratch: Option<Scratch>,
}

type LoadFunctionKey = (CodeHash, Form);

impl NativeRuntime {
    fn library(&mut self, code: &Path, hash: CodeHash) -> Result<&Library, String> {
        match self.libraries.entry(hash) {
            Entry::Occupied(library) => Ok(library.into_mut()),
            Entry::Vacant(place) => {
                // SAFETY: the library's initializers are the user's code, and running that is this process's purpose.
                let library = unsafe { Library::open(Some(code), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|error| format!("the code {hash} cannot be loaded as a shared library: {error}"))?;
                Ok(place.insert(library))
            }
        }
    }

    fn resolve(&mut self, code: &Path, function: &LoadFunction) -> Result<Function, String> {
        if let Form::EntryPoint { .. } = function.form {
            self.entry_points.push(EntryPoint::load(code)?);
            return Ok(Function::EntryPoint(self.entry_points.len() - 1));
        }
        let library = self.library(code, function.hash)?;
        let missing = |symbol: &str, error: libloading::Error| {
            format!("no function `{symbol}` in the library: {error}. Is it exported, and extern \"C\" in C++?")
        };
        match &function.form {
            // SAFETY: the caller declares by the form that the symbol has this signature; otherwise the worker crashes
            // and is replaced.
            Form::Plain { symbol } => unsafe {
                library
                    .get::<PlainFunction>(symbol.as_bytes())
                    .map(|f| Function::Plain(*f))
                    .map_err(|e| missing(symbol, e))
            },
            // SAFETY: as above.
            Form::Checked { symbol } => unsafe {
                library
                    .get::<CheckedFunction>(symbol.as_bytes())
                    .map(|f| Function::Checked(*f))
                    .map_err(|e| missing(symbol, e))
            },
            Form::Python { .. } | Form::Source { .. } | Form::EntryPoint { .. } => {
                Err("this lease runs shared libraries; lease with the Python runtime to call Python functions".into())
            }
        }
    }

    fn invoke_plain(&mut self, function: PlainFunction, call: &mut Call<'_>) -> Status {
        let expected = call.expected_output();
        let capacity = if expected > 0 {
            expected
        } else {
            PLAIN_OUTPUT_BYTES.min(call.max_output() as usize)
        };
        if self
            .scratch
            .as_ref()
            .is_none_or(|scratch| scratch.length < capacity.next_multiple_of(64))
        {
            self.scratch = Scratch::new(capacity.max(PLAIN_OUTPUT_BYTES).next_multiple_of(64));
        }
        let Some(scratch) = &self.scratch else {
            call.fail("no memory for the function's output");
            return Status::OutOfMemory;
        };
        let out = scratch.place(capacity);
        let input = call.input();
        let Ok(size) = u32::try_from(input.len()) else {
            call.fail("an input of 4 GiB or more needs a function of the checked form, whose sizes are 64 bits wide");
            return Status::MalformedRequest;
        };
        // SAFETY: the function may read its input and write up to the guard page; beyond, the worker dies and is
        // replaced.
        let length = unsafe { function(input.as_ptr().cast_mut().cast(), size, out.cast()) } as usize;
        if length > capacity {
            call.fail(&format!(
                "the function reported {length} bytes of output for a buffer of {capacity}"
            ));
            return Status::OutputOverflow;
        }
        // SAFETY: `length` bytes of the scratch memory, which is readable up to its guard page.
        let output = unsafe { std::slice::from_raw_parts(out, length) };
        match call.put(output) {
            Ok(()) => Status::Ok,
            Err(error) => {
                call.fail(&error.to_string());
                Status::OutOfMemory
            }
        }
    }

    fn invoke_checked(&mut self, function: CheckedFunction, call: &mut Call<'_>) -> Status {
        let expected = call.expected_output();
        let (start, capacity) = match call.place(expected) {
            Ok(place) => place,
            Err(error) => {
                call.fail(&error.to_string());
                return Status::OutOfMemory;
            }
        };
        let input = call.input();
        let (input, input_length) = (input.as_ptr(), input.len());
        let mut context = Context {
            version: 1,
            reserved: 0,
            set_error,
            grow_output,
            time_left_us,
            call: std::ptr::from_mut(call).cast(),
            capacity,
            error: None,
        };
        let mut length = 0;
        // SAFETY: input and output are valid for the stated sizes while the call runs; everything else that the
        // function does affects only the user's own process.
        let result = unsafe {
            function(
                &mut context,
                input.cast(),
                input_length,
                start.cast(),
                capacity,
                &mut length,
            )
        };
        if result != 0 || context.error.is_some() {
            let text = context
                .error
                .unwrap_or_else(|| format!("the function returned {result} and set no error text"));
            call.fail(&text);
            return Status::FunctionError;
        }
        if length > context.capacity {
            call.fail(&format!(
                "the function reported {length} bytes of output for a buffer of {}",
                context.capacity
            ));
            return Status::OutputOverflow;
        }
        call.set_length(length);
        Status::Ok
    }
}

impl Runtime for NativeRuntime {
    fn flush(&mut self) {
        // SAFETY: flushes the buffers of all C streams, under their own locks.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }

    fn describe(&self) -> String {
        "native".into()
    }

    fn load(&mut self, code: &Path, function: &LoadFunction) -> Result<u16, LoadError> {
        let key = (function.hash, function.form.clone());
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let resolved = self.resolve(code, function)?;
        let number = u16::try_from(self.functions.len()).map_err(|_| "more than 65,536 functions in one worker")?;
        self.functions.push(resolved);
        self.numbers.insert(key, number);
        Ok(number)
    }

    fn sizes(&self, function: u16, input: &[u8]) -> Sizes {
        match self.functions.get(usize::from(function)) {
            Some(Function::EntryPoint(_)) => sizes::last_of(input),
            // Their input is whatever they define.
            _ => Sizes::default(),
        }
    }

    #[inline]
    fn invoke(&mut self, function: u16, call: &mut Call<'_>) -> Status {
        match self.functions.get(function as usize) {
            Some(Function::Plain(function)) => self.invoke_plain(*function, call),
            Some(Function::Checked(function)) => self.invoke_checked(*function, call),
            Some(Function::EntryPoint(number)) => self.entry_points[*number].invoke(call),
            None => {
                call.fail("no function of this index was loaded by this worker");
                Status::UnknownFunction
            }
        }
    }
}
