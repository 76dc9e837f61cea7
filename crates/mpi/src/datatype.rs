//! Datatypes: where the elements of a message lie in memory.
//!
//! A datatype is a list of parts; each repeats blocks of another datatype at a stride, so a vector has one part however
//! long it is. What a message needs is computed once: the runs of bytes in the order of the type map.

pub mod construct;
mod copies;
mod darray;
mod describe;
mod elements;
mod predefined;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::attribute::{Attributes, Holder};
use crate::error::{Error, Result, class};
use crate::handle::{Aint, Count, Datatype, Table};
use crate::interface::combiner::{DUP, NAMED};
use crate::pointer::Buffer;
use copies::Way;
pub use predefined::Kind;
use predefined::{INT, MAX_PREDEFINED, PAIRS, PREDEFINED, handle_in_face, place_of};

/// More runs than this are not kept, but computed whenever they are needed.
const MAX_RUNS: usize = 1 << 14;

/// `blocks` blocks of `length` elements, the first at `offset`, each `stride` bytes after the one before.
#[derive(Clone)]
pub struct Part {
    pub offset: isize,
    pub blocks: usize,
    pub stride: isize,
    pub length: usize,
    pub of: Arc<TypeObject>,
}

/// How a program made a datatype.
#[derive(Default, Clone)]
pub struct Recipe {
    pub combiner: c_int,
    pub integers: Vec<c_int>,
    pub addresses: Vec<Aint>,
    pub counts: Vec<Count>,
    pub types: Vec<Arc<TypeObject>>,
}

/// A datatype.
pub struct TypeObject {
    /// Bytes of data.
    pub size: usize,
    pub lower: isize,
    pub extent: isize,
    pub true_lower: isize,
    pub true_extent: isize,
    align: usize,
    /// Predefined elements in it.
    pub elements: usize,
    /// Whether an array of it is one run of bytes.
    pub dense: bool,
    /// Of a predefined datatype: its handle and how operations see it.
    pub predefined: Option<(Datatype, Kind)>,
    parts: Vec<Part>,
    runs: Option<Box<[(isize, usize)]>>,
    pub recipe: Recipe,
    pub committed: AtomicBool,
    name: Mutex<String>,
    attributes: Attributes,
}

impl Holder for TypeObject {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }
}

static TYPES: Table<TypeObject> = Table::starting(3, PAIRS.len());

/// All predefined datatypes, by the places of their handles.
fn predefined() -> &'static [Option<Arc<TypeObject>>] {
    static ALL: OnceLock<Vec<Option<Arc<TypeObject>>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = vec![None; MAX_PREDEFINED];
        let mut put = |handle: Option<Datatype>, object: &Arc<TypeObject>| {
            if let Some(at) = handle.and_then(place_of) {
                all[at] = Some(object.clone());
            }
        };
        // Values of pairs, by their handles in MPICH.
        let mut basic = HashMap::new();
        for (name, mpich, standard, kind) in PREDEFINED {
            let handle = handle_in_face(*mpich, *standard);
            let size = (mpich >> 8 & 0xff) as usize;
            let object = Arc::new(TypeObject::basic(size, *kind, handle.unwrap_or(Datatype::NULL), name));
            put(handle, &object);
            basic.insert(*mpich, object);
        }
        for (name, mpich, standard, kind, value, offset) in PAIRS {
            let part = |offset: usize, of: &u32| {
                basic.get(of).map(|of| Part {
                    offset: offset as isize,
                    blocks: 1,
                    stride: 0,
                    length: 1,
                    of: of.clone(),
                })
            };
            let recipe = Recipe {
                combiner: NAMED,
                ..Recipe::default()
            };
            let parts = [part(0, value), part(*offset, &INT)].into_iter().flatten();
            let mut object = TypeObject::of(parts.collect(), recipe);
            object.pad();
            let handle = handle_in_face(*mpich, *standard);
            object.predefined = handle.map(|handle| (handle, *kind));
            *object.name() = (*name).into();
            object.committed = AtomicBool::new(true);
            put(handle, &Arc::new(object));
        }
        all
    })
}

