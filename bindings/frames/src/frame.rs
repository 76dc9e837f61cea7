//! Frames: plans that are executed when their rows are asked for.

use std::sync::Arc;

use dayfly_frame::datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use dayfly_frame::datafusion::common::{Column, DataFusionError, plan_err};
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::logical_expr::utils::find_aggregate_exprs;
use dayfly_frame::datafusion::logical_expr::{Expr as DfExpr, LogicalPlan, LogicalPlanBuilder, lit};
use dayfly_frame::datafusion::prelude::DataFrame;
use dayfly_frame::{MapCall, Output};
use dayfly_protocol::text::bounded;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

use crate::arrow::export_schema;
use crate::batch_functions::schema_of;
use crate::errors::{ForPython, invalid};
use crate::expr::Expr;
use crate::functions;
use crate::join::{How, Keys, join};
use crate::names::{self, check, check_names, columns, has_aggregate, named, uses_plain_column};
use crate::output::format_of;
use crate::session::Shared;
use crate::table::{Batches, Table};
use crate::types::type_name;

/// A plan. `dayfly_frames.Frame` has its operations.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Frame {
    shared: Shared,
    plan: LogicalPlan,
}

impl Frame {
    pub fn new(shared: Shared, plan: LogicalPlan) -> Self {
        Self { shared, plan }
    }

    pub fn plan(&self) -> &LogicalPlan {
        &self.plan
    }

    fn data(&self, py: Python<'_>) -> PyResult<DataFrame> {
        let session = self.shared.get(py)?;
        Ok(DataFrame::new(session.context().state(), self.plan.clone()))
    }

    fn derived(&self, py: Python<'_>, plan: QueryResult<LogicalPlan>) -> PyResult<Self> {
        Ok(self.shared.frame(plan.for_python(py)?))
    }

    fn builder(&self) -> LogicalPlanBuilder {
        LogicalPlanBuilder::from(self.plan.clone())
    }

    fn selected(&self, data: DataFrame, exprs: Vec<DfExpr>) -> QueryResult<LogicalPlan> {
        check(self.plan.schema(), &exprs)?;
        let exprs = named(exprs)?;
        if exprs.is_empty() {
            return plan_err!("select at least one column");
        }
        let aggregated = exprs.iter().any(has_aggregate);
        if aggregated && !exprs.iter().any(uses_plain_column) {
            return aggregated_plan(&self.plan, vec![], exprs);
        }
        let exprs = exprs
            .into_iter()
            .map(|expr| names::over(expr, &[], &[]))
            .collect::<QueryResult<Vec<_>>>()?;
        Ok(data.select(exprs)?.into_unoptimized_plan())
    }
}

/// Groups by keys. Each of the other expressions has at least one aggregate, and may compute with it.
fn aggregated_plan(plan: &LogicalPlan, keys: Vec<DfExpr>, exprs: Vec<DfExpr>) -> QueryResult<LogicalPlan> {
    let bare: Vec<DfExpr> = keys.iter().map(|key| key.clone().unalias()).collect();
    let aggregates = find_aggregate_exprs(&exprs);
    let made: Vec<DfExpr> = bare.iter().chain(&aggregates).cloned().collect();
    let grouped = LogicalPlanBuilder::from(plan.clone())
        .aggregate(bare, aggregates)?
        .build()?;
    let columns: Vec<DfExpr> = grouped
        .schema()
        .iter()
        .map(|field| DfExpr::Column(Column::from(field)))
        .collect();
    let in_group = |expr: DfExpr| -> QueryResult<DfExpr> {
        // From the top, so that an argument of an aggregate that equals a key stays in it.
        let rebased = expr.transform_down(|part| {
            Ok::<_, DataFusionError>(match made.iter().position(|known| *known == part) {
                Some(place) => Transformed::new(columns[place].clone(), true, TreeNodeRecursion::Jump),
                None => Transformed::no(part),
            })
        })?;
        Ok(rebased.data)
    };
    let output = keys
        .into_iter()
        .chain(exprs)
        .map(in_group)
        .collect::<QueryResult<Vec<_>>>()?;
    let known: Vec<&DfExpr> = columns.iter().collect();
    for expr in &output {
        let stray = expr
            .column_refs()
            .into_iter()
            .find(|column| !known.contains(&&DfExpr::Column((*column).clone())));
        if let Some(column) = stray {
            return plan_err!(
                "column {:?} is neither a key of the groups nor in an aggregate, such as .sum() or .max()",
                column.name
            );
        }
    }
    LogicalPlanBuilder::from(grouped).project(output)?.build()
}

