//! Encoding of Python values: pickle protocol 5 with out-of-band buffers.
//!
//! The last byte of a payload is its form ([`form`] in a request, [`result_form`] in a response). A plain payload is a
//! pickle and that byte. If [`BUFFERS`] is set in it, the payload is
//!
//! ```text
//! buffers, each at a multiple of 64 | pickle | (offset u64, length u64) per buffer | trailer
//! trailer: pickle offset u64, pickle length u64, buffers u32, 3 zero bytes, the last byte
//! ```
//!
//! so that the buffers are aligned at the start of the memory. All numbers are little-endian. If [`SIZED`] is set, the
//! sizes that a client states follow the pickle; see [`dayfly_protocol::sizes`].

use dayfly_client::{Buffer, Input, Received};
use dayfly_protocol::encoding::parts;
use dayfly_protocol::sizes::{SIZED, SIZES_BYTES, Sizes, to_bytes};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple};

use crate::block::{Block, Memory};
use crate::shared::{SLACK, SharedMemory};
use crate::sizes;

/// Forms of a request's payload.
pub mod form {
    /// The tuple of positional arguments.
    pub const ARGUMENTS: u8 = 0;
    /// A pair of the tuple of positional and the dictionary of keyword arguments.
    pub const KEYWORDS: u8 = 1;
    /// A list of items, each the only argument of a call.
    pub const MAP: u8 = 2;
    /// A list of tuples, each the arguments of a call.
    pub const STARMAP: u8 = 3;
    /// The content of a `bytes` object, which is the only argument.
    pub const BYTES: u8 = 4;
    /// JSON: an object with the list `arguments` and the object `keywords`. The response is JSON too.
    pub const JSON: u8 = dayfly_protocol::encoding::JSON_CALL;
    /// One of the other forms, with results of tasks that the arguments refer to.
    pub const WITH_ANSWERS: u8 = dayfly_protocol::encoding::CALL_WITH_RESULTS;
    /// One of the other forms, with a rank's invitation to its group.
    pub const OF_RANK: u8 = dayfly_protocol::encoding::CALL_OF_RANK;
}

/// Forms of a response's payload.
pub mod result_form {
    /// The result.
    pub const VALUE: u8 = 0;
    /// Empty: the result is `None`.
    pub const NONE: u8 = 1;
    /// The content of a `bytes` object, which is the result.
    pub const BYTES: u8 = 2;
    /// A JSON value.
    pub const JSON: u8 = dayfly_protocol::encoding::JSON_RESULT;
    /// Results of all ranks of a group.
    pub const OF_RANKS: u8 = dayfly_protocol::encoding::RANK_RESULTS;
}

/// Set in the last byte if the payload has out-of-band buffers.
pub const BUFFERS: u8 = 0x80;

/// Returns the form of a request by its last byte.
pub fn form_of(last: u8) -> u8 {
    last & !(BUFFERS | SIZED)
}

/// Which sizes a call's payload states.
#[derive(Debug, Clone, Copy)]
pub enum Stated {
    /// None: calls of hot workers, which nodes do not predict.
    None,
    /// Those that its arguments have by themselves.
    Natural,
    /// These.
    These(Sizes),
}
const TRAILER: usize = 24;
const ALIGN: usize = 64;
/// Name of the main module in a pickle. The main module differs between processes.
const MAIN: &[u8] = b"__main__";

/// The pickle functions, looked up once.
pub struct Codec {
    loads: Py<PyAny>,
    dumps: Py<PyAny>,
    dumps_by_value: Py<PyAny>,
}

/// Arguments of a call, ready to send.
pub enum Arguments<'a, 'py> {
    /// One `bytes` object, sent without a pickle.
    Bytes(&'a [u8]),
    /// Any other arguments, and their form.
    Encoded(Encoded<'py>, u8),
}

/// A pickled value, ready to send.
pub struct Encoded<'py> {
    pickle: Bound<'py, PyBytes>,
    buffers: Vec<PyBuffer<u8>>,
    sizes: Option<[u8; SIZES_BYTES]>,
    total: usize,
}

impl Codec {
    pub fn new(py: Python<'_>) -> PyResult<Self> {
        let pickle = py.import("_pickle")?;
        Ok(Self {
            loads: pickle.getattr("loads")?.unbind(),
            dumps: pickle.getattr("dumps")?.unbind(),
            dumps_by_value: py.import("cloudpickle")?.getattr("dumps")?.unbind(),
        })
    }

    /// Returns a codec that only decodes data and runs no code, for untrusted payloads: see ``_codec/reader.py``.
    pub fn restricted(py: Python<'_>) -> PyResult<Self> {
        Ok(Self {
            loads: py.import("dayfly._codec.reader")?.getattr("loads")?.unbind(),
            ..Self::new(py)?
        })
    }

