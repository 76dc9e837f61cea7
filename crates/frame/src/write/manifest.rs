//! The manifest of a written directory.

use std::str::FromStr;

use super::encoder::Format;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{DataFusionError, Result as QueryResult, plan_err};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::expressions::Column;
use serde::{Deserialize, Serialize};

/// Name of the manifest. Scans of directories leave out what begins with `_`.
pub const MANIFEST: &str = "_manifest.json";

/// What a run has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The run, which is in the name of every file.
    pub run: String,
    /// The format of the files.
    pub format: Format,
    /// Columns that are in the names of directories.
    pub partition_by: Vec<PartitionColumn>,
    /// Columns by which the rows of all files are sorted, if the files are read in the order of their paths.
    #[serde(default)]
    pub sorted_by: Vec<SortColumn>,
    /// The files, in the order of their paths.
    pub files: Vec<FileEntry>,
}

/// A column whose values are in the names of directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionColumn {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub data_type: String,
}

/// A column by which rows are sorted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortColumn {
    /// Its name.
    pub name: String,
    /// Whether larger values come first.
    pub descending: bool,
    /// Whether nulls come first.
    pub nulls_first: bool,
}

impl PartitionColumn {
    /// Its type.
    ///
    /// # Errors
    /// If Arrow has no such type.
    pub fn data_type(&self) -> QueryResult<DataType> {
        DataType::from_str(&self.data_type).map_err(DataFusionError::from)
    }
}

/// A written file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the directory.
    pub path: String,
    /// Its rows.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Manifest {
    /// The manifest as it is stored.
    ///
    /// # Errors
    /// None that a manifest of this process can have.
    pub fn to_json(&self) -> QueryResult<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|error| DataFusionError::External(error.into()))
    }

    /// Reads a manifest. Paths that leave their directory are refused.
    ///
    /// # Errors
    /// If the text is no manifest.
    pub fn from_json(text: &[u8]) -> QueryResult<Self> {
        let read: Self = match serde_json::from_slice(text) {
            Ok(read) => read,
            Err(error) => return plan_err!("the file {MANIFEST} is no manifest: {error}"),
        };
        let leaves = |path: &str| path.starts_with('/') || path.split('/').any(|part| part == "..");
        if let Some(file) = read.files.iter().find(|file| leaves(&file.path)) {
            return plan_err!(
                "the file {MANIFEST} names {:?}, which is not below its directory",
                file.path
            );
        }
        Ok(read)
    }
}

/// The partition columns of a schema by their names.
pub fn partition_columns(schema: &Schema, names: &[String]) -> QueryResult<Vec<PartitionColumn>> {
    if !names.is_empty() && names.len() == schema.fields().len() {
        return plan_err!("partition_by names all columns: files would have none");
    }
    let column = |name: &String| match schema.field_with_name(name) {
        Ok(field) => Ok(PartitionColumn {
            name: name.clone(),
            data_type: field.data_type().to_string(),
        }),
        Err(_) => {
            let known: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            plan_err!(
                "there is no column {name:?} to partition by; the columns are: {}",
                known.join(", ")
            )
        }
    };
    names.iter().map(column).collect()
}

/// The columns of an order, up to a key that is no column.
pub fn sort_columns(order: Option<&LexOrdering>) -> Vec<SortColumn> {
    let keys = order.into_iter().flatten();
    let columns = keys.map_while(|key| {
        let column = key.expr.downcast_ref::<Column>()?;
        Some(SortColumn {
            name: column.name().to_owned(),
            descending: key.options.descending,
            nulls_first: key.options.nulls_first,
        })
    });
    columns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_names_files_below_its_directory_only() {
        let of = |path: &str| Manifest {
            run: "1".into(),
            format: Format::Parquet,
            partition_by: Vec::new(),
            sorted_by: Vec::new(),
            files: vec![FileEntry {
                path: path.into(),
                rows: 1,
                bytes: 2,
            }],
        };
        let good = of("zone=1/part-1-0-0-0.parquet");
        assert_eq!(Manifest::from_json(&good.to_json().unwrap()).unwrap(), good);
        for path in ["/etc/passwd", "../x", "a/../../x"] {
            assert!(Manifest::from_json(&of(path).to_json().unwrap()).is_err(), "{path}");
        }
        assert!(Manifest::from_json(b"{}").is_err());
    }
}
