//! SQL: queries over frames as tables, plans of `EXPLAIN`, and errors with their place in the query.

use std::sync::Arc;

use dayfly_frame::datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use dayfly_frame::datafusion::catalog::MemoryCatalogProviderList;
use dayfly_frame::datafusion::common::format::ExplainFormat;
use dayfly_frame::datafusion::common::{DataFusionError, TableReference, not_impl_err};
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::execution::SessionStateBuilder;
use dayfly_frame::datafusion::execution::context::SQLOptions;
use dayfly_frame::datafusion::logical_expr::{Explain, LogicalPlan};
use dayfly_frame::datafusion::prelude::{DataFrame, SessionContext};
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

use crate::errors::raise;

/// What DataFusion appends to errors that it takes for its own.
const ADVERTISEMENT: &str = "\nThis issue was likely caused by a bug in DataFusion's code.";

/// A session's context with a catalog of its own, whose tables are these plans.
pub fn with_tables(context: &SessionContext, tables: Vec<(String, LogicalPlan)>) -> QueryResult<SessionContext> {
    let state = context.state();
    let mut config = state.config().clone().with_create_default_catalog_and_schema(true);
    config.options_mut().sql_parser.collect_spans = true;
    let state = SessionStateBuilder::new_from_existing(state)
        .with_config(config)
        .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
        .build();
    let context = SessionContext::new_with_state(state);
    for (name, plan) in tables {
        // The name is taken as it is written.
        let view = DataFrame::new(context.state(), plan).into_view();
        context.register_table(TableReference::bare(name), view)?;
    }
    Ok(context)
}

/// The plan of a query. That of `EXPLAIN` has the plan of the ranks.
pub async fn planned(context: &SessionContext, query: &str) -> QueryResult<LogicalPlan> {
    let options = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let frame = context.sql_with_options(query, options).await?;
    match frame.logical_plan() {
        LogicalPlan::Explain(explain) => explained(context, explain).await,
        LogicalPlan::Analyze(analyzed) => {
            let text = dayfly_frame::analyze(context, analyzed.input.as_ref().clone()).await?;
            plan_rows(context, &[("plan_with_measures", text)])
        }
        _ => Ok(frame.into_unoptimized_plan()),
    }
}

/// The rows of `EXPLAIN`.
async fn explained(context: &SessionContext, explain: &Explain) -> QueryResult<LogicalPlan> {
    if explain.explain_format != ExplainFormat::Indent {
        return not_impl_err!("EXPLAIN has one format: leave FORMAT out");
    }
    let state = context.state();
    let logical = state.optimize(&explain.plan)?;
    let physical = dayfly_frame::explain(context, explain.plan.as_ref().clone()).await?;
    let logical = logical.display_indent().to_string();
    plan_rows(context, &[("logical_plan", logical), ("physical_plan", physical)])
}

/// Texts of plans, and what each is.
fn plan_rows(context: &SessionContext, texts: &[(&str, String)]) -> QueryResult<LogicalPlan> {
    let kinds: ArrayRef = Arc::new(StringArray::from_iter_values(texts.iter().map(|(kind, _)| kind)));
    let plans: ArrayRef = Arc::new(StringArray::from_iter_values(texts.iter().map(|(_, text)| text)));
    let rows = RecordBatch::try_from_iter([("plan_type", kinds), ("plan", plans)])?;
    Ok(context.read_batch(rows)?.into_unoptimized_plan())
}

/// The exception for a query that cannot be planned. Its `position` is the line and the column, if they are known.
pub fn refused(py: Python<'_>, error: &DataFusionError, tables: &[String]) -> PyErr {
    let mut failure = dayfly_frame::failure_of(error);
    let mut place = error
        .diagnostic()
        .and_then(|diagnostic| diagnostic.span)
        .map(|span| (span.start.line, span.start.column));
    if let DataFusionError::SQL(parser, _) = error.find_root() {
        let (text, found) = parsed(parser.to_string());
        failure.message = text;
        place = place.or(found);
    } else if let Some(table) = unknown_table(&error.to_string()) {
        failure = Failure::new(Code::InvalidRequest, no_table(&table, tables));
    } else {
        failure.message = readable(&failure.message);
    }
    let Some((line, column)) = place else {
        return raise(py, &failure);
    };
    failure.message = format!("line {line}, column {column}: {}", failure.message);
    let raised = raise(py, &failure);
    match raised.value(py).setattr("position", (line, column)) {
        Ok(()) => raised,
        Err(error) => error,
    }
}

fn no_table(table: &str, tables: &[String]) -> String {
    if tables.is_empty() {
        format!("there is no table {table:?}: pass its frame, as in sql(query, {table}=frame)")
    } else {
        format!("there is no table {table:?}; the tables are: {}", tables.join(", "))
    }
}

/// A parser's message, and the line and the column in it.
fn parsed(message: String) -> (String, Option<(u64, u64)>) {
    let message = message.strip_prefix("sql parser error: ").unwrap_or(&message);
    let place = message.rsplit_once(" at Line: ").and_then(|(text, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((text.to_owned(), Some((line.parse().ok()?, column.parse().ok()?))))
    });
    place.unwrap_or_else(|| (message.to_owned(), None))
}

/// A message of DataFusion without the names of its own parts.
fn readable(message: &str) -> String {
    let mut message = message;
    for prefix in [
        "Error during planning: ",
        "Schema error: ",
        "Internal error: ",
        "This feature is not implemented: ",
    ] {
        message = message.strip_prefix(prefix).unwrap_or(message);
    }
    match message.split_once(ADVERTISEMENT) {
        Some((before, _)) => before.to_owned(),
        None => message.to_owned(),
    }
}

/// The table that a query names and that does not exist.
fn unknown_table(message: &str) -> Option<String> {
    let rest = message.split_once("table '")?.1;
    let name = rest.split_once("' not found")?.0;
    Some(name.rsplit('.').next().unwrap_or(name).to_owned())
}