    /// Pickles the arguments of a call.
    pub fn arguments<'a, 'py>(
        &self,
        py: Python<'py>,
        arguments: &'a Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
        stated: Stated,
    ) -> PyResult<Arguments<'a, 'py>> {
        let sizes = match stated {
            Stated::None => None,
            Stated::Natural => sizes::natural(arguments, keywords),
            Stated::These(sizes) => Some(sizes),
        };
        if let Some(keywords) = keywords
            && !keywords.is_empty()
        {
            let both = (arguments, keywords).into_pyobject(py)?;
            let encoded = self.encode(py, &both)?.with_sizes(sizes);
            return Ok(Arguments::Encoded(encoded, form::KEYWORDS));
        }
        // The size of such a payload is that of its only argument.
        if !matches!(stated, Stated::These(_))
            && arguments.len() == 1
            && let Ok(bytes) = arguments.get_borrowed_item(0)?.cast_exact::<PyBytes>()
        {
            // SAFETY: the tuple keeps the object alive, and a `bytes` object neither changes nor moves.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.as_bytes().as_ptr(), bytes.as_bytes().len()) };
            return Ok(Arguments::Bytes(bytes));
        }
        let simple = arguments.iter_borrowed().all(|argument| is_simple(&argument));
        let encoded = if simple {
            self.encode_plain(py, arguments)?
        } else {
            self.encode(py, arguments)?
        };
        Ok(Arguments::Encoded(encoded.with_sizes(sizes), form::ARGUMENTS))
    }

    /// Pickles a value with the fast pickler. Falls back to pickling by value if the value refers to objects that only
    /// this process has.
    pub fn encode<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Encoded<'py>> {
        let buffers = PyList::empty(py);
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "protocol"), 5)?;
        keywords.set_item(intern!(py, "buffer_callback"), buffers.getattr(intern!(py, "append"))?)?;
        let pickle = match self.dumps.bind(py).call((value,), Some(&keywords)) {
            Ok(pickle) => Some(pickle.cast_into::<PyBytes>()?),
            Err(error) if is_fatal(py, &error) => return Err(error),
            Err(_) => None,
        };
        let pickle = match pickle {
            Some(pickle) if !mentions_main(pickle.as_bytes()) => pickle,
            _ => {
                buffers.call_method0(intern!(py, "clear"))?;
                self.dumps_by_value
                    .bind(py)
                    .call((value,), Some(&keywords))?
                    .cast_into()?
            }
        };
        Encoded::new(pickle, &buffers)
    }

    /// As [`Codec::encode`], for values without buffers.
    pub fn encode_plain<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Encoded<'py>> {
        let pickle = self.dumps.bind(py).call1((value, 5))?.cast_into::<PyBytes>()?;
        let total = pickle.as_bytes().len() + 1;
        Ok(Encoded {
            pickle,
            buffers: Vec::new(),
            sizes: None,
            total,
        })
    }

    /// Unpickles a payload without buffers, without a copy.
    pub fn decode_plain<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the unpickler copies what it keeps, so the view does not outlive the slice.
        let view = unsafe {
            let start = payload.as_ptr().cast_mut().cast();
            let view = ffi::PyMemoryView_FromMemory(start, payload.len() as isize, ffi::PyBUF_READ);
            Bound::from_owned_ptr_or_err(py, view)?
        };
        self.loads.bind(py).call1((view,))
    }

    /// Unpickles a payload whose buffers stay in place. The value's views keep the block alive.
    pub fn decode_buffers<'py>(&self, py: Python<'py>, block: &Bound<'py, Block>) -> PyResult<Bound<'py, PyAny>> {
        let payload = block.get().bytes();
        let table =
            Table::read(payload).ok_or_else(|| PyValueError::new_err("the payload's table of buffers is malformed"))?;
        // SAFETY: the interpreter asks the block for its buffer and holds a reference to it.
        let whole = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(block.as_ptr()))? };
        let buffers = PyList::empty(py);
        for index in 0..table.count {
            let (offset, length) = table
                .buffer(payload, index)
                .ok_or_else(|| PyValueError::new_err("a buffer beyond the payload"))?;
            buffers.append(whole.get_item(PySlice::new(py, offset as isize, (offset + length) as isize, 1))?)?;
        }
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "buffers"), &buffers)?;
        // SAFETY: as in `decode_plain`.
        let pickle = unsafe {
            let start = payload[table.pickle.clone()].as_ptr().cast_mut().cast();
            let view = ffi::PyMemoryView_FromMemory(start, table.pickle.len() as isize, ffi::PyBUF_READ);
            Bound::from_owned_ptr_or_err(py, view)?
        };
        self.loads.bind(py).call((pickle,), Some(&keywords))
    }

    /// Unpickles a received payload, and keeps its memory for the value's buffers.
    pub fn decode_received<'py>(&self, py: Python<'py>, received: Received) -> PyResult<Bound<'py, PyAny>> {
        match received.as_slice().last() {
            Some(last) if last & BUFFERS != 0 => {
                let block = Bound::new(py, Block::new(Memory::Landed(received)))?;
                self.decode_buffers(py, &block)
            }
            _ => self.decode_small(py, received.as_slice()),
        }
    }

    /// Unpickles a payload in a slot, and copies what the value keeps.
    pub fn decode_small<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let Some((last, content)) = payload.split_last() else {
            return Err(PyValueError::new_err(
                "an empty result; client and worker run different versions of dayfly",
            ));
        };
        match *last {
            result_form::NONE => Ok(py.None().into_bound(py)),
            result_form::BYTES => Ok(PyBytes::new(py, content).into_any()),
            result_form::OF_RANKS => {
                let parts =
                    parts(payload).ok_or_else(|| PyValueError::new_err("the results of the ranks are malformed"))?;
                let results = parts.into_iter().map(|part| self.decode_small(py, part));
                Ok(PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)?.into_any())
            }
            result_form::JSON => py.import("json")?.call_method1("loads", (PyBytes::new(py, content),)),
            _ => self.decode_copied(py, payload),
        }
    }

    /// Unpickles a payload, and copies its buffers.
    pub fn decode_copied<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match payload.split_last() {
            Some((last, _)) if last & BUFFERS != 0 => {
                let block = Bound::new(py, Block::new(Memory::Copied(payload.to_vec())))?;
                self.decode_buffers(py, &block)
            }
            Some((_, content)) => self.decode_plain(py, content),
            None => Err(PyValueError::new_err("an empty payload")),
        }
    }
}

