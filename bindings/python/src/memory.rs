//! Memory that an object exports, through the buffer protocol or DLPack.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};

use dayfly_comm::Datatype;
use dayfly_protocol::error::Code;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::raise;

fn refuse(py: Python<'_>, message: &str) -> PyErr {
    raise(py, Code::InvalidRequest, message)
}

/// Contiguous memory of another object, which it keeps alive.
pub struct Memory {
    start: *mut c_void,
    length: usize,
    read_only: bool,
    datatype: Option<Datatype>,
    /// The object's own name of the element type, if it is none of the supported datatypes.
    format: String,
    _owner: Owner,
}

// SAFETY: the owner keeps the memory alive, and any thread may use it. A program that modifies it during an operation
// violates the rules of MPI, and gets undefined content.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// The object that keeps the memory alive.
enum Owner {
    Buffer { _held: Held },
    Tensor { _held: Tensor },
}

/// A buffer that is released on drop.
struct Held(Box<ffi::Py_buffer>);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: filled in by PyObject_GetBuffer, and released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Returns the datatype of a format of the buffer protocol, if it is supported. The format's letter gives the kind, and
/// `size` the size of an element in bytes.
fn datatype_of(format: &str, size: usize) -> Option<Datatype> {
    let format = match format.as_bytes().first() {
        Some(b'<') if cfg!(target_endian = "little") => &format[1..],
        Some(b'>' | b'!') if cfg!(target_endian = "big") => &format[1..],
        Some(b'@' | b'=' | b'|') => &format[1..],
        _ => format,
    };
    Some(match (format, size) {
        ("b" | "h" | "i" | "l" | "q" | "n", 1) => Datatype::I8,
        ("h" | "i" | "l" | "q" | "n", 2) => Datatype::I16,
        ("h" | "i" | "l" | "q" | "n", 4) => Datatype::I32,
        ("h" | "i" | "l" | "q" | "n", 8) => Datatype::I64,
        ("B" | "c" | "s", 1) => Datatype::U8,
        ("H" | "I" | "L" | "Q" | "N", 2) => Datatype::U16,
        ("H" | "I" | "L" | "Q" | "N", 4) => Datatype::U32,
        ("H" | "I" | "L" | "Q" | "N", 8) => Datatype::U64,
        ("f", 4) => Datatype::F32,
        ("d", 8) => Datatype::F64,
        ("?", 1) => Datatype::Bool,
        ("Zf" | "F", 8) => Datatype::Complex64,
        ("Zd" | "D", 16) => Datatype::Complex128,
        _ => return None,
    })
}

/// An array of DLPack, version 1.
#[repr(C)]
struct Array {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: Element,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// An array with its owner, before version 1 of DLPack.
#[repr(C)]
struct Unversioned {
    array: Array,
    context: *mut c_void,
    end: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// An array with its owner, since version 1 of DLPack.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    end: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    array: Array,
}

const READ_ONLY: u64 = 1;
const MAJOR: u32 = 1;
/// DLPack devices whose memory this processor can access.
const HOST: [i32; 3] = [1, 3, 11];

/// An array whose ownership was transferred to this process.
enum Tensor {
    Unversioned(*mut Unversioned),
    Versioned(*mut Versioned),
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // The owner may be a Python object.
        Python::attach(|_| {
            // SAFETY: owned since the capsule was renamed, and deleted once.
            unsafe {
                match *self {
                    Self::Unversioned(of) => {
                        if let Some(end) = (*of).end {
                            end(of);
                        }
                    }
                    Self::Versioned(of) => {
                        if let Some(end) = (*of).end {
                            end(of);
                        }
                    }
                }
            }
        });
    }
}

impl Element {
    fn datatype(self) -> Option<Datatype> {
        Some(match (self.code, self.bits, self.lanes) {
            (0, 8, 1) => Datatype::I8,
            (0, 16, 1) => Datatype::I16,
            (0, 32, 1) => Datatype::I32,
            (0, 64, 1) => Datatype::I64,
            (1, 8, 1) => Datatype::U8,
            (1, 16, 1) => Datatype::U16,
            (1, 32, 1) => Datatype::U32,
            (1, 64, 1) => Datatype::U64,
            (2, 32, 1) => Datatype::F32,
            (2, 64, 1) => Datatype::F64,
            (5, 64, 1) => Datatype::Complex64,
            (5, 128, 1) => Datatype::Complex128,
            (6, 8, 1) => Datatype::Bool,
            _ => return None,
        })
    }

