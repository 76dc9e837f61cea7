//! Categories of the variables.

use std::ffi::c_int;

use super::control::CONTROLS;
use super::performance::PERFORMANCES;
use super::{Result, entry, place, tool, write_text};
use crate::error::class;
use crate::pointer::{Out, Text, TextOut};

struct Category {
    name: &'static str,
    text: &'static str,
    controls: usize,
    performances: usize,
    /// Indices of the categories in it.
    categories: &'static [c_int],
}

const CATEGORIES: [Category; 3] = [
    Category {
        name: "dayfly",
        text: "All variables of Dayfly's MPI.",
        controls: 0,
        performances: 0,
        categories: &[1, 2],
    },
    Category {
        name: "dayfly_settings",
        text: "Settings of the group's engine.",
        controls: CONTROLS.len(),
        performances: 0,
        categories: &[],
    },
    Category {
        name: "dayfly_messages",
        text: "What the group's engine counts.",
        controls: 0,
        performances: PERFORMANCES.len(),
        categories: &[],
    },
];

/// Writes as many indices as there is room for.
fn write(indices: impl Iterator<Item = c_int>, room: c_int, into: Out<c_int>) -> Result<()> {
    for (at, index) in indices.take(room.max(0) as usize).enumerate() {
        into.check().map_err(|_| class::T_INVALID)?.set_at(at, index);
    }
    Ok(())
}

tool! {
    fn MPI_T_category_get_num(count: Out<c_int>) {
        place(count)?.set(CATEGORIES.len() as c_int);
        Ok(())
    }

    fn MPI_T_category_get_info(
        index: c_int, name: TextOut, name_room: Out<c_int>, text: TextOut, text_room: Out<c_int>,
        controls: Out<c_int>, performances: Out<c_int>, categories: Out<c_int>,
    ) {
        let category = entry(&CATEGORIES, index)?;
        write_text(category.name, name, name_room);
        write_text(category.text, text, text_room);
        controls.set(category.controls as c_int);
        performances.set(category.performances as c_int);
        categories.set(category.categories.len() as c_int);
        Ok(())
    }

    fn MPI_T_category_get_index(name: Text, index: Out<c_int>) {
        let name = name.optional().ok_or(class::T_INVALID)?;
        let found = CATEGORIES.iter().position(|category| category.name == name);
        place(index)?.set(found.ok_or(class::T_INVALID_NAME)? as c_int);
        Ok(())
    }

    fn MPI_T_category_get_num_events(index: c_int, count: Out<c_int>) {
        entry(&CATEGORIES, index)?;
        place(count)?.set(0);
        Ok(())
    }

    fn MPI_T_category_get_cvars(index: c_int, room: c_int, indices: Out<c_int>) {
        write(0..entry(&CATEGORIES, index)?.controls as c_int, room, indices)
    }

    fn MPI_T_category_get_pvars(index: c_int, room: c_int, indices: Out<c_int>) {
        write(0..entry(&CATEGORIES, index)?.performances as c_int, room, indices)
    }

    fn MPI_T_category_get_events(index: c_int, _room: c_int, _indices: Out<c_int>) {
        entry(&CATEGORIES, index).map(|_| ())
    }

    fn MPI_T_category_get_categories(index: c_int, room: c_int, indices: Out<c_int>) {
        write(entry(&CATEGORIES, index)?.categories.iter().copied(), room, indices)
    }

    fn MPI_T_category_changed(number: Out<c_int>) {
        // The categories never change.
        place(number)?.set(0);
        Ok(())
    }
}
