//! Constructors of datatypes.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Part, Recipe, TypeObject, count_of, get, make, remove};
use crate::attribute;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Count, Datatype};
use crate::interface::array::{ORDER_C, ORDER_FORTRAN};
use crate::interface::combiner;
use crate::pointer::{In, Out};

/// Numbers of a call with their places in the recipe: calls with large counts keep all in `counts`.
#[derive(Default)]
pub struct Numbers {
    large: bool,
    recipe: Recipe,
}

impl Numbers {
    /// The recipe of a call whose counts have this size.
    pub fn new(combiner: c_int, count_bytes: usize) -> Self {
        Self {
            large: count_bytes > 4,
            recipe: Recipe {
                combiner,
                ..Recipe::default()
            },
        }
    }

    /// Numbers that are `int` in every form of the call.
    pub fn integers(mut self, values: impl IntoIterator<Item = c_int>) -> Self {
        self.recipe.integers.extend(values);
        self
    }

    /// Numbers that are `int`, or large counts.
    pub fn counts(mut self, values: impl IntoIterator<Item = Count>) -> Self {
        match self.large {
            true => self.recipe.counts.extend(values),
            false => self
                .recipe
                .integers
                .extend(values.into_iter().map(|value| value as c_int)),
        }
        self
    }

    /// Numbers that are addresses, or large counts.
    pub fn addresses(mut self, values: impl IntoIterator<Item = Count>) -> Self {
        match self.large {
            true => self.recipe.counts.extend(values),
            false => self
                .recipe
                .addresses
                .extend(values.into_iter().map(|value| value as Aint)),
        }
        self
    }

    pub fn of(mut self, types: impl IntoIterator<Item = Arc<TypeObject>>) -> Recipe {
        self.recipe.types.extend(types);
        self.recipe
    }
}

/// One part of `count` elements in a row.
pub fn row(of: &Arc<TypeObject>, offset: isize, count: usize) -> Part {
    Part {
        offset,
        blocks: 1,
        stride: 0,
        length: count,
        of: of.clone(),
    }
}

/// A datatype of some parts, without a recipe of its own: for steps of a constructor.
pub fn step(parts: Vec<Part>) -> Arc<TypeObject> {
    Arc::new(TypeObject::of(parts, Recipe::default()))
}

/// Changes the bounds of a datatype.
pub fn resized(of: &Arc<TypeObject>, lower: isize, extent: isize, recipe: Recipe) -> TypeObject {
    let mut object = TypeObject::of(vec![row(of, 0, 1)], recipe);
    (object.lower, object.extent) = (lower, extent);
    object.find_runs();
    object
}

fn vector(recipe: Recipe, count: Count, length: Count, stride: isize) -> Result<TypeObject> {
    let of = recipe.types[0].clone();
    let part = Part {
        offset: 0,
        blocks: count_of(count)?,
        stride,
        length: count_of(length)?,
        of,
    };
    Ok(TypeObject::of(vec![part], recipe))
}

/// Blocks at displacements in bytes.
fn blocks(recipe: Recipe, blocks: impl Iterator<Item = (Count, isize)>) -> Result<TypeObject> {
    let of = recipe.types[0].clone();
    let parts = blocks.map(|(length, offset)| Ok(row(&of, offset, count_of(length)?)));
    let parts: Result<Vec<Part>> = parts.collect();
    Ok(TypeObject::of(parts?, recipe))
}

/// Sizes and a part of a multidimensional array, checked.
fn subarray(
    sizes: &[Count],
    subsizes: &[Count],
    starts: &[Count],
    order: c_int,
    of: &Arc<TypeObject>,
) -> Result<(Arc<TypeObject>, isize)> {
    if sizes.is_empty() {
        return Err(Error::new(class::ARG, "a subarray has at least one dimension"));
    }
    // From the dimension whose elements are adjacent.
    let mut dimensions: Vec<usize> = (0..sizes.len()).collect();
    match order {
        ORDER_C => dimensions.reverse(),
        ORDER_FORTRAN => {}
        _ => {
            return Err(Error::new(
                class::ARG,
                "the order is neither MPI_ORDER_C nor MPI_ORDER_FORTRAN",
            ));
        }
    }
    let (mut inner, mut stride, mut offset) = (of.clone(), of.extent, 0);
    for at in dimensions {
        let (size, part, start) = (sizes[at], subsizes[at], starts[at]);
        if size < 1 || part < 1 || start < 0 || start + part > size {
            return Err(Error::new(
                class::ARG,
                format!("dimension {at}: {part} elements from {start} are no part of {size}"),
            ));
        }
        inner = step(vec![Part {
            offset: 0,
            blocks: part as usize,
            stride,
            length: 1,
            of: inner,
        }]);
        offset += start as isize * stride;
        stride *= size as isize;
    }
    Ok((step(vec![row(&inner, offset, 1)]), stride))
}