/// The handle of a predefined datatype.
pub fn named(name: &str) -> Result<Datatype> {
    let rows = PREDEFINED
        .iter()
        .map(|(name, mpich, standard, _)| (*name, *mpich, *standard));
    let found = rows.into_iter().find(|(of, ..)| *of == name);
    found
        .and_then(|(_, mpich, standard)| handle_in_face(mpich, standard))
        .ok_or_else(|| Error::new(class::TYPE, format!("there is no datatype {name}")))
}

/// The object of a handle.
pub fn get(datatype: Datatype) -> Result<Arc<TypeObject>> {
    let own = |object: &&Arc<TypeObject>| object.predefined.is_some_and(|(own, _)| own == datatype);
    let found = match place_of(datatype) {
        Some(at) => predefined()[at].as_ref().filter(own).cloned(),
        None => TYPES.get(datatype.0),
    };
    found.ok_or_else(|| {
        let what = if datatype == Datatype::NULL {
            "MPI_DATATYPE_NULL"
        } else {
            "the handle"
        };
        Error::new(class::TYPE, format!("{what} is no datatype"))
    })
}

/// A handle for a new datatype.
pub fn make(object: TypeObject) -> Datatype {
    Datatype(TYPES.insert(Arc::new(object)))
}

/// A handle for an object that something else keeps too.
pub fn insert(object: Arc<TypeObject>) -> Datatype {
    Datatype(TYPES.insert(object))
}

/// A handle for a datatype that exists: its own if it is predefined.
pub fn handle_of(object: &Arc<TypeObject>) -> Datatype {
    match object.predefined {
        Some((handle, _)) if object.recipe.combiner == NAMED => handle,
        Some((handle, _)) => crate::fortran::handle_of(object).unwrap_or(handle),
        None => insert(object.clone()),
    }
}

/// The predefined datatype of a value and an index, or `MPI_DATATYPE_NULL`.
pub fn pair_of(value: &TypeObject, index: Datatype) -> Datatype {
    let value = value.predefined.map(|(handle, _)| handle);
    // Without a row, the interface has no such datatype.
    let of_mpich = |number: u32| {
        let row = PREDEFINED.iter().find(|(_, mpich, ..)| *mpich == number);
        row.and_then(|(_, mpich, standard, _)| handle_in_face(*mpich, *standard))
    };
    let int = of_mpich(INT);
    if value.is_none() || Some(index) != int {
        return Datatype::NULL;
    }
    if value == int {
        return named("MPI_2INT").unwrap_or(Datatype::NULL);
    }
    let found = PAIRS.iter().find(|(.., of, _)| of_mpich(*of) == value);
    let handle = found.and_then(|(_, mpich, standard, ..)| handle_in_face(*mpich, *standard));
    handle.unwrap_or(Datatype::NULL)
}

pub fn remove(datatype: Datatype) -> Option<Arc<TypeObject>> {
    TYPES.remove(datatype.0)
}

/// Checks a count.
pub fn count_of(count: Count) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::new(class::COUNT, format!("the count {count} is negative")))
}

impl TypeObject {
    fn basic(size: usize, kind: Kind, handle: Datatype, name: &str) -> Self {
        Self {
            size,
            lower: 0,
            extent: size as isize,
            true_lower: 0,
            true_extent: size as isize,
            align: match kind {
                Kind::Element(element) if size > 8 => element.bytes().min(8),
                _ => size.clamp(1, 16),
            },
            elements: 1,
            dense: true,
            predefined: Some((handle, kind)),
            parts: Vec::new(),
            runs: Some([(0, size)].into()),
            recipe: Recipe {
                combiner: NAMED,
                ..Recipe::default()
            },
            committed: AtomicBool::new(true),
            name: Mutex::new(name.into()),
            attributes: Attributes::default(),
        }
    }

