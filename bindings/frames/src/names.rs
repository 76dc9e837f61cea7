//! Names of columns: of those that expressions use, and of those that they make.

use std::collections::HashSet;

use dayfly_frame::datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use dayfly_frame::datafusion::common::{DFSchema, DataFusionError, ScalarValue, plan_err};
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::logical_expr::expr::{AggregateFunction, Sort, WindowFunction};
use dayfly_frame::datafusion::logical_expr::utils::find_aggregate_exprs;
use dayfly_frame::datafusion::logical_expr::{Expr, WindowFrame, WindowFunctionDefinition};

/// The columns of a schema, in order.
pub fn columns(schema: &DFSchema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

/// Checks that a schema has these columns.
pub fn check_names<'a>(schema: &DFSchema, names: impl IntoIterator<Item = &'a str>) -> QueryResult<()> {
    let known = columns(schema);
    for name in names {
        if !known.iter().any(|column| column == name) {
            return plan_err!("there is no column {name:?}; the columns are: {}", known.join(", "));
        }
    }
    Ok(())
}

/// Checks that a schema has the columns that expressions use.
pub fn check<'a>(schema: &DFSchema, exprs: impl IntoIterator<Item = &'a Expr>) -> QueryResult<()> {
    for expr in exprs {
        let mut names: Vec<&str> = expr
            .column_refs()
            .into_iter()
            .map(|column| column.name.as_str())
            .collect();
        names.sort_unstable();
        check_names(schema, names)?;
    }
    Ok(())
}

/// The name of the column that an expression makes: that of its alias, else of its first column, as in Polars.
pub fn output_name(expr: &Expr) -> String {
    match expr {
        Expr::Alias(alias) => alias.name.clone(),
        Expr::Column(column) => column.name.clone(),
        Expr::Literal(..) => "literal".into(),
        Expr::AggregateFunction(function) if is_count_of_rows(function) => "count".into(),
        Expr::ScalarFunction(function) if function.args.is_empty() => function.name().into(),
        Expr::Case(case) => case
            .when_then_expr
            .first()
            .map_or_else(|| "case".into(), |(_, then)| output_name(then)),
        other => {
            let mut first = None;
            // Children are visited in order. The first one gives the name.
            let visited = other.apply_children(|child| {
                first.get_or_insert_with(|| output_name(child));
                Ok(TreeNodeRecursion::Stop)
            });
            visited
                .ok()
                .and(first)
                .unwrap_or_else(|| other.schema_name().to_string())
        }
    }
}

fn is_count_of_rows(function: &AggregateFunction) -> bool {
    function.func.name() == "count" && matches!(function.params.args.as_slice(), [Expr::Literal(..)])
}

/// The expressions with their names as aliases. Fails if two have one name.
pub fn named(exprs: Vec<Expr>) -> QueryResult<Vec<Expr>> {
    let mut names = HashSet::new();
    let mut named = Vec::with_capacity(exprs.len());
    for expr in exprs {
        let name = output_name(&expr);
        if !names.insert(name.clone()) {
            return plan_err!("two expressions make a column {name:?}: rename one with .alias()");
        }
        named.push(expr.unalias().alias(name));
    }
    Ok(named)
}

/// Whether an expression has an aggregate that is not over a window.
pub fn has_aggregate(expr: &Expr) -> bool {
    !find_aggregate_exprs([expr]).is_empty()
}

/// Whether an expression uses a column outside its aggregates.
pub fn uses_plain_column(expr: &Expr) -> bool {
    let without = expr.clone().transform_down(|part| {
        Ok(match part {
            Expr::AggregateFunction(_) => Transformed::yes(Expr::Literal(ScalarValue::Null, None)),
            part => Transformed::no(part),
        })
    });
    without.is_ok_and(|without| !without.data.column_refs().is_empty())
}

/// Whether an expression has a window function.
pub fn has_window(expr: &Expr) -> bool {
    let found = expr.exists(|part| Ok(matches!(part, Expr::WindowFunction(_))));
    found.unwrap_or(false)
}

/// Replaces the aggregates of an expression by the same over windows with these partitions and this order, and gives both
/// to window functions that have none.
pub fn over(expr: Expr, partition_by: &[Expr], order_by: &[Sort]) -> QueryResult<Expr> {
    let replaced = expr.transform_up(|part| {
        let mut window = match part {
            Expr::AggregateFunction(function) => {
                let definition = WindowFunctionDefinition::AggregateUDF(function.func);
                let mut window = WindowFunction::new(definition, function.params.args);
                window.params.distinct = function.params.distinct;
                window.params.filter = function.params.filter;
                window.params.null_treatment = function.params.null_treatment;
                window
            }
            Expr::WindowFunction(window)
                if window.params.partition_by.is_empty() && window.params.order_by.is_empty() =>
            {
                *window
            }
            other => return Ok(Transformed::no(other)),
        };
        window.params.partition_by = partition_by.to_vec();
        window.params.order_by = order_by.to_vec();
        // As in SQL: with an order, up to the current row and its equals.
        window.params.window_frame = WindowFrame::new((!order_by.is_empty()).then_some(false));
        Ok::<_, DataFusionError>(Transformed::yes(Expr::from(window)))
    })?;
    Ok(replaced.data)
}
