//! Sizes of the arguments of a call in Python; see [`dayfly_protocol::sizes`]. They follow the pickle.

use dayfly_protocol::encoding::parts;
use dayfly_protocol::sizes::{self, SIZED, Sizes, plausible};
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyRange, PySet, PyString, PyTuple,
};
use pyo3::{ffi, intern};

use crate::codec::{BUFFERS, form, pickle_end};

/// The sizes of a call for which its client states none: numbers, the length of texts and containers, and the bytes of
/// arrays among the arguments, the first four in order. None if no argument has a size.
pub fn natural(arguments: &Bound<'_, PyTuple>, keywords: Option<&Bound<'_, PyDict>>) -> Option<Sizes> {
    let mut sizes = Sizes::default();
    let mut count = 0;
    let mut add = |argument: &Bound<'_, PyAny>| {
        if let Some(place) = sizes.get_mut(count)
            && let Some(size) = size_of(argument)
        {
            *place = plausible(size);
            count += 1;
        }
    };
    arguments.iter_borrowed().for_each(|argument| add(&argument));
    if let Some(keywords) = keywords {
        keywords.iter().for_each(|(_, argument)| add(&argument));
    }
    (count > 0).then_some(sizes)
}

/// The size of one argument. No code of the argument's class runs, except that of arrays.
fn size_of(argument: &Bound<'_, PyAny>) -> Option<f64> {
    if argument.is_exact_instance_of::<PyInt>() || argument.is_exact_instance_of::<PyFloat>() {
        return Some(number(argument));
    }
    let length = if let Ok(text) = argument.cast::<PyString>() {
        text.len().ok()?
    } else if let Ok(bytes) = argument.cast::<PyBytes>() {
        bytes.as_bytes().len()
    } else if let Ok(list) = argument.cast::<PyList>() {
        list.len()
    } else if let Ok(dict) = argument.cast::<PyDict>() {
        dict.len()
    } else if let Ok(tuple) = argument.cast::<PyTuple>() {
        tuple.len()
    } else if let Ok(set) = argument.cast::<PySet>() {
        set.len()
    } else if let Ok(set) = argument.cast::<PyFrozenSet>() {
        set.len()
    } else if let Ok(bytes) = argument.cast::<PyByteArray>() {
        bytes.len()
    } else if argument.is_exact_instance_of::<PyRange>() {
        argument.len().ok()?
    } else {
        return size_of_array(argument);
    };
    Some(length as f64)
}

/// The bytes of an array, or the value of a number of an array's type. The class must define `nbytes`: an instance could
/// make up attributes, or wait for one.
fn size_of_array(argument: &Bound<'_, PyAny>) -> Option<f64> {
    let (py, class) = (argument.py(), argument.get_type());
    let nbytes = intern!(py, "nbytes");
    if !class.hasattr(nbytes).ok()? {
        return None;
    }
    if !class.hasattr(intern!(py, "__len__")).ok()? {
        return Some(number(argument));
    }
    Some(argument.getattr(nbytes).map_or(0.0, |bytes| number(&bytes)))
}

/// The value of a number; 0 if it is none, or too large.
fn number(value: &Bound<'_, PyAny>) -> f64 {
    // SAFETY: the object is alive. After -1, an error may be set, which is cleared.
    let value = unsafe { ffi::PyFloat_AsDouble(value.as_ptr()) };
    if value == -1.0 {
        // SAFETY: the interpreter is attached while a bound object exists.
        unsafe { ffi::PyErr_Clear() };
    }
    value
}

/// The sizes in a call's payload; zeros if it has none, or is malformed.
pub fn stated(payload: &[u8]) -> Sizes {
    match payload.last() {
        // The call itself is the first part.
        Some(&(form::WITH_ANSWERS | form::OF_RANK)) => {
            let call = parts(payload).and_then(|parts| parts.first().copied());
            call.map_or_else(Sizes::default, stated_alone)
        }
        _ => stated_alone(payload),
    }
}

fn stated_alone(payload: &[u8]) -> Sizes {
    match payload.last() {
        Some(last) if last & SIZED != 0 && last & BUFFERS != 0 => {
            pickle_end(payload).map_or_else(Sizes::default, |end| sizes::read(payload, end))
        }
        _ => sizes::last_of(payload),
    }
}