    /// A datatype of parts.
    fn of(parts: Vec<Part>, recipe: Recipe) -> Self {
        let parts: Vec<Part> = parts
            .into_iter()
            .filter(|part| part.blocks > 0 && part.length > 0)
            .collect();
        let (mut lower, mut upper) = (isize::MAX, isize::MIN);
        let (mut true_lower, mut true_upper) = (isize::MAX, isize::MIN);
        let (mut size, mut elements, mut align) = (0, 0, 1);
        for Part {
            offset,
            blocks,
            stride,
            length,
            of,
        } in &parts
        {
            size += blocks * length * of.size;
            elements += blocks * length * of.elements;
            align = align.max(of.align);
            let (block, element) = (*stride * (*blocks as isize - 1), of.extent * (*length as isize - 1));
            let (first, last) = (
                offset + block.min(0) + element.min(0),
                offset + block.max(0) + element.max(0),
            );
            lower = lower.min(first + of.lower);
            upper = upper.max(last + of.lower + of.extent);
            if of.size > 0 {
                true_lower = true_lower.min(first + of.true_lower);
                true_upper = true_upper.max(last + of.true_lower + of.true_extent);
            }
        }
        if parts.is_empty() {
            (lower, upper) = (0, 0);
        }
        if size == 0 {
            (true_lower, true_upper) = (0, 0);
        }
        let mut object = Self {
            size,
            lower,
            extent: upper - lower,
            true_lower,
            true_extent: true_upper - true_lower,
            align,
            elements,
            dense: false,
            predefined: None,
            parts,
            runs: None,
            recipe,
            committed: AtomicBool::new(false),
            name: Mutex::default(),
            attributes: Attributes::default(),
        };
        object.find_runs();
        object
    }

    /// Rounds the extent up to the alignment of the elements, as a C compiler pads a struct.
    fn pad(&mut self) {
        let align = self.align as isize;
        self.extent = (self.extent + align - 1) / align * align;
        self.find_runs();
    }

    fn find_runs(&mut self) {
        let mut runs: Vec<(isize, usize)> = Vec::new();
        let complete = self.visit(0, &mut |start, length| {
            match runs.last_mut() {
                Some((before, bytes)) if *before + *bytes as isize == start => *bytes += length,
                _ => runs.push((start, length)),
            }
            runs.len() <= MAX_RUNS
        });
        self.dense = complete && runs.len() <= 1 && (self.size == 0 || self.size as isize == self.extent);
        self.runs = complete.then(|| runs.into());
    }

