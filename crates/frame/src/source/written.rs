//! Directories that frames were written into.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, Result as QueryResult, ScalarValue, plan_err};
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{Expr, cast, lit};
use datafusion::prelude::{DataFrame, SessionContext};

use super::Source;
use super::paths::Paths;
use crate::write::{Manifest, NULL_VALUE, prefix_of};

/// A column in the names of directories, and its type.
pub type NamedColumn = (String, DataType);

/// A frame of the files of a manifest's run, and of no others.
pub async fn read(
    context: &SessionContext,
    source: &Source,
    directory: &str,
    manifest: &Manifest,
) -> QueryResult<DataFrame> {
    let (asked, found) = (source.format, manifest.format);
    if asked != found {
        let (asked, found) = (asked.name(), found.name());
        return plan_err!(
            "the directory {directory} has files in the format {found}: scan it as these, not as {asked}"
        );
    }
    let directory = directory.trim_end_matches('/');
    // As texts, because a null has a name of its own.
    let columns = manifest.partition_by.iter();
    let columns: Vec<_> = columns.map(|column| (column.name.clone(), DataType::Utf8)).collect();
    let (prefix, extension) = (prefix_of(&manifest.run), found.extension());
    let paths = Paths::parse(&[format!("{directory}/**/{prefix}*.{extension}")])?;
    let frame = source.scan(context, paths, &format!(".{extension}"), &columns).await?;
    let fields = frame.schema().fields().iter().map(|field| {
        let column = Expr::Column(Column::new_unqualified(field.name()));
        let mut partitions = manifest.partition_by.iter();
        match partitions.find(|partition| partition.name == *field.name()) {
            Some(partition) => {
                let value = match partition.data_type()? {
                    // No other type is cast to that of columns in which all is null.
                    DataType::Null => lit(ScalarValue::Null),
                    kind => cast(nullif(column, lit(NULL_VALUE)), kind),
                };
                Ok(value.alias(field.name()))
            }
            None => Ok(column),
        }
    });
    let fields = fields.collect::<QueryResult<Vec<_>>>()?;
    frame.select(fields)
}
