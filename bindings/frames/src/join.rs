//! Joins with the columns that Polars gives them.

use std::collections::HashSet;

use dayfly_frame::datafusion::common::{Column, DataFusionError, JoinType, Result};
use dayfly_frame::datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use dayfly_frame::datafusion::prelude::DataFrame;

/// What is appended to columns of the right side whose names the left side has.
pub const SUFFIX: &str = "_right";

fn column(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

fn names(frame: &DataFrame) -> Vec<String> {
    let fields = frame.schema().fields().iter();
    fields.map(|field| field.name().clone()).collect()
}

/// Joins two frames whose columns have no qualifiers. The keys of the right side are not repeated, except in a full
/// join, where both may be null. A right join keeps its own keys under the names of the right side.
pub fn join(left: DataFrame, right: DataFrame, left_on: &[String], right_on: &[String], how: &str) -> Result<DataFrame> {
    let kind = match how {
        "inner" | "cross" => JoinType::Inner,
        "left" => JoinType::Left,
        "right" => JoinType::Right,
        "full" => JoinType::Full,
        "semi" => JoinType::LeftSemi,
        "anti" => JoinType::LeftAnti,
        other => {
            return Err(DataFusionError::Plan(format!(
                "there is no join {other}: choose inner, left, right, full, semi, anti or cross"
            )));
        }
    };
    let (left_names, right_names) = (names(&left), names(&right));
    // So that no name is on both sides.
    let moved = |name: &String| format!("right side: {name}");
    let renamed = right_names.iter().map(|name| column(name).alias(moved(name)));
    let right = right.select(renamed.collect::<Vec<_>>())?;

    let joined = if how == "cross" {
        let (state, left) = left.into_parts();
        let plan = LogicalPlanBuilder::from(left).cross_join(right.into_parts().1)?;
        DataFrame::new(state, plan.build()?)
    } else {
        let left_on: Vec<_> = left_on.iter().map(String::as_str).collect();
        let right_on: Vec<_> = right_on.iter().map(moved).collect();
        let right_on: Vec<_> = right_on.iter().map(String::as_str).collect();
        left.join(right, kind, &left_on, &right_on, None)?
    };

    let on_left: HashSet<_> = left_on.iter().collect();
    let on_right: HashSet<_> = right_on.iter().collect();
    let has_right = !matches!(how, "semi" | "anti");
    let mut kept = Vec::new();
    let mut taken = HashSet::new();
    for name in &left_names {
        if how != "right" || !on_left.contains(name) {
            taken.insert(name.clone());
            kept.push(column(name));
        }
    }
    for name in right_names.iter().filter(|_| has_right) {
        let is_key = on_right.contains(name);
        if is_key && !matches!(how, "full" | "right" | "cross") {
            continue;
        }
        let mut new = name.clone();
        if taken.contains(&new) {
            new.push_str(SUFFIX);
        }
        kept.push(column(&moved(name)).alias(new));
    }
    joined.select(kept)
}