fn is_simple(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyBytes>()
}

/// Returns whether an error must be raised instead of a retry by value: an interrupt or lack of memory, for example.
fn is_fatal(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<pyo3::exceptions::PyMemoryError>(py)
        || !error.is_instance_of::<pyo3::exceptions::PyException>(py)
}

/// Returns whether a pickle refers to the main module, which differs between processes.
fn mentions_main(pickle: &[u8]) -> bool {
    // SAFETY: both slices are valid for their lengths.
    let found = unsafe { libc::memmem(pickle.as_ptr().cast(), pickle.len(), MAIN.as_ptr().cast(), MAIN.len()) };
    !found.is_null()
}

impl<'py> Encoded<'py> {
    fn new(pickle: Bound<'py, PyBytes>, list: &Bound<'py, PyList>) -> PyResult<Self> {
        let mut buffers = Vec::new();
        let mut end = 0usize;
        for buffer in list.iter() {
            let raw = PyBuffer::<u8>::get(&buffer.call_method0(intern!(list.py(), "raw"))?)?;
            end = end.next_multiple_of(ALIGN) + raw.len_bytes();
            buffers.push(raw);
        }
        let total = match buffers.len() {
            0 => pickle.as_bytes().len() + 1,
            count => end + pickle.as_bytes().len() + 16 * count + TRAILER,
        };
        Ok(Self {
            pickle,
            buffers,
            sizes: None,
            total,
        })
    }

    /// Returns the payload with the sizes that its client states.
    fn with_sizes(mut self, sizes: Option<Sizes>) -> Self {
        if let Some(sizes) = sizes {
            self.sizes = Some(to_bytes(&sizes));
            self.total += SIZES_BYTES;
        }
        self
    }

    /// The sizes as they are sent.
    fn size_bytes(&self) -> &[u8] {
        self.sizes.as_ref().map_or(&[], |sizes| &sizes[..])
    }

    /// The last byte of the payload.
    fn last(&self, form: u8) -> u8 {
        let buffers = if self.buffers.is_empty() { 0 } else { BUFFERS };
        let sized = if self.sizes.is_some() { SIZED } else { 0 };
        form | buffers | sized
    }