    fn name(self) -> String {
        const KINDS: [&str; 7] = ["int", "uint", "float", "opaque", "bfloat", "complex", "bool"];
        let kind = KINDS.get(self.code as usize).copied().unwrap_or("unknown");
        format!("{kind}{}", self.bits)
    }
}

/// Returns whether each dimension's stride covers the preceding dimensions without a gap.
fn in_order<'a>(mut dimensions: impl Iterator<Item = (&'a i64, &'a i64)>) -> bool {
    let mut next = 1;
    dimensions.all(|(length, stride)| {
        let fits = *length == 1 || *stride == next;
        next *= length;
        fits
    })
}

/// Returns the number of elements of a contiguous array, in row or column order; `None` if it is not contiguous.
fn elements(shape: &[i64], strides: Option<&[i64]>) -> Option<usize> {
    let total = shape
        .iter()
        .try_fold(1i64, |total, length| total.checked_mul(*length))?;
    let total = usize::try_from(total).ok()?;
    let Some(strides) = strides else { return Some(total) };
    let pairs = || shape.iter().zip(strides);
    (total == 0 || in_order(pairs().rev()) || in_order(pairs())).then_some(total)
}

impl Memory {
    /// Returns the memory of an object, for reading or for writing.
    pub fn to(object: &Bound<'_, PyAny>, write: bool) -> PyResult<Self> {
        let memory = Self::of(object)?;
        if write && memory.read_only {
            let message = format!(
                "{} is read-only; receive into memory that may be written to",
                object.get_type().name()?
            );
            return Err(refuse(object.py(), &message));
        }
        if memory.datatype.is_none() {
            let message = format!(
                "elements of type '{}', which ranks do not know; pass its bytes",
                memory.format
            );
            return Err(refuse(object.py(), &message));
        }
        Ok(memory)
    }

    /// Returns the datatype of its elements, if it is supported.
    pub fn element(&self) -> Option<Datatype> {
        self.datatype
    }

    pub fn bytes(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the owner keeps `length` bytes there.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }

