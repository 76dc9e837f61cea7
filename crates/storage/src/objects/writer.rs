//! Objects that are written in pieces.

use bytes::Bytes;
use dayfly_protocol::error::Failure;
use object_store::{Error, ObjectStoreExt, WriteMultipart};

use super::{Objects, PART_BYTES};

/// Most parts in flight.
const PARTS: usize = 4;

/// An object that is being written. Dropping it before its end discards it, but only [`ObjectWriter::abort`] deletes
/// the parts that a bucket already has.
pub struct ObjectWriter {
    objects: Objects,
    name: String,
    /// The upload, once the object is too long to be held in memory.
    begun: Option<WriteMultipart>,
    held: Vec<Bytes>,
    held_bytes: usize,
}

impl ObjectWriter {
    pub(super) fn new(objects: Objects, name: String) -> Self {
        Self {
            objects,
            name,
            begun: None,
            held: Vec::new(),
            held_bytes: 0,
        }
    }

    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Failure> {
        if self.begun.is_none() && self.held_bytes + bytes.len() <= PART_BYTES {
            self.held_bytes += bytes.len();
            self.held.push(bytes);
            return Ok(());
        }
        let objects = self.objects.clone();
        let failed = |error| objects.failed("storing", &self.name, error);
        let writing = match self.begun.take() {
            Some(writing) => writing,
            None => {
                let path = objects.path(&self.name);
                let upload = objects.store.put_multipart(&path).await.map_err(failed)?;
                WriteMultipart::new_with_chunk_size(upload, PART_BYTES)
            }
        };
        let pieces = self.held.drain(..).chain([bytes]).collect();
        self.begun = Some(feed(writing, pieces).await.map_err(failed)?);
        Ok(())
    }

    /// Completes the object: it is now visible and durable. Returns its bytes if they were held in memory.
    pub async fn finish(self) -> Result<Option<Bytes>, Failure> {
        let held = match self.begun {
            Some(writing) => {
                let finished = writing.finish().await;
                finished.map_err(|error| self.objects.failed("storing", &self.name, error))?;
                None
            }
            None => {
                let whole: Bytes = match &self.held[..] {
                    [whole] => whole.clone(),
                    pieces => pieces.concat().into(),
                };
                self.objects.put(&self.name, whole.clone()).await?;
                Some(whole)
            }
        };
        self.objects.sync(&self.name).await?;
        Ok(held)
    }

    /// Discards the object.
    pub async fn abort(self) {
        if let Some(writing) = self.begun {
            // A bucket would keep the parts of an incomplete object, and bill them.
            let _ = writing.abort().await;
        }
    }
}

/// Adds pieces to an upload, as fast as its parts are sent.
pub(super) async fn feed(mut writing: WriteMultipart, pieces: Vec<Bytes>) -> Result<WriteMultipart, Error> {
    for piece in pieces {
        if let Err(error) = writing.wait_for_capacity(PARTS).await {
            // A bucket would keep the parts of an incomplete object, and bill them.
            let _ = writing.abort().await;
            return Err(error);
        }
        writing.put(piece);
    }
    Ok(writing)
}
