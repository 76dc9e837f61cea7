//! Joins of two frames, with one copy of the keys.

use std::collections::HashSet;

use dayfly_frame::datafusion::common::{Column, DFSchema, JoinType, TableReference, plan_err};
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use dayfly_frame::sorted_join;

use crate::functions;
use crate::names::{check_names, columns};

/// What a join does with rows without a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Inner,
    Left,
    Right,
    Full,
    Semi,
    Anti,
    Cross,
}

impl How {
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "inner" => Self::Inner,
            "left" => Self::Left,
            "right" => Self::Right,
            "full" => Self::Full,
            "semi" => Self::Semi,
            "anti" => Self::Anti,
            "cross" => Self::Cross,
            _ => return None,
        })
    }

    fn kind(self) -> JoinType {
        match self {
            Self::Inner | Self::Cross => JoinType::Inner,
            Self::Left => JoinType::Left,
            Self::Right => JoinType::Right,
            Self::Full => JoinType::Full,
            Self::Semi => JoinType::LeftSemi,
            Self::Anti => JoinType::LeftAnti,
        }
    }
}

/// The columns on which two frames are joined.
pub struct Keys {
    pub left: Vec<String>,
    pub right: Vec<String>,
    /// Whether a full join has one column for both keys: that of the side that has the row.
    pub coalesce: bool,
    /// Whether both sides are sorted, instead of hashing one.
    pub is_sorted: bool,
}

const LEFT: &str = "left";
const RIGHT: &str = "right";

fn of(side: &str, name: &str) -> Column {
    Column::new(Some(TableReference::bare(side)), name)
}

/// Joins two plans. Columns of the right one whose names the left one has get the suffix.
pub fn join(left: &LogicalPlan, right: &LogicalPlan, how: How, keys: &Keys, suffix: &str) -> QueryResult<LogicalPlan> {
    check_names(left.schema(), keys.left.iter().map(String::as_str))?;
    check_names(right.schema(), keys.right.iter().map(String::as_str))?;
    let output = output(left.schema(), right.schema(), how, keys, suffix)?;
    let right = LogicalPlanBuilder::from(right.clone()).alias(RIGHT)?.build()?;
    let left = LogicalPlanBuilder::from(left.clone()).alias(LEFT)?;
    let joined = if how == How::Cross {
        left.cross_join(right)?
    } else {
        let on = |side: &str, names: &[String]| names.iter().map(|name| of(side, name)).collect::<Vec<_>>();
        let joined = left.join(right, how.kind(), (on(LEFT, &keys.left), on(RIGHT, &keys.right)), None)?;
        match keys.is_sorted {
            true => LogicalPlanBuilder::from(sorted_join(joined.build()?)?),
            false => joined,
        }
    };
    joined.project(output)?.build()
}

/// The columns of a join: those of the left frame, then those of the right one that are not there yet.
fn output(left: &DFSchema, right: &DFSchema, how: How, keys: &Keys, suffix: &str) -> QueryResult<Vec<Expr>> {
    let partner = |name: &str| Some(&keys.right[keys.left.iter().position(|key| key == name)?]);
    let mut names: HashSet<String> = HashSet::new();
    let mut output = Vec::new();
    for name in columns(left) {
        let own = Expr::Column(of(LEFT, &name));
        let value = match (how, partner(&name)) {
            // The right frame has the key of every row.
            (How::Right, Some(_)) => continue,
            (How::Full, Some(key)) if keys.coalesce => either(own, Expr::Column(of(RIGHT, key)))?,
            _ => own,
        };
        names.insert(name.clone());
        output.push(value.alias(name));
    }
    if matches!(how, How::Semi | How::Anti) {
        return Ok(output);
    }
    for name in columns(right) {
        let is_copy = match how {
            How::Inner | How::Left => keys.right.contains(&name),
            How::Full => keys.coalesce && keys.right.contains(&name),
            _ => false,
        };
        if is_copy {
            continue;
        }
        let mut made = name.clone();
        if names.contains(&made) {
            made.push_str(suffix);
        }
        if !names.insert(made.clone()) {
            return plan_err!("both frames have a column {made:?}: choose another suffix=, or rename it");
        }
        output.push(Expr::Column(of(RIGHT, &name)).alias(made));
    }
    Ok(output)
}

/// The first of two values that is not null.
fn either(first: Expr, second: Expr) -> QueryResult<Expr> {
    match functions::scalar("coalesce") {
        Some(function) => Ok(function.call(vec![first, second])),
        None => plan_err!("DataFusion has no function coalesce"),
    }
}
