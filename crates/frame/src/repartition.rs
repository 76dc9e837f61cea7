//! Rows of equal keys on one rank.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result as QueryResult, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::{Distribution, ExecutionPlan};

use crate::operation::{Operation, applied};
use crate::passing::{Passage, PassingExec};

/// A plan whose rows of equal keys are in one partition of one rank.
///
/// # Errors
/// If there is no key.
pub fn repartition(input: LogicalPlan, keys: Vec<String>) -> QueryResult<LogicalPlan> {
    if keys.is_empty() {
        return plan_err!("name at least one column by which rows are repartitioned");
    }
    applied(Repartition::by(keys), input)
}

/// Sends rows of equal keys to one rank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct Repartition {
    keys: Vec<String>,
    names: String,
}

impl Repartition {
    /// By these columns.
    pub fn by(keys: Vec<String>) -> Self {
        let names = keys.join(", ");
        Self { keys, names }
    }
}

impl Operation for Repartition {
    const NAME: &str = "Repartition";

    fn schema(&self) -> Option<SchemaRef> {
        None
    }

    fn keys(&self) -> &[String] {
        &self.keys
    }

    fn detail(&self) -> &str {
        &self.names
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let schema = input.schema();
        let columns = self.keys.iter().map(|key| Ok(schema.index_of(key)?));
        let columns = columns.collect::<QueryResult<Vec<_>>>()?;
        Ok(Arc::new(PassingExec::new(input, Keys(columns))))
    }
}

/// Passes rows on that an exchange below it has sent by key.
pub type RepartitionedExec = PassingExec<Keys>;

/// Places of the keys in the schema.
#[derive(Debug, Clone)]
pub struct Keys(pub Vec<usize>);

impl Passage for Keys {
    const NAME: &str = "RepartitionedExec";

    fn detail(&self, input: &Arc<dyn ExecutionPlan>) -> Option<String> {
        let schema = input.schema();
        let names: Vec<_> = self.0.iter().map(|key| schema.field(*key).name().as_str()).collect();
        Some(names.join(", "))
    }

    fn distribution(&self, input: &Arc<dyn ExecutionPlan>) -> Distribution {
        let schema = input.schema();
        let keys = self.0.iter().map(|key| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(*key).name(), *key));
            column
        });
        Distribution::KeyPartitioned(keys.collect())
    }
}