#[pymethods]
impl Frame {
    fn columns(&self) -> Vec<String> {
        columns(self.plan.schema())
    }

    fn types(&self) -> Vec<String> {
        let fields = self.plan.schema().fields().iter();
        fields.map(|field| type_name(field.data_type())).collect()
    }

    /// Python's view of the ranks, if all of them call the operations of this frame. Fails if the session is closed.
    fn group(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.shared.group(py)
    }

    /// What shows queries under way, if it was asked for.
    fn progress(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.shared.progress(py)
    }

    /// What reports queries to the manager, if the session has a client.
    fn reporter(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.shared.reporter(py)
    }

    /// The plan before it is divided among ranks, in at most so many bytes.
    fn outline(&self, max_bytes: usize) -> String {
        bounded(&self.plan.display_indent().to_string(), max_bytes)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        export_schema(py, self.plan.schema().as_arrow())
    }

    /// A frame of a query over these frames, by the names of their tables. All belong to this frame's session.
    fn sql(&self, py: Python<'_>, query: String, tables: Vec<(String, PyRef<'_, Self>)>) -> PyResult<Self> {
        self.shared.sql(py, query, &tables)
    }

    /// Expressions of SQL over the columns of this frame, such as `sum("fare") OVER (PARTITION BY "zone") AS "all"`.
    fn sql_exprs(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Expr>> {
        let data = self.data(py)?;
        let parsed = texts.iter().map(|text| data.parse_sql_expr(text).map(Expr::new));
        parsed.collect::<QueryResult<_>>().for_python(py)
    }

    fn select(&self, py: Python<'_>, exprs: Vec<Expr>) -> PyResult<Self> {
        let data = self.data(py)?;
        self.derived(py, self.selected(data, Expr::all(exprs)))
    }

    /// All columns, with those of the expressions in place of columns with their names, or after them.
    fn with_columns(&self, py: Python<'_>, exprs: Vec<Expr>) -> PyResult<Self> {
        let data = self.data(py)?;
        let plan = (|| {
            let mut new = named(Expr::all(exprs))?;
            let mut all = Vec::new();
            for name in self.columns() {
                let place = new.iter().position(|expr| names::output_name(expr) == name);
                all.push(place.map_or_else(
                    || DfExpr::Column(Column::new_unqualified(name)),
                    |place| new.remove(place),
                ));
            }
            all.append(&mut new);
            self.selected(data, all)
        })();
        self.derived(py, plan)
    }

    fn filter(&self, py: Python<'_>, predicate: &Expr) -> PyResult<Self> {
        let predicate = predicate.inner().clone();
        if has_aggregate(&predicate) {
            return Err(invalid(
                py,
                "filter takes no aggregates: add a column with with_columns() first, and filter by it",
            ));
        }
        let plan = check(self.plan.schema(), [&predicate]).and_then(|()| self.builder().filter(predicate)?.build());
        self.derived(py, plan)
    }

    fn aggregate(&self, py: Python<'_>, keys: Vec<Expr>, exprs: Vec<Expr>) -> PyResult<Self> {
        let plan = (|| {
            let (keys, exprs) = (Expr::all(keys), Expr::all(exprs));
            check(self.plan.schema(), keys.iter().chain(&exprs))?;
            if let Some(expr) = exprs.iter().find(|expr| !has_aggregate(expr)) {
                return plan_err!(
                    "{:?} has no aggregate, such as .sum() or .max()",
                    names::output_name(expr)
                );
            }
            let count = keys.len();
            let mut keys = named(keys.into_iter().chain(exprs).collect())?;
            let exprs = keys.split_off(count);
            aggregated_plan(&self.plan, keys, exprs)
        })();
        self.derived(py, plan)
    }

    /// Sorts by expressions. Of each: whether it descends, and whether nulls come last.
    fn sort(&self, py: Python<'_>, keys: Vec<(Expr, bool, bool)>) -> PyResult<Self> {
        let plan = check(self.plan.schema(), keys.iter().map(|(key, _, _)| key.inner())).and_then(|()| {
            let keys = keys
                .iter()
                .map(|(key, descending, nulls_last)| key.inner().clone().sort(!descending, !nulls_last));
            self.builder().sort(keys.collect::<Vec<_>>())?.build()
        });
        self.derived(py, plan)
    }

    #[expect(clippy::too_many_arguments, reason = "they are those of Python")]
    fn join(
        &self,
        py: Python<'_>,
        other: &Self,
        how: &str,
        left: Vec<String>,
        right: Vec<String>,
        suffix: &str,
        coalesce: bool,
        is_sorted: bool,
    ) -> PyResult<Self> {
        let kinds = "inner, left, right, full, semi, anti or cross";
        let how = How::of(how).ok_or_else(|| invalid(py, format!("how={how:?} is no join: {kinds}")))?;
        let keys = Keys {
            left,
            right,
            coalesce,
            is_sorted,
        };
        self.derived(py, join(&self.plan, &other.plan, how, &keys, suffix))
    }

    /// Different rows; or one row for each combination of these columns.
    fn unique(&self, py: Python<'_>, subset: Option<Vec<String>>) -> PyResult<Self> {
        let plan = (|| {
            let Some(subset) = subset else {
                return self.builder().distinct()?.build();
            };
            check_names(self.plan.schema(), subset.iter().map(String::as_str))?;
            let column = |name: String| DfExpr::Column(Column::new_unqualified(name));
            let on = subset.into_iter().map(column).collect();
            let all = self.columns().into_iter().map(column).collect();
            self.builder().distinct_on(on, all, None)?.build()
        })();
        self.derived(py, plan)
    }

    /// `union`, `intersect` or `except` with the rows of another frame, by the names of columns.
    fn combine(&self, py: Python<'_>, kind: &str, other: &Self, distinct: bool) -> PyResult<Self> {
        let plan = (|| {
            let (own, theirs) = (self.columns(), other.columns());
            if own.len() != theirs.len() || own.iter().any(|name| !theirs.contains(name)) {
                return plan_err!(
                    "the frames have different columns: {} and {}",
                    own.join(", "),
                    theirs.join(", ")
                );
            }
            let column = |name: &String| DfExpr::Column(Column::new_unqualified(name));
            let left = self.builder().project(own.iter().map(column).collect::<Vec<_>>())?;
            let right = other
                .builder()
                .project(own.iter().map(column).collect::<Vec<_>>())?
                .build()?;
            match kind {
                "union" if distinct => left.union_distinct(right)?.build(),
                "union" => left.union(right)?.build(),
                "intersect" => LogicalPlanBuilder::intersect(left.build()?, right, !distinct),
                _ => LogicalPlanBuilder::except(left.build()?, right, !distinct),
            }
        })();
        self.derived(py, plan)
    }

    fn slice(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<Self> {
        self.derived(
            py,
            self.builder().limit(offset, length).and_then(LogicalPlanBuilder::build),
        )
    }

    /// Rows by chance: so many, or each with this probability.
    fn sample(&self, py: Python<'_>, rows: Option<usize>, fraction: f64) -> PyResult<Self> {
        let plan = (|| {
            let Some(random) = functions::scalar("random") else {
                return plan_err!("DataFusion has no function random");
            };
            let random = random.call(vec![]);
            match rows {
                Some(rows) => self
                    .builder()
                    .sort_with_limit([random.sort(true, false)], Some(rows))?
                    .build(),
                None => self.builder().filter(random.lt(lit(fraction)))?.build(),
            }
        })();
        self.derived(py, plan)
    }

    /// The same rows, with those of equal keys in one partition of one rank.
    fn repartition(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<Self> {
        let plan = check_names(self.plan.schema(), keys.iter().map(String::as_str))
            .and_then(|()| dayfly_frame::repartition(self.plan.clone(), keys));
        self.derived(py, plan)
    }

    /// The batches that a function returns for those of this frame. `schema` has the names of columns and types.
    fn map_batches(
        &self,
        py: Python<'_>,
        name: String,
        function: Vec<u8>,
        schema: Vec<(String, String)>,
        batch_rows: usize,
    ) -> PyResult<Self> {
        let schema =
            schema_of(schema).map_err(|kind| invalid(py, format!("{kind:?} is no type of a column; see Expr.cast")))?;
        let call = MapCall {
            name,
            function,
            schema,
            batch_rows,
        };
        self.derived(py, dayfly_frame::map_batches(self.plan.clone(), call))
    }

    /// All rows.
    fn collect(&self, py: Python<'_>) -> PyResult<Table> {
        let (runtime, rows) = self.shared.run(py, |session| {
            let plan = self.plan.clone();
            async move { Ok((session.runtime().handle().clone(), session.collect(plan).await?)) }
        })?;
        Ok(Table::with_usage(rows, runtime))
    }

    /// Has so many ranks keep each row. Returns a frame that reads them.
    fn persist(&self, py: Python<'_>, replicas: usize) -> PyResult<Self> {
        let plan = self.shared.run(py, |session| {
            let plan = self.plan.clone();
            async move { session.persist(plan, replicas).await }
        })?;
        Ok(self.shared.frame(plan))
    }

    /// The rows as they arrive.
    fn batches(&self, py: Python<'_>) -> PyResult<Batches> {
        let (runtime, stream) = self.shared.run(py, |session| {
            let plan = self.plan.clone();
            async move { Ok((session.runtime().handle().clone(), session.stream(plan).await?)) }
        })?;
        Ok(Batches::new(self.shared.clone(), runtime, stream))
    }

    /// What the ranks cost in a second.
    fn price(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.shared.price(py)
    }

    /// What submits a write as a durable task, if the session has a client.
    fn detach(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.shared.detach(py)
    }

    /// The frame as bytes, for `Session.restored` of another session.
    fn saved<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let session = self.shared.get(py)?;
        let bytes = dayfly_frame::saved(session.context(), &self.plan).for_python(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes the rows as files below a directory. Returns the files' paths below it, rows and bytes. A write with an id
    /// may run several times.
    #[pyo3(signature = (format, directory, partition_by, id = None))]
    fn write(
        &self,
        py: Python<'_>,
        format: &str,
        directory: String,
        partition_by: Vec<String>,
        id: Option<String>,
    ) -> PyResult<Vec<(String, u64, u64)>> {
        let output = Output {
            directory,
            partition_by,
            format: format_of(format)?,
            id,
        };
        let written = self.shared.run(py, |session| {
            let (plan, output) = (self.plan.clone(), output.clone());
            async move { session.write(plan, &output).await }
        })?;
        let files = written.files.into_iter();
        Ok(files.map(|file| (file.path, file.rows, file.bytes)).collect())
    }

    /// Statistics of each column.
    fn describe(&self, py: Python<'_>) -> PyResult<Table> {
        self.shared.run(py, |session| {
            let plan = self.plan.clone();
            async move {
                let data = DataFrame::new(session.labelled_context().state(), plan);
                let described = data.describe().await?;
                let schema = Arc::clone(described.schema().inner());
                Ok(Table::new(schema, described.collect().await?))
            }
        })
    }

    /// The plan of the ranks; with what its nodes measure when they execute it, if that is asked for.
    fn explain(&self, py: Python<'_>, analyze: bool) -> PyResult<String> {
        self.shared.run(py, |session| {
            let plan = self.plan.clone();
            async move {
                match analyze {
                    true => dayfly_frame::analyze(&session.labelled_context(), plan).await,
                    false => dayfly_frame::explain(session.context(), plan).await,
                }
            }
        })
    }
}
