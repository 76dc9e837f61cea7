//! [`Objects`] for programs without an async runtime.

use bytes::Bytes;
use dayfly_protocol::error::Failure;

use crate::objects::Objects;
use crate::store_url::StoreUrl;

/// [`Objects`] for a program without an async runtime. Every call blocks until it completes.
#[derive(Debug)]
pub struct BlockingObjects {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) objects: Objects,
}

impl BlockingObjects {
    /// Like [`Objects::open`].
    pub fn open(place: &StoreUrl) -> Result<Self, Failure> {
        let runtime = crate::runtime(place)?;
        let objects = runtime.block_on(async { Objects::open(place) })?;
        Ok(Self { runtime, objects })
    }

    /// Like [`Objects::put`].
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<(), Failure> {
        self.runtime.block_on(self.objects.put(name, bytes))
    }

    /// Like [`Objects::get`].
    pub fn get(&self, name: &str) -> Result<Option<Bytes>, Failure> {
        self.runtime.block_on(self.objects.get(name))
    }

    /// Like [`Objects::list`].
    pub fn list(&self, under: &str) -> Result<Vec<String>, Failure> {
        self.runtime.block_on(self.objects.list(under))
    }

    /// Like [`Objects::clear`].
    pub fn clear(&self, under: &str) -> Result<(), Failure> {
        self.runtime.block_on(self.objects.clear(under))
    }
}