    /// Calls a function with each run of bytes, until it returns false. Returns whether all were visited.
    fn visit<F: FnMut(isize, usize) -> bool>(&self, base: isize, see: &mut F) -> bool {
        if let Some(runs) = &self.runs {
            return runs.iter().all(|(start, length)| see(base + start, *length));
        }
        for part in &self.parts {
            let Part { length, of, .. } = part;
            let bytes = length * of.size;
            if of.size == 0 {
                continue;
            }
            if of.dense && part.stride == bytes as isize {
                if !see(base + part.offset + of.true_lower, bytes * part.blocks) {
                    return false;
                }
                continue;
            }
            for block in 0..part.blocks as isize {
                let start = base + part.offset + block * part.stride;
                if of.dense {
                    if !see(start + of.true_lower, bytes) {
                        return false;
                    }
                    continue;
                }
                for element in 0..*length as isize {
                    if !of.visit(start + element * of.extent, see) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Calls a function with the runs of bytes of one element, until it returns false. Returns whether all were visited.
    pub fn visit_runs(&self, mut see: impl FnMut(isize, usize) -> bool) -> bool {
        self.visit(0, &mut see)
    }

    /// Bytes of `count` elements in a message.
    pub fn bytes(&self, count: usize) -> Result<usize> {
        self.size
            .checked_mul(count)
            .ok_or_else(|| Error::new(class::COUNT, "the message is longer than memory"))
    }

    /// Bytes from the first to the last of `count` elements, and where they begin.
    pub fn span(&self, count: usize) -> (isize, usize) {
        if count == 0 || self.size == 0 {
            return (0, 0);
        }
        let others = self.extent * (count as isize - 1);
        let length = self.true_extent + others.abs();
        (self.true_lower + others.min(0), length as usize)
    }

    /// Calls a function with the runs of `count` elements, until it returns false.
    fn visit_all(&self, count: usize, mut see: impl FnMut(isize, usize) -> bool) {
        for element in 0..count as isize {
            if !self.visit(element * self.extent, &mut see) {
                return;
            }
        }
    }

    /// Copies `count` elements from memory to `packed`, which has room for them.
    pub fn pack(&self, buffer: Buffer, count: usize, packed: &mut [u8]) {
        if self.dense {
            let length = packed.len().min(self.size * count);
            packed[..length].copy_from_slice(buffer.offset(self.true_lower).bytes(length));
            return;
        }
        if packed.len() == self.size * count {
            self.copy_all(Way::Pack, buffer, count, packed.as_mut_ptr());
            return;
        }
        let mut rest = packed;
        self.visit_all(count, |start, length| {
            let length = length.min(rest.len());
            let (into, after) = std::mem::take(&mut rest).split_at_mut(length);
            into.copy_from_slice(buffer.offset(start).bytes(length));
            rest = after;
            !rest.is_empty()
        });
    }

    /// Copies packed bytes to at most `count` elements in memory. Returns the number of bytes copied.
    pub fn unpack(&self, packed: &[u8], buffer: Buffer, count: usize) -> usize {
        if self.dense {
            let length = packed.len().min(self.size * count);
            buffer
                .offset(self.true_lower)
                .bytes_mut(length)
                .copy_from_slice(&packed[..length]);
            return length;
        }
        if packed.len() == self.size * count {
            self.copy_all(Way::Unpack, buffer, count, packed.as_ptr().cast_mut());
            return packed.len();
        }
        let mut rest = packed;
        self.visit_all(count, |start, length| {
            let (from, after) = rest.split_at(length.min(rest.len()));
            buffer.offset(start).bytes_mut(from.len()).copy_from_slice(from);
            rest = after;
            !rest.is_empty()
        });
        packed.len() - rest.len()
    }

    /// Predefined elements in this many bytes of a message; `None` if they end within one.
    pub fn elements_in(&self, bytes: usize) -> Option<usize> {
        if self.size == 0 {
            return Some(0);
        }
        let (whole, mut rest) = (bytes / self.size, bytes % self.size);
        let mut found = whole * self.elements;
        if rest == 0 {
            return Some(found);
        }
        if self.parts.is_empty() {
            return None;
        }
        for part in &self.parts {
            let of = &part.of;
            if of.size == 0 {
                continue;
            }
            let all = part.blocks * part.length * of.size;
            found += of.elements_in(rest.min(all))?;
            rest -= rest.min(all);
            if rest == 0 {
                break;
            }
        }
        Some(found)
    }

    /// The bytes of this many predefined elements.
    pub fn bytes_of_elements(&self, elements: usize) -> usize {
        if self.elements == 0 {
            return 0;
        }
        let (whole, mut rest) = (elements / self.elements, elements % self.elements);
        let mut bytes = whole * self.size;
        for part in &self.parts {
            let all = part.blocks * part.length * part.of.elements;
            bytes += part.of.bytes_of_elements(rest.min(all));
            rest -= rest.min(all);
        }
        bytes
    }

    /// Calls a function with its predefined elements and their sizes, in the order of the type map. A complex number is two
    /// elements.
    pub fn visit_elements(&self, see: &mut dyn FnMut(&Self, usize)) {
        if self.parts.is_empty() && self.size > 0 {
            match self.predefined {
                Some((_, kind)) if kind.is_complex() => (0..2).for_each(|_| see(self, self.size / 2)),
                _ => see(self, self.size),
            }
        }
        for part in &self.parts {
            for _ in 0..part.blocks * part.length {
                part.of.visit_elements(see);
            }
        }
    }

    pub fn name(&self) -> MutexGuard<'_, String> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How operations see its elements; `None` if it is not predefined, nor a duplicate of such a datatype.
    pub fn kind(&self) -> Option<Kind> {
        match self.predefined {
            Some((_, kind)) => Some(kind),
            None if self.recipe.combiner == DUP => self.recipe.types.first().and_then(|of| of.kind()),
            None => None,
        }
    }
}