    /// Returns the number of bytes that [`Encoded::write`] writes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Writes the payload into `place`, which must have exactly [`Encoded::total`] bytes. `last` is its form.
    pub fn write(&self, place: &mut [u8], last: u8) {
        let (pickle, sizes) = (self.pickle.as_bytes(), self.size_bytes());
        if self.buffers.is_empty() {
            place[..pickle.len()].copy_from_slice(pickle);
            place[pickle.len()..pickle.len() + sizes.len()].copy_from_slice(sizes);
            place[pickle.len() + sizes.len()] = self.last(last);
            return;
        }
        let mut end = 0usize;
        let mut table = Vec::with_capacity(16 * self.buffers.len() + TRAILER);
        for buffer in &self.buffers {
            let start = end.next_multiple_of(ALIGN);
            let length = buffer.len_bytes();
            // SAFETY: a raw pickle buffer is contiguous memory of `length` bytes that its view keeps alive. If another
            // thread writes it concurrently, only the content of the copied bytes is undefined.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), length) };
            if length > 0 {
                place[start..start + length].copy_from_slice(bytes);
            }
            table.extend_from_slice(&(start as u64).to_le_bytes());
            table.extend_from_slice(&(length as u64).to_le_bytes());
            end = start + length;
        }
        place[end..end + pickle.len()].copy_from_slice(pickle);
        table.extend_from_slice(&(end as u64).to_le_bytes());
        table.extend_from_slice(&(pickle.len() as u64).to_le_bytes());
        table.extend_from_slice(&(self.buffers.len() as u32).to_le_bytes());
        table.extend_from_slice(&[0, 0, 0, self.last(last)]);
        let end = end + pickle.len();
        place[end..end + sizes.len()].copy_from_slice(sizes);
        place[end + sizes.len()..].copy_from_slice(&table);
    }

    /// Returns the payload as a copy.
    pub fn to_vec(&self, last: u8) -> Vec<u8> {
        if self.buffers.is_empty() {
            let pickle = self.pickle.as_bytes();
            let mut bytes = Vec::with_capacity(self.total);
            bytes.extend_from_slice(pickle);
            bytes.extend_from_slice(self.size_bytes());
            bytes.push(self.last(last));
            return bytes;
        }
        let mut bytes = vec![0; self.total];
        self.write(&mut bytes, last);
        bytes
    }

    /// Returns the payload with its only buffer in place, if that is shared memory, and writes the pickle behind it.
    /// Returns `None` otherwise.
    pub fn in_place(&self, last: u8) -> Option<Input> {
        let [buffer] = self.buffers.as_slice() else { return None };
        let length = buffer.len_bytes();
        let behind = self.total - length;
        if behind > SLACK {
            return None;
        }
        // SAFETY: as in `write`.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), length) };
        let (memory, _) = SharedMemory::holding(bytes)?;
        if length + SLACK != memory.len() {
            // The buffer is a part of the memory, so the bytes behind it belong to the caller.
            return None;
        }
        // SAFETY: no one else uses the slack behind the caller's bytes while no call uses the memory.
        let place = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().add(length), behind) };
        self.write_behind(place, length, last);
        Some(Input::Shared(memory, self.total))
    }

    fn write_behind(&self, place: &mut [u8], length: usize, last: u8) {
        let (pickle, sizes) = (self.pickle.as_bytes(), self.size_bytes());
        let (front, rest) = place.split_at_mut(pickle.len());
        front.copy_from_slice(pickle);
        let (front, table) = rest.split_at_mut(sizes.len());
        front.copy_from_slice(sizes);
        for (at, word) in [0, length, length, pickle.len()].into_iter().enumerate() {
            table[8 * at..8 * at + 8].copy_from_slice(&(word as u64).to_le_bytes());
        }
        table[32..36].copy_from_slice(&1u32.to_le_bytes());
        table[36..40].copy_from_slice(&[0, 0, 0, self.last(last)]);
    }

    /// Writes the payload into a channel's buffer, which is sent without another copy.
    pub fn into_buffer(self, mut buffer: Buffer, last: u8) -> Buffer {
        self.write(&mut buffer.as_mut_slice()[..self.total], last);
        buffer
    }
}

struct Table {
    pickle: std::ops::Range<usize>,
    count: usize,
    start: usize,
}

impl Table {
    fn read(payload: &[u8]) -> Option<Self> {
        let trailer_start = payload.len().checked_sub(TRAILER)?;
        let trailer = &payload[trailer_start..];
        let offset = number(trailer, 0)?;
        let length = number(trailer, 8)?;
        let count = u32::from_le_bytes(trailer[16..20].try_into().ok()?) as usize;
        let start = trailer_start.checked_sub(count.checked_mul(16)?)?;
        let end = offset.checked_add(length)?;
        (end <= start).then_some(Self {
            pickle: offset..end,
            count,
            start,
        })
    }

    fn buffer(&self, payload: &[u8], index: usize) -> Option<(usize, usize)> {
        let offset = number(payload, self.start + 16 * index)?;
        let length = number(payload, self.start + 16 * index + 8)?;
        (offset.checked_add(length)? <= self.start).then_some((offset, length))
    }
}

/// Returns the end of the pickle in a payload with buffers.
pub fn pickle_end(payload: &[u8]) -> Option<usize> {
    let table = Table::read(payload)?;
    Some(table.pickle.end).filter(|end| end.saturating_add(SIZES_BYTES) <= table.start)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)).ok()
}
