//! Info objects: ordered pairs of texts.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Info, Table};
use crate::pointer::{Out, Text, TextOut};

const MAX_KEY: usize = 255;
const MAX_VALUE: usize = 1024;

/// An info object.
#[derive(Default)]
pub struct InfoObject(Mutex<Vec<(String, String)>>);

pub static INFOS: Table<InfoObject> = Table::new(7);

impl InfoObject {
    pub fn pairs(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, key: &str) -> Option<String> {
        let pairs = self.pairs();
        pairs
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.clone())
    }
}

/// The object of a handle; `None` for `MPI_INFO_NULL`.
pub fn optional(info: Info) -> Result<Option<Arc<InfoObject>>> {
    match info {
        Info::NULL => Ok(None),
        other => get(other).map(Some),
    }
}

pub fn get(info: Info) -> Result<Arc<InfoObject>> {
    if info == Info::ENV {
        return Ok(Arc::new(environment()));
    }
    INFOS
        .get(info.0)
        .ok_or_else(|| Error::new(class::INFO, "the handle is no info"))
}

/// Makes an info of these pairs.
pub fn make(pairs: Vec<(String, String)>) -> Info {
    Info(INFOS.insert(Arc::new(InfoObject(Mutex::new(pairs)))))
}

fn environment() -> InfoObject {
    let mut pairs = Vec::new();
    if let Some(command) = std::env::args().next() {
        pairs.push(("command".into(), command));
    }
    if let Ok(size) = crate::state::instance().map(|instance| instance.control.size()) {
        pairs.push(("maxprocs".into(), size.to_string()));
    }
    pairs.push(("soft".into(), "0:1:1".into()));
    pairs.push(("thread_level".into(), "MPI_THREAD_MULTIPLE".into()));
    if let Ok(directory) = std::env::current_dir() {
        pairs.push(("wdir".into(), directory.to_string_lossy().into_owned()));
    }
    InfoObject(Mutex::new(pairs))
}

fn key_of(key: Text) -> Result<String> {
    let key = key.get()?;
    match key.is_empty() || key.len() > MAX_KEY {
        true => Err(Error::new(class::INFO_KEY, "a key has between 1 and 255 bytes")),
        false => Ok(key),
    }
}

mpi! {
    fn MPI_Info_create(info: Out<Info>) [()] {
        info.check()?.set(make(Vec::new()));
        Ok(())
    }

    fn MPI_Info_create_env(_argc: c_int, _argv: crate::errhandler::Opaque, info: Out<Info>) [()] {
        let pairs = environment().pairs().clone();
        info.check()?.set(make(pairs));
        Ok(())
    }

    fn MPI_Info_free(info: Out<Info>) [()] {
        let handle = info.get()?;
        INFOS.remove(handle.0).ok_or_else(|| Error::new(class::INFO, "the handle is no info"))?;
        info.set(Info::NULL);
        Ok(())
    }

    fn MPI_Info_dup(info: Info, copy: Out<Info>) [()] {
        let pairs = get(info)?.pairs().clone();
        copy.check()?.set(make(pairs));
        Ok(())
    }

    fn MPI_Info_set(info: Info, key: Text, value: Text) [()] {
        let (info, key, value) = (get(info)?, key_of(key)?, value.get()?);
        if value.len() > MAX_VALUE {
            return Err(Error::new(class::INFO_VALUE, "a value has at most 1024 bytes"));
        }
        let mut pairs = info.pairs();
        match pairs.iter_mut().find(|(name, _)| *name == key) {
            Some((_, old)) => *old = value,
            None => pairs.push((key, value)),
        }
        Ok(())
    }

    fn MPI_Info_delete(info: Info, key: Text) [()] {
        let (info, key) = (get(info)?, key_of(key)?);
        let mut pairs = info.pairs();
        let at = pairs.iter().position(|(name, _)| *name == key);
        let at = at.ok_or_else(|| Error::new(class::INFO_NOKEY, format!("the info has no key {key}")))?;
        pairs.remove(at);
        Ok(())
    }

    fn MPI_Info_get(info: Info, key: Text, room: c_int, value: TextOut, flag: Out<c_int>) [()] {
        let found = get(info)?.find(&key_of(key)?);
        flag.set(found.is_some().into());
        if let Some(found) = found {
            value.set(&found, room.max(0) as usize + 1)?;
        }
        Ok(())
    }

    fn MPI_Info_get_string(info: Info, key: Text, room: Out<c_int>, value: TextOut, flag: Out<c_int>) [()] {
        let found = get(info)?.find(&key_of(key)?);
        flag.set(found.is_some().into());
        if let Some(found) = found {
            let given = room.get()?;
            if given > 0 {
                value.set(&found, given as usize)?;
            }
            room.set(found.len() as c_int + 1);
        }
        Ok(())
    }

    fn MPI_Info_get_valuelen(info: Info, key: Text, length: Out<c_int>, flag: Out<c_int>) [()] {
        let found = get(info)?.find(&key_of(key)?);
        flag.set(found.is_some().into());
        if let Some(found) = found {
            length.set(found.len() as c_int);
        }
        Ok(())
    }

    fn MPI_Info_get_nkeys(info: Info, count: Out<c_int>) [()] {
        let keys = get(info)?.pairs().len();
        count.check()?.set(keys as c_int);
        Ok(())
    }

    fn MPI_Info_get_nthkey(info: Info, number: c_int, key: TextOut) [()] {
        let info = get(info)?;
        let pairs = info.pairs();
        let found = usize::try_from(number).ok().and_then(|number| pairs.get(number));
        let (name, _) = found.ok_or_else(|| Error::new(class::ARG, format!("the info has no key {number}")))?;
        key.set(name, MAX_KEY + 1)?;
        Ok(())
    }
}