fn put(new: Out<Datatype>, object: TypeObject) -> Result<()> {
    new.check()?.set(make(object));
    Ok(())
}

mpi! {
    fn MPI_Type_contiguous / MPI_Type_contiguous_c (count: N, old: Datatype, new: Out<Datatype>) [()] {
        let old = get(old)?;
        let numbers = Numbers::new(combiner::CONTIGUOUS, size_of::<N>()).counts([count as Count]);
        let part = row(&old, 0, count_of(count as Count)?);
        put(new, TypeObject::of(vec![part], numbers.of([old])))
    }

    fn MPI_Type_vector / MPI_Type_vector_c (
        count: N, length: N, stride: N, old: Datatype, new: Out<Datatype>
    ) [()] {
        let old = get(old)?;
        let bytes = stride as isize * old.extent;
        let numbers = Numbers::new(combiner::VECTOR, size_of::<N>());
        let recipe = numbers.counts([count as Count, length as Count, stride as Count]).of([old]);
        put(new, vector(recipe, count as Count, length as Count, bytes)?)
    }

    fn MPI_Type_create_hvector (
        count: c_int, length: c_int, stride: Aint, old: Datatype, new: Out<Datatype>
    ) [()] {
        hvector([count, length], stride, old, new)
    }

    fn MPI_Type_create_hvector_c (
        count: Count, length: Count, stride: Count, old: Datatype, new: Out<Datatype>
    ) [()] {
        let recipe = Numbers::new(combiner::HVECTOR, 8).counts([count, length, stride]).of([get(old)?]);
        put(new, vector(recipe, count, length, stride as isize)?)
    }

    fn MPI_Type_indexed / MPI_Type_indexed_c (
        count: N, lengths: In<N>, displacements: In<N>, old: Datatype, new: Out<Datatype>
    ) [()] {
        let (old, number) = (get(old)?, count_of(count as Count)?);
        let lengths: Vec<Count> = lengths.slice(number)?.iter().map(|value| *value as Count).collect();
        let places: Vec<Count> = displacements.slice(number)?.iter().map(|value| *value as Count).collect();
        let numbers = Numbers::new(combiner::INDEXED, size_of::<N>()).counts([count as Count]);
        let extent = old.extent;
        let recipe = numbers.counts(lengths.clone()).counts(places.clone()).of([old]);
        put(new, blocks(recipe, lengths.into_iter().zip(places.iter().map(|at| *at as isize * extent)))?)
    }

    fn MPI_Type_create_hindexed (
        count: c_int, lengths: In<c_int>, displacements: In<Aint>, old: Datatype, new: Out<Datatype>
    ) [()] {
        small_hindexed(count, lengths, displacements, old, new)
    }

    fn MPI_Type_create_hindexed_c (
        count: Count, lengths: In<Count>, displacements: In<Count>, old: Datatype, new: Out<Datatype>
    ) [()] {
        hindexed(count, lengths.slice(count_of(count)?)?.iter().copied(),
            displacements.slice(count_of(count)?)?.iter().copied(), 8, old, new)
    }

    fn MPI_Type_create_indexed_block / MPI_Type_create_indexed_block_c (
        count: N, length: N, displacements: In<N>, old: Datatype, new: Out<Datatype>
    ) [()] {
        let (old, number) = (get(old)?, count_of(count as Count)?);
        let places: Vec<Count> = displacements.slice(number)?.iter().map(|value| *value as Count).collect();
        let numbers = Numbers::new(combiner::INDEXED_BLOCK, size_of::<N>());
        let extent = old.extent;
        let recipe = numbers.counts([count as Count, length as Count]).counts(places.clone()).of([old]);
        put(new, blocks(recipe, places.iter().map(|at| (length as Count, *at as isize * extent)))?)
    }

    fn MPI_Type_create_hindexed_block (
        count: c_int, length: c_int, displacements: In<Aint>, old: Datatype, new: Out<Datatype>
    ) [()] {
        let places = displacements.slice(count_of(count.into())?)?;
        let numbers = Numbers::new(combiner::HINDEXED_BLOCK, 4).counts([count.into(), length.into()]);
        let recipe = numbers.addresses(places.iter().map(|at| *at as Count)).of([get(old)?]);
        put(new, blocks(recipe, places.iter().map(|at| (length.into(), *at)))?)
    }

    fn MPI_Type_create_hindexed_block_c (
        count: Count, length: Count, displacements: In<Count>, old: Datatype, new: Out<Datatype>
    ) [()] {
        let places = displacements.slice(count_of(count)?)?;
        let numbers = Numbers::new(combiner::HINDEXED_BLOCK, 8).counts([count, length]);
        let recipe = numbers.counts(places.iter().copied()).of([get(old)?]);
        put(new, blocks(recipe, places.iter().map(|at| (length, *at as isize)))?)
    }

    fn MPI_Type_create_struct (
        count: c_int, lengths: In<c_int>, displacements: In<Aint>, types: In<Datatype>, new: Out<Datatype>
    ) [()] {
        small_structure(count, lengths, displacements, types.slice(count_of(count.into())?)?, new)
    }

    fn MPI_Type_create_struct_c (
        count: Count, lengths: In<Count>, displacements: In<Count>, types: In<Datatype>, new: Out<Datatype>
    ) [()] {
        let number = count_of(count)?;
        structure(count, lengths.slice(number)?.to_vec(), displacements.slice(number)?.to_vec(),
            types.slice(number)?, 8, new)
    }

    fn MPI_Type_create_subarray / MPI_Type_create_subarray_c (
        dimensions: c_int, sizes: In<N>, subsizes: In<N>, starts: In<N>, order: c_int, old: Datatype,
        new: Out<Datatype>
    ) [()] {
        let (old, number) = (get(old)?, count_of(dimensions.into())?);
        let read = |values: In<N>| -> Result<Vec<Count>> {
            Ok(values.slice(number)?.iter().map(|value| *value as Count).collect())
        };
        let (sizes, subsizes, starts) = (read(sizes)?, read(subsizes)?, read(starts)?);
        let (part, extent) = subarray(&sizes, &subsizes, &starts, order, &old)?;
        let numbers = Numbers::new(combiner::SUBARRAY, size_of::<N>()).integers([dimensions]);
        let numbers = numbers.counts(sizes).counts(subsizes).counts(starts).integers([order]);
        put(new, resized(&part, 0, extent, numbers.of([old])))
    }

    fn MPI_Type_create_resized (old: Datatype, lower: Aint, extent: Aint, new: Out<Datatype>) [()] {
        let old = get(old)?;
        let numbers = Numbers::new(combiner::RESIZED, 4).addresses([lower as Count, extent as Count]);
        put(new, resized(&old.clone(), lower, extent, numbers.of([old])))
    }

    fn MPI_Type_create_resized_c (old: Datatype, lower: Count, extent: Count, new: Out<Datatype>) [()] {
        let old = get(old)?;
        let numbers = Numbers::new(combiner::RESIZED, 8).counts([lower, extent]);
        put(new, resized(&old.clone(), lower as isize, extent as isize, numbers.of([old])))
    }

    fn MPI_Type_dup (old: Datatype, new: Out<Datatype>) [()] {
        let (handle, old) = (old, get(old)?);
        let recipe = Numbers::new(combiner::DUP, 4).of([old.clone()]);
        let mut copy = resized(&old, old.lower, old.extent, recipe);
        copy.committed = AtomicBool::new(old.committed.load(Ordering::Acquire));
        copy.attributes = old.attributes.duplicate(handle.0)?;
        put(new, copy)
    }

    fn MPI_Type_commit (datatype: Out<Datatype>) [()] {
        get(datatype.get()?)?.committed.store(true, Ordering::Release);
        Ok(())
    }

    fn MPI_Type_free (datatype: Out<Datatype>) [()] {
        let handle = datatype.get()?;
        let object = get(handle)?;
        if object.predefined.is_some() {
            return Err(Error::new(class::TYPE, "a predefined datatype cannot be freed"));
        }
        attribute::delete_all(&*object, handle)?;
        remove(handle);
        datatype.set(Datatype::NULL);
        Ok(())
    }
}

