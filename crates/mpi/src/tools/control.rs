//! Control variables: the settings of a group's engine.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_comm::detached::Turn;

use super::{
    LONG, NO_OBJECT, Result, TUNER_BASIC, UNSIGNED_LONG, USER_BASIC, entry, place, tool, with_engine, write_text,
};
use crate::error::class;
use crate::handle::Datatype;
use crate::pointer::{Buffer, Out, Text, TextOut};

/// `MPI_T_SCOPE_READONLY` and `MPI_T_SCOPE_LOCAL`.
const READ_ONLY: c_int = 60439;
const LOCAL: c_int = 60440;

/// A setting. Values have eight bytes.
pub struct Control {
    pub name: &'static str,
    text: &'static str,
    verbosity: c_int,
    datatype: Datatype,
    scope: c_int,
    read: fn(&mut Turn<'_>) -> u64,
    write: fn(&mut Turn<'_>, u64) -> Result<()>,
}

/// A rank that polls without end, as the value of a setting.
const WITHOUT_END: u64 = -1i64 as u64;

pub const CONTROLS: [Control; 3] = [
    Control {
        name: "dayfly_deadline_ms",
        text: "Longest duration of one operation in milliseconds; then it fails with MPIX_ERR_TIMEOUT.",
        verbosity: USER_BASIC,
        datatype: UNSIGNED_LONG,
        scope: LOCAL,
        read: |turn| turn.options().deadline.as_millis() as u64,
        write: |turn, value| {
            turn.set_deadline(Duration::from_millis(value));
            Ok(())
        },
    },
    Control {
        name: "dayfly_spin_us",
        text: "How long a waiting rank polls before it sleeps, in microseconds; -1 if it polls without end, which cannot \
               be changed.",
        verbosity: TUNER_BASIC,
        datatype: LONG,
        scope: LOCAL,
        read: |turn| turn.options().spin.map_or(WITHOUT_END, |spin| spin.as_micros() as u64),
        write: |turn, value| match i64::try_from(value) {
            Ok(_) => turn
                .set_spin(Duration::from_micros(value))
                .map_err(|_| class::T_CVAR_SET_NEVER),
            Err(_) => Err(class::T_INVALID),
        },
    },
    Control {
        name: "dayfly_unexpected_bytes",
        text: "Bound on the bytes of messages that no receive has matched. Above it, a rank takes in no more short \
               messages until it receives some.",
        verbosity: TUNER_BASIC,
        datatype: UNSIGNED_LONG,
        scope: READ_ONLY,
        read: |turn| turn.options().unexpected_bytes as u64,
        write: |_, _| Err(class::T_CVAR_SET_NEVER),
    },
];

/// The variables of handles. Handles are numbers, which are not used again.
struct Handles {
    next: usize,
    all: HashMap<usize, &'static Control>,
}

static HANDLES: Mutex<Option<Handles>> = Mutex::new(None);

fn handles() -> MutexGuard<'static, Option<Handles>> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees all handles.
pub fn clear() {
    if let Some(handles) = &mut *handles() {
        handles.all.clear();
    }
}

fn get(handle: usize) -> Result<&'static Control> {
    let handles = handles();
    let found = handles.as_ref().and_then(|handles| handles.all.get(&handle));
    found.copied().ok_or(class::T_INVALID_HANDLE)
}

fn make(control: &'static Control) -> usize {
    let mut handles = handles();
    let handles = handles.get_or_insert_with(|| Handles {
        next: 0,
        all: HashMap::new(),
    });
    handles.next += 1;
    handles.all.insert(handles.next, control);
    handles.next
}

tool! {
    fn MPI_T_cvar_get_num(count: Out<c_int>) {
        place(count)?.set(CONTROLS.len() as c_int);
        Ok(())
    }

    fn MPI_T_cvar_get_info(
        index: c_int, name: TextOut, name_room: Out<c_int>, verbosity: Out<c_int>, datatype: Out<Datatype>,
        values: Out<usize>, text: TextOut, text_room: Out<c_int>, bind: Out<c_int>, scope: Out<c_int>,
    ) {
        let control = entry(&CONTROLS, index)?;
        write_text(control.name, name, name_room);
        verbosity.set(control.verbosity);
        datatype.set(control.datatype);
        // The values have no names.
        values.set(0);
        write_text(control.text, text, text_room);
        bind.set(NO_OBJECT);
        scope.set(control.scope);
        Ok(())
    }

    fn MPI_T_cvar_get_index(name: Text, index: Out<c_int>) {
        let name = name.optional().ok_or(class::T_INVALID)?;
        let found = CONTROLS.iter().position(|control| control.name == name);
        place(index)?.set(found.ok_or(class::T_INVALID_NAME)? as c_int);
        Ok(())
    }

    fn MPI_T_cvar_handle_alloc(index: c_int, _object: Buffer, handle: Out<usize>, count: Out<c_int>) {
        let control = entry(&CONTROLS, index)?;
        place(handle)?.set(make(control));
        count.set(1);
        Ok(())
    }

    fn MPI_T_cvar_handle_free(handle: Out<usize>) {
        let freed = place(handle)?.get().unwrap_or_default();
        get(freed)?;
        if let Some(handles) = &mut *handles() {
            handles.all.remove(&freed);
        }
        handle.set(0);
        Ok(())
    }

    fn MPI_T_cvar_read(handle: usize, value: Out<u64>) {
        let control = get(handle)?;
        place(value)?.set(with_engine(|turn| Ok((control.read)(turn)))?);
        Ok(())
    }

    fn MPI_T_cvar_write(handle: usize, value: Out<u64>) {
        let control = get(handle)?;
        let value = value.get().map_err(|_| class::T_INVALID)?;
        if control.scope == READ_ONLY {
            return Err(class::T_CVAR_SET_NEVER);
        }
        with_engine(|turn| (control.write)(turn, value))
    }

    fn MPI_T_enum_get_info(_values: usize, _count: Out<c_int>, _name: TextOut, _room: Out<c_int>) {
        // No variable has named values.
        Err(class::T_INVALID_HANDLE)
    }

    fn MPI_T_enum_get_item(_values: usize, _index: c_int, _value: Out<c_int>, _name: TextOut, _room: Out<c_int>) {
        Err(class::T_INVALID_HANDLE)
    }
}
