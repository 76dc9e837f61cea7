//! Functions of the user over the batches of a frame: a plan node that calls them on every rank.

pub mod items;
mod node;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::logical_expr::LogicalPlan;
use dayfly_protocol::error::{Code, Failure};

use crate::operation::applied;
pub use node::{MapCall, MapExec};

/// Calls functions in the language of a rank. Sessions and ranks have the same.
pub trait BatchFunctions: Send + Sync + 'static {
    /// Calls the function of a payload with a batch, and returns columns of this schema. Blocks.
    ///
    /// # Errors
    /// If the payload is no function, what the function raises, and if it returns other columns.
    fn call(&self, function: &[u8], batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, Failure>;
}

/// The functions of a process, for its queries.
#[derive(Clone)]
pub struct Functions(Arc<dyn BatchFunctions>);

impl Functions {
    /// Calls functions by these means.
    pub fn new(functions: impl BatchFunctions) -> Self {
        Self(Arc::new(functions))
    }

    /// Calls a function, and checks what it returns.
    fn call(&self, function: &[u8], batch: RecordBatch, schema: &SchemaRef) -> QueryResult<RecordBatch> {
        let external = |failure: Failure| DataFusionError::External(Box::new(failure));
        let found = self.0.call(function, batch, schema).map_err(external)?;
        let columns = |schema: &SchemaRef| {
            let fields = schema.fields().iter();
            let fields = fields.map(|field| format!("{}: {}", field.name(), field.data_type()));
            fields.collect::<Vec<_>>().join(", ")
        };
        let (returned, stated) = (columns(&found.schema()), columns(schema));
        if returned != stated {
            let message = format!("the function returned columns ({returned}), and its schema states ({stated})");
            return Err(external(Failure::new(Code::InvalidRequest, message)));
        }
        Ok(RecordBatch::try_new(Arc::clone(schema), found.columns().to_vec())?)
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").finish_non_exhaustive()
    }
}

/// A plan that calls a function with the batches of another, in any order, on every rank.
///
/// # Errors
/// If the schema has a column twice.
pub fn map_batches(input: LogicalPlan, call: MapCall) -> QueryResult<LogicalPlan> {
    applied(call, input)
}