/// A vector whose stride is in bytes; the numbers are the blocks, and the elements of each.
pub fn hvector([count, length]: [c_int; 2], stride: Aint, old: Datatype, new: Out<Datatype>) -> Result<()> {
    let numbers = Numbers::new(combiner::HVECTOR, 4).counts([count.into(), length.into()]);
    let recipe = numbers.addresses([stride as Count]).of([get(old)?]);
    put(new, vector(recipe, count.into(), length.into(), stride)?)
}

/// `MPI_Type_create_hindexed`.
pub fn small_hindexed(
    count: c_int,
    lengths: In<c_int>,
    displacements: In<Aint>,
    old: Datatype,
    new: Out<Datatype>,
) -> Result<()> {
    let number = count_of(count.into())?;
    let lengths = lengths.slice(number)?.iter().map(|value| Count::from(*value));
    let places = displacements.slice(number)?.iter().map(|value| *value as Count);
    hindexed(count.into(), lengths, places, 4, old, new)
}

/// `MPI_Type_create_struct`.
pub fn small_structure(
    count: c_int,
    lengths: In<c_int>,
    displacements: In<Aint>,
    types: &[Datatype],
    new: Out<Datatype>,
) -> Result<()> {
    let number = count_of(count.into())?;
    let lengths = lengths.slice(number)?.iter().map(|value| Count::from(*value));
    let places = displacements.slice(number)?.iter().map(|value| *value as Count);
    structure(count.into(), lengths.collect(), places.collect(), types, 4, new)
}

