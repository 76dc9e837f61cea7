//! Lazy frames.

use std::sync::Arc;

use dayfly_frame::Session;
use dayfly_frame::datafusion::common::{Column, DataFusionError};
use dayfly_frame::datafusion::logical_expr::Expr as Inner;
use dayfly_frame::datafusion::prelude::DataFrame;
use pyo3::prelude::*;

use crate::errors::from_query;
use crate::expr::{Expr, all, sorted};
use crate::join;
use crate::table::Table;
use crate::wait::wait;

/// A table that is computed when it is collected.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Frame {
    session: Arc<Session>,
    plan: DataFrame,
}

impl Frame {
    /// A frame of a plan, whose columns lose the names of their tables.
    pub fn of(py: Python<'_>, session: &Arc<Session>, plan: DataFrame) -> PyResult<Self> {
        let columns: Vec<_> = plan
            .schema()
            .iter()
            .map(|(table, field)| Inner::Column(Column::new(table.cloned(), field.name())).alias(field.name()))
            .collect();
        let plan = plan.select(columns).map_err(|error| from_query(py, &error))?;
        Ok(Self {
            session: session.clone(),
            plan,
        })
    }

    /// DataFusion's plan.
    pub fn plan(&self) -> &DataFrame {
        &self.plan
    }

    fn then(
        &self,
        py: Python<'_>,
        step: impl FnOnce(DataFrame) -> Result<DataFrame, DataFusionError>,
    ) -> PyResult<Self> {
        let plan = step(self.plan.clone()).map_err(|error| from_query(py, &error))?;
        Ok(Self {
            session: self.session.clone(),
            plan,
        })
    }
}

#[pymethods]
impl Frame {
    /// Names and types of the columns.
    #[getter]
    fn fields(&self) -> Vec<(String, String)> {
        let fields = self.plan.schema().fields().iter();
        fields
            .map(|field| (field.name().clone(), field.data_type().to_string()))
            .collect()
    }

    /// These expressions as columns.
    fn select(&self, py: Python<'_>, columns: Vec<Py<Expr>>) -> PyResult<Self> {
        self.then(py, |plan| plan.select(all(&columns)))
    }

    /// The frame with further columns, or with others under the same names.
    fn with_columns(&self, py: Python<'_>, columns: Vec<(String, Py<Expr>)>) -> PyResult<Self> {
        // All expressions see the columns as they were.
        self.then(py, |plan| {
            let named = |name: &str| columns.iter().find(|(new, _)| new == name);
            let old: Vec<_> = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
            let mut all: Vec<_> = old
                .iter()
                .map(|name| match named(name) {
                    Some((_, expression)) => expression.get().inner().alias(name),
                    None => Inner::Column(Column::new_unqualified(name)),
                })
                .collect();
            let new = columns.iter().filter(|(name, _)| !old.contains(name));
            all.extend(new.map(|(name, expression)| expression.get().inner().alias(name)));
            plan.select(all)
        })
    }

    /// The rows for which the condition holds.
    fn filter(&self, py: Python<'_>, condition: &Expr) -> PyResult<Self> {
        self.then(py, |plan| plan.filter(condition.inner()))
    }

    /// One row for each group.
    fn aggregate(&self, py: Python<'_>, keys: Vec<Py<Expr>>, values: Vec<Py<Expr>>) -> PyResult<Self> {
        self.then(py, |plan| plan.aggregate(all(&keys), all(&values)))
    }

    /// The rows in order.
    fn sort(&self, py: Python<'_>, keys: Vec<(Py<Expr>, bool)>) -> PyResult<Self> {
        let keys = keys.iter();
        let keys = keys.map(|(expression, descending)| sorted(expression.get(), *descending));
        let keys = keys.collect();
        self.then(py, |plan| plan.sort(keys))
    }

    /// Rows from an offset on.
    fn limit(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<Self> {
        self.then(py, |plan| plan.limit(offset, length))
    }

    /// Each different row once.
    fn distinct(&self, py: Python<'_>) -> PyResult<Self> {
        self.then(py, DataFrame::distinct)
    }

    /// The rows of two frames: `union`, `union_distinct`, `intersect`, `intersect_distinct`, `except` or
    /// `except_distinct`.
    fn combine(&self, py: Python<'_>, how: &str, other: &Self) -> PyResult<Self> {
        let other = other.plan.clone();
        self.then(py, |plan| match how {
            "union" => plan.union(other),
            "union_distinct" => plan.union_distinct(other),
            "intersect" => plan.intersect(other),
            "intersect_distinct" => plan.intersect_distinct(other),
            "except" => plan.except(other),
            "except_distinct" => plan.except_distinct(other),
            _ => Err(DataFusionError::Plan(format!("two frames have no {how}"))),
        })
    }

    /// Joins with another frame.
    fn join(
        &self,
        py: Python<'_>,
        other: &Self,
        left_on: Vec<String>,
        right_on: Vec<String>,
        how: &str,
    ) -> PyResult<Self> {
        let other = other.plan.clone();
        self.then(py, |plan| join::join(plan, other, &left_on, &right_on, how))
    }

    /// The plan as text, with the ranks' stages.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        let plan = self.plan.clone();
        let physical = wait(py, &self.session, async { plan.create_physical_plan().await })?;
        Ok(dayfly_frame::display_plan_ascii(physical.as_ref(), false))
    }

    /// Computes the frame.
    fn collect(&self, py: Python<'_>) -> PyResult<Table> {
        let schema = Arc::new(self.plan.schema().as_arrow().clone());
        let batches = wait(py, &self.session, self.plan.clone().collect())?;
        Ok(Table::new(schema, batches))
    }
}
