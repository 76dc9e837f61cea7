//! What programs ask of datatypes.

use std::ffi::c_int;

use super::{NAMED, TypeObject, get, handle_of, named};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Count, Datatype, UNDEFINED};
use crate::interface::array::{CLASS_COMPLEX, CLASS_INTEGER, CLASS_REAL};
use crate::pointer::{Out, Text, TextOut};

const MAX_OBJECT_NAME: usize = 128;

fn fit(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(UNDEFINED)
}

/// Checks that a form of a call with small counts may describe a datatype.
fn check_small(object: &TypeObject) -> Result<()> {
    match object.recipe.counts.is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            class::TYPE,
            "the datatype was made with large counts: ask with the function of that form",
        )),
    }
}

fn contents(
    object: &TypeObject,
    room: [Count; 4],
    integers: Out<c_int>,
    addresses: Out<Aint>,
    counts: Out<Count>,
    types: Out<Datatype>,
) -> Result<()> {
    let recipe = &object.recipe;
    if recipe.combiner == NAMED {
        return Err(Error::new(class::TYPE, "a predefined datatype has no contents"));
    }
    let lengths = [
        recipe.integers.len(),
        recipe.addresses.len(),
        recipe.counts.len(),
        recipe.types.len(),
    ];
    if lengths.iter().zip(room).any(|(length, room)| *length as Count > room) {
        return Err(Error::new(
            class::ARG,
            "an array is too short for the contents of the datatype",
        ));
    }
    integers.slice(lengths[0])?.copy_from_slice(&recipe.integers);
    addresses.slice(lengths[1])?.copy_from_slice(&recipe.addresses);
    counts.slice(lengths[2])?.copy_from_slice(&recipe.counts);
    for (at, of) in recipe.types.iter().enumerate() {
        types.set_at(at, handle_of(of));
    }
    Ok(())
}

mpi! {
    fn MPI_Type_size (datatype: Datatype, size: Out<c_int>) [()] {
        size.check()?.set(fit(get(datatype)?.size));
        Ok(())
    }

    fn MPI_Type_size_x (datatype: Datatype, size: Out<Count>) [()] {
        size.check()?.set(get(datatype)?.size as Count);
        Ok(())
    }

    fn MPI_Type_size_c (datatype: Datatype, size: Out<Count>) [()] {
        size.check()?.set(get(datatype)?.size as Count);
        Ok(())
    }

    fn MPI_Type_get_extent (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.lower);
        extent.set(object.extent);
        Ok(())
    }

    fn MPI_Type_get_extent_x (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.lower);
        extent.set(object.extent);
        Ok(())
    }

    fn MPI_Type_get_extent_c (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.lower);
        extent.set(object.extent);
        Ok(())
    }

    fn MPI_Type_get_true_extent (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.true_lower);
        extent.set(object.true_extent);
        Ok(())
    }

    fn MPI_Type_get_true_extent_x (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.true_lower);
        extent.set(object.true_extent);
        Ok(())
    }

    fn MPI_Type_get_true_extent_c (datatype: Datatype, lower: Out<Aint>, extent: Out<Aint>) [()] {
        let object = get(datatype)?;
        lower.set(object.true_lower);
        extent.set(object.true_extent);
        Ok(())
    }

    fn MPI_Type_get_envelope (
        datatype: Datatype, integers: Out<c_int>, addresses: Out<c_int>, types: Out<c_int>, combiner: Out<c_int>
    ) [()] {
        let object = get(datatype)?;
        check_small(&object)?;
        integers.set(object.recipe.integers.len() as c_int);
        addresses.set(object.recipe.addresses.len() as c_int);
        types.set(object.recipe.types.len() as c_int);
        combiner.set(object.recipe.combiner);
        Ok(())
    }

    fn MPI_Type_get_envelope_c (
        datatype: Datatype, integers: Out<Count>, addresses: Out<Count>, counts: Out<Count>, types: Out<Count>,
        combiner: Out<c_int>
    ) [()] {
        let object = get(datatype)?;
        integers.set(object.recipe.integers.len() as Count);
        addresses.set(object.recipe.addresses.len() as Count);
        counts.set(object.recipe.counts.len() as Count);
        types.set(object.recipe.types.len() as Count);
        combiner.set(object.recipe.combiner);
        Ok(())
    }

    fn MPI_Type_get_contents (
        datatype: Datatype, max_integers: c_int, max_addresses: c_int, max_types: c_int, integers: Out<c_int>,
        addresses: Out<Aint>, types: Out<Datatype>
    ) [()] {
        let object = get(datatype)?;
        check_small(&object)?;
        let room = [max_integers.into(), max_addresses.into(), 0, max_types.into()];
        // There are no large counts to write.
        contents(&object, room, integers, addresses, Out::none(), types)
    }

    fn MPI_Type_get_contents_c (
        datatype: Datatype, max_integers: Count, max_addresses: Count, max_counts: Count, max_types: Count,
        integers: Out<c_int>, addresses: Out<Aint>, counts: Out<Count>, types: Out<Datatype>
    ) [()] {
        let room = [max_integers, max_addresses, max_counts, max_types];
        contents(&*get(datatype)?, room, integers, addresses, counts, types)
    }

    fn MPI_Type_set_name (datatype: Datatype, name: Text) [()] {
        *get(datatype)?.name() = name.get()?;
        Ok(())
    }

    fn MPI_Type_get_name (datatype: Datatype, name: TextOut, length: Out<c_int>) [()] {
        let found = match datatype {
            Datatype::NULL => "MPI_DATATYPE_NULL".into(),
            datatype => get(datatype)?.name().clone(),
        };
        length.set(name.set(&found, MAX_OBJECT_NAME)?);
        Ok(())
    }

    fn MPI_Type_match_size (kind: c_int, size: c_int, datatype: Out<Datatype>) [()] {
        let name = match (kind, size) {
            (CLASS_REAL, 4) => "MPI_REAL4",
            (CLASS_REAL, 8) => "MPI_REAL8",
            (CLASS_REAL, 16) => "MPI_REAL16",
            (CLASS_INTEGER, 1) => "MPI_INTEGER1",
            (CLASS_INTEGER, 2) => "MPI_INTEGER2",
            (CLASS_INTEGER, 4) => "MPI_INTEGER4",
            (CLASS_INTEGER, 8) => "MPI_INTEGER8",
            (CLASS_COMPLEX, 8) => "MPI_COMPLEX8",
            (CLASS_COMPLEX, 16) => "MPI_COMPLEX16",
            (CLASS_COMPLEX, 32) => "MPI_COMPLEX32",
            _ => return Err(Error::new(class::ARG, format!("there is no such datatype of {size} bytes"))),
        };
        datatype.check()?.set(named(name)?);
        Ok(())
    }
}
