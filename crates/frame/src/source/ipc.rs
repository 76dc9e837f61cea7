//! Columns of files in Arrow's IPC format.
//!
//! DataFusion reads them from the first piece that a store sends, which may be too short.

use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::ipc::convert::fb_to_schema;
use datafusion::arrow::ipc::reader::read_footer_length;
use datafusion::arrow::ipc::root_as_footer;
use datafusion::common::{Result as QueryResult, plan_err};
use datafusion::prelude::SessionContext;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::paths::Paths;

/// Bytes of a file's end: the length of the footer, and a mark.
const END_BYTES: u64 = 10;

/// The columns of the first file of these paths; `None` if there is no file.
pub async fn schema(context: &SessionContext, paths: &Paths, extension: &str) -> QueryResult<Option<Schema>> {
    match paths.files(context, extension).await?.first() {
        Some((store, file)) => footer(store.as_ref(), file).await.map(Some),
        None => Ok(None),
    }
}

async fn footer(store: &dyn ObjectStore, file: &ObjectMeta) -> QueryResult<Schema> {
    let (path, size) = (&file.location, file.size);
    let end = store.get_range(path, size.saturating_sub(END_BYTES)..size).await?;
    let length = <[u8; END_BYTES as usize]>::try_from(end.as_ref()).ok();
    let length = length.and_then(|end| read_footer_length(end).ok());
    let length = length.and_then(|length| u64::try_from(length).ok());
    let Some(start) = length.and_then(|length| size.checked_sub(END_BYTES + length)) else {
        return plan_err!("the file {path} is not in Arrow's IPC format for files");
    };
    let footer = store.get_range(path, start..size - END_BYTES).await?;
    match root_as_footer(&footer).ok().and_then(|footer| footer.schema()) {
        Some(schema) => Ok(fb_to_schema(schema)),
        None => plan_err!("the file {path} has no footer of Arrow's IPC format"),
    }
}
