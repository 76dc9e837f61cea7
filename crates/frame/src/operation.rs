//! The logical node of this crate: an operation on the rows of one input, which DataFusion has not.

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, DFSchemaRef, Result as QueryResult, internal_err};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

/// What happens to the rows of an input.
pub trait Operation: Debug + Clone + PartialEq + Eq + PartialOrd + Hash + Send + Sync + 'static {
    /// Its name in plans.
    const NAME: &str;

    /// Columns of the rows that it returns; `None` if it returns the rows of its input.
    fn schema(&self) -> Option<SchemaRef>;

    /// Columns that it reads, if it returns the rows of its input.
    fn keys(&self) -> &[String] {
        &[]
    }

    /// What plans show of it beside its name.
    fn detail(&self) -> &str;

    /// The node that executes it.
    ///
    /// # Errors
    /// Of DataFusion.
    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>>;
}

/// A plan that applies an operation to the rows of another.
///
/// # Errors
/// If the schema of the operation has a column twice.
pub fn applied(operation: impl Operation, input: LogicalPlan) -> QueryResult<LogicalPlan> {
    as_extension(operation, input).map(LogicalPlan::Extension)
}

/// The node of an operation.
///
/// # Errors
/// As [`applied`].
pub fn as_extension(operation: impl Operation, input: LogicalPlan) -> QueryResult<Extension> {
    let node = Arc::new(Node::new(operation, input)?);
    Ok(Extension { node })
}

/// The operation of a node, if it is one of this kind.
pub fn operation_of<O: Operation>(node: &dyn UserDefinedLogicalNode) -> Option<&O> {
    node.as_any().downcast_ref::<Node<O>>().map(|node| &node.operation)
}

/// Plans the nodes of an operation.
pub fn planner<O: Operation>() -> Arc<dyn ExtensionPlanner + Send + Sync> {
    Arc::new(Planner::<O>(PhantomData))
}

/// The one input of a node.
///
/// # Errors
/// Of a plan that gives it another number of them.
pub fn only_input<T>(inputs: Vec<T>) -> QueryResult<T> {
    match <[T; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(inputs) => internal_err!("a node has one input, not {}", inputs.len()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node<O> {
    input: LogicalPlan,
    operation: O,
    schema: DFSchemaRef,
}

impl<O: Operation> Node<O> {
    fn new(operation: O, input: LogicalPlan) -> QueryResult<Self> {
        let schema = match operation.schema() {
            Some(schema) => Arc::new(DFSchema::try_from(schema)?),
            None => Arc::clone(input.schema()),
        };
        Ok(Self {
            input,
            operation,
            schema,
        })
    }

    fn passes_rows(&self) -> bool {
        self.operation.schema().is_none()
    }
}

impl<O: Operation> PartialOrd for Node<O> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.operation.partial_cmp(&other.operation)
    }
}

impl<O: Operation> UserDefinedLogicalNodeCore for Node<O> {
    fn name(&self) -> &str {
        O::NAME
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", O::NAME, self.operation.detail())
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> QueryResult<Self> {
        Self::new(self.operation.clone(), only_input(inputs)?)
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        match self.passes_rows() {
            true => HashSet::new(),
            false => self.schema.fields().iter().map(|field| field.name().clone()).collect(),
        }
    }

    fn necessary_children_exprs(&self, output: &[usize]) -> Option<Vec<Vec<usize>>> {
        if !self.passes_rows() {
            return None;
        }
        let keys = self.operation.keys().iter();
        let keys = keys.map(|key| self.schema.index_of_column_by_name(None, key));
        let mut read = keys.collect::<Option<Vec<_>>>()?;
        read.extend_from_slice(output);
        read.sort_unstable();
        read.dedup();
        Some(vec![read])
    }
}

#[derive(Debug)]
struct Planner<O>(PhantomData<fn() -> O>);

#[async_trait]
impl<O: Operation> ExtensionPlanner for Planner<O> {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> QueryResult<Option<Arc<dyn ExecutionPlan>>> {
        match operation_of::<O>(node) {
            Some(operation) => operation.exec(only_input(inputs.to_vec())?).map(Some),
            None => Ok(None),
        }
    }
}
