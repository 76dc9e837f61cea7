//! Names and types of the columns of CSV files.
//!
//! DataFusion infers them from pieces of a file, which it cuts at any line break: also at those within quotes.

use std::io::{BufReader, Error};

use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DataFusionError, Result as QueryResult, plan_err};
use datafusion::prelude::SessionContext;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::Source;
use super::paths::Paths;

/// The columns of all files of these paths, from their first rows.
pub async fn inferred(
    context: &SessionContext,
    source: &Source,
    paths: &Paths,
    extension: &str,
) -> QueryResult<Schema> {
    let format = Format::default()
        .with_header(source.has_header)
        .with_delimiter(source.separator);
    let mut rows = source.infer_rows;
    let mut columns: Option<(Path, Vec<Field>)> = None;
    for (store, file) in paths.files(context, extension).await? {
        // Further files are taken to have the columns of these.
        if rows == 0 && columns.is_some() {
            break;
        }
        let (own, read) = first_rows(store.as_ref(), &file.location, format.clone(), rows).await?;
        rows -= read.min(rows);
        let merged = match columns {
            None => own,
            Some((first, known)) => merged(&first, known, &file.location, own)?,
        };
        columns = Some((file.location, merged));
    }
    let columns = columns.map_or_else(Vec::new, |(_, columns)| columns).into_iter();
    let typed = columns.map(|field| match field.data_type() {
        // Nothing but empty values.
        DataType::Null => field.with_data_type(DataType::Utf8),
        _ => field,
    });
    Ok(Schema::new(typed.collect::<Vec<_>>()))
}

/// The columns of a file's first rows, and the number of these.
async fn first_rows(
    store: &dyn ObjectStore,
    path: &Path,
    format: Format,
    rows: usize,
) -> QueryResult<(Vec<Field>, usize)> {
    let bytes = store.get(path).await?.into_stream().map_err(Error::other);
    let reader = SyncIoBridge::new(StreamReader::new(bytes));
    let read = tokio::task::spawn_blocking(move || format.infer_schema(BufReader::new(reader), Some(rows)));
    let read = read.await.map_err(|error| DataFusionError::External(error.into()))?;
    match read {
        Ok((schema, read)) => {
            let fields = schema.fields().iter().map(|field| field.as_ref().clone());
            Ok((fields.collect(), read))
        }
        Err(error) => plan_err!("the file {path} is no CSV: {error}"),
    }
}

/// Types that have the values of both.
fn merged(first: &Path, known: Vec<Field>, file: &Path, own: Vec<Field>) -> QueryResult<Vec<Field>> {
    let names = |fields: &[Field]| {
        let names = fields.iter().map(|field| field.name().as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let (expected, found) = (names(&known), names(&own));
    if expected != found {
        return plan_err!("the files have different columns: {first} has {expected}, and {file} has {found}");
    }
    let both = known.into_iter().zip(own);
    let fields = both.map(|(known, own)| {
        let kind = match (known.data_type(), own.data_type()) {
            (one, other) if one == other => one.clone(),
            (DataType::Null, other) | (other, DataType::Null) => other.clone(),
            (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => DataType::Float64,
            _ => DataType::Utf8,
        };
        known.with_data_type(kind)
    });
    Ok(fields.collect())
}