/// A datatype of Fortran, which is one element of another: committed, and never freed.
pub fn of_fortran(of: &Arc<TypeObject>, combiner: c_int, arguments: Vec<c_int>) -> TypeObject {
    let recipe = Numbers::new(combiner, 4).integers(arguments).of([]);
    let mut object = TypeObject::of(vec![row(of, 0, 1)], recipe);
    object.predefined = of.predefined;
    object.committed = AtomicBool::new(true);
    object
}

fn hindexed(
    count: Count,
    lengths: impl Iterator<Item = Count>,
    displacements: impl Iterator<Item = Count>,
    count_bytes: usize,
    old: Datatype,
    new: Out<Datatype>,
) -> Result<()> {
    let (lengths, places): (Vec<Count>, Vec<Count>) = lengths.zip(displacements).unzip();
    let numbers = Numbers::new(combiner::HINDEXED, count_bytes)
        .counts([count])
        .counts(lengths.clone());
    let recipe = numbers.addresses(places.clone()).of([get(old)?]);
    put(
        new,
        blocks(
            recipe,
            lengths.into_iter().zip(places.into_iter().map(|at| at as isize)),
        )?,
    )
}

fn structure(
    count: Count,
    lengths: Vec<Count>,
    displacements: Vec<Count>,
    types: &[Datatype],
    count_bytes: usize,
    new: Out<Datatype>,
) -> Result<()> {
    let types: Result<Vec<_>> = types.iter().map(|datatype| get(*datatype)).collect();
    let types = types?;
    let mut parts = Vec::with_capacity(types.len());
    for ((length, offset), of) in lengths.iter().zip(&displacements).zip(&types) {
        parts.push(row(of, *offset as isize, count_of(*length)?));
    }
    let numbers = Numbers::new(combiner::STRUCT, count_bytes)
        .counts([count])
        .counts(lengths);
    // A struct is padded only if its members' bounds are their own.
    let natural = types.iter().all(|of| of.recipe.combiner != combiner::RESIZED);
    let mut object = TypeObject::of(parts, numbers.addresses(displacements).of(types));
    if natural {
        object.pad();
    }
    put(new, object)
}