    /// Returns the writable bytes. The memory must have been requested for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.length == 0 || self.read_only {
            return &mut [];
        }
        // SAFETY: as above, and the memory is writable.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.length) }
    }

    /// Returns the memory that an object exports.
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // SAFETY: the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::of_buffer(object);
        }
        if object.hasattr("__dlpack__")? {
            return Self::of_tensor(object);
        }
        if object.hasattr("__cuda_array_interface__")? {
            return Err(on_a_device(py, 2));
        }
        let name = object.get_type().name()?;
        Err(refuse(
            py,
            &format!("{name} is not a buffer: pass an array, or another object with the buffer protocol or DLPack"),
        ))
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let mut held = Box::<ffi::Py_buffer>::new(ffi::Py_buffer::new());
        let mut ask = |flags: c_int| {
            // SAFETY: the object is alive, and the call fills the buffer in or leaves it unchanged.
            match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *held, flags) } {
                0 => Ok(()),
                _ => Err(PyErr::fetch(py)),
            }
        };
        // NumPy exports no format for dates, but its memory is usable.
        ask(ffi::PyBUF_FULL_RO)
            .or_else(|_| ask(ffi::PyBUF_STRIDES))
            .map_err(|error| refuse(py, &format!("the memory of this object is not accessible: {error}")))?;
        let held = Held(held);
        let view = &held.0;
        // SAFETY: the buffer was filled in.
        if unsafe { ffi::PyBuffer_IsContiguous(&**view, b'A' as c_char) } == 0 {
            return Err(refuse(
                py,
                "this array is not contiguous; send a copy (numpy.ascontiguousarray), or receive into a contiguous array and \
                 copy from there",
            ));
        }
        let size = usize::try_from(view.itemsize).unwrap_or(1);
        let format = match view.format.is_null() {
            // SAFETY: a string of the object, which is kept alive.
            false => unsafe { CStr::from_ptr(view.format) }.to_string_lossy(),
            true if size == 1 => Cow::Borrowed("B"),
            true => Cow::Borrowed("unknown"),
        };
        let datatype = datatype_of(&format, size);
        Ok(Self {
            start: view.buf,
            length: usize::try_from(view.len).unwrap_or(0),
            read_only: view.readonly != 0,
            datatype,
            format: if datatype.is_some() {
                String::new()
            } else {
                format.into_owned()
            },
            _owner: Owner::Buffer { _held: held },
        })
    }

    fn of_tensor(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let (kind, _): (i32, i64) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST.contains(&kind) {
            return Err(on_a_device(py, kind));
        }
        let refused = |error: PyErr| refuse(py, &format!("this array does not export its memory: {error}"));
        let options = PyDict::new(py);
        options.set_item("max_version", (MAJOR, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&options)) {
            // The object implements DLPack before version 1, which has no such keyword.
            Err(error) if error.is_instance_of::<PyTypeError>(py) && error.to_string().contains("keyword") => {
                object.call_method0("__dlpack__")
            }
            made => made,
        };
        let tensor = Tensor::take(&capsule.map_err(refused)?).map_err(refused)?;
        // SAFETY: owned, and not deleted before `tensor` is dropped.
        let (array, flags) = unsafe {
            match tensor {
                Tensor::Unversioned(of) => (&(*of).array, 0),
                Tensor::Versioned(of) => {
                    if (*of).major != MAJOR {
                        return Err(refuse(
                            py,
                            &format!(
                                "this array uses version {} of DLPack, which is not supported",
                                (*of).major
                            ),
                        ));
                    }
                    (&(*of).array, (*of).flags)
                }
            }
        };
        if !HOST.contains(&array.device.kind) {
            return Err(on_a_device(py, array.device.kind));
        }
        let dimensions = usize::try_from(array.dimensions).unwrap_or(0);
        let list = |start: *const i64| {
            // SAFETY: the array has this many dimensions, and keeps its lists alive.
            (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start, dimensions) })
        };
        let Some(count) = elements(list(array.shape).unwrap_or(&[]), list(array.strides)) else {
            return Err(refuse(
                py,
                "this tensor is not contiguous; use the result of its method `contiguous`",
            ));
        };
        let element = array.element;
        let bits = usize::from(element.bits) * usize::from(element.lanes);
        let start = array.data.wrapping_byte_add(array.offset as usize);
        // Arrow's exported memory is read-only, and DLPack before version 1 cannot express that.
        let read_only = flags & READ_ONLY != 0 || object.hasattr("__arrow_c_array__")?;
        Ok(Self {
            start,
            length: count * bits.div_ceil(8),
            read_only,
            datatype: element.datatype(),
            format: element.name(),
            _owner: Owner::Tensor { _held: tensor },
        })
    }
}

fn on_a_device(py: Python<'_>, kind: i32) -> PyErr {
    let name = match kind {
        2 | 13 => " (CUDA)",
        8 => " (Metal)",
        10 => " (ROCm)",
        14 => " (oneAPI)",
        _ => "",
    };
    let message = format!(
        "this array lies in the memory of a device of kind {kind}{name}; copy it to that of the processor, and back after"
    );
    refuse(py, &message)
}

impl Tensor {
    /// Takes ownership of the array in a capsule.
    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: the standard defines the names, which identify the type of the pointer. Renaming the capsule
        // transfers ownership.
        unsafe {
            let object = capsule.as_ptr();
            if ffi::PyCapsule_IsValid(object, c"dltensor_versioned".as_ptr()) != 0 {
                let of = ffi::PyCapsule_GetPointer(object, c"dltensor_versioned".as_ptr());
                ffi::PyCapsule_SetName(object, c"used_dltensor_versioned".as_ptr());
                return Ok(Self::Versioned(of.cast()));
            }
            if ffi::PyCapsule_IsValid(object, c"dltensor".as_ptr()) != 0 {
                let of = ffi::PyCapsule_GetPointer(object, c"dltensor".as_ptr());
                ffi::PyCapsule_SetName(object, c"used_dltensor".as_ptr());
                return Ok(Self::Unversioned(of.cast()));
            }
        }
        Err(PyBufferError::new_err(
            "its __dlpack__ does not return a capsule of DLPack",
        ))
    }
}
