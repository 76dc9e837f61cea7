use std::sync::Arc;

use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion_distributed::display_plan_ascii;

use super::super::tests::{cause, damaged, planned_with};
use super::*;
use crate::plan::checker::check as check_plan;
use crate::ranges::{RangesExec, SortRule, Spec, placed};

const REFUSED: &str = "InOrderExec needs partitions with ranges in order";

/// Plans a query for three ranks, which sort by ranges.
async fn planned(query: &str) -> Plan {
    let plan = planned_with(query, vec![Arc::new(SortRule { min_rows: 0 })]).await;
    let shown = display_plan_ascii(plan.as_ref(), false);
    placed(&plan, 0).unwrap().expect(&shown)
}

/// A plan whose ranges have another specification.
fn with_spec(plan: &Plan, change: impl Fn(&mut Spec)) -> Plan {
    damaged(plan, |node| {
        let ranges = node.downcast_ref::<RangesExec>()?;
        let mut spec = ranges.spec().clone();
        change(&mut spec);
        let changed = RangesExec::try_new(Arc::clone(ranges.input()), spec);
        Some(Arc::new(changed.unwrap()))
    })
}

#[tokio::test]
async fn sorts_by_ranges_pass() {
    for query in [
        "SELECT * FROM many ORDER BY number",
        "SELECT text FROM many WHERE key > 3 ORDER BY number DESC NULLS LAST, text",
        "SELECT key, count(*) AS rows FROM many GROUP BY key ORDER BY rows, key",
        "SELECT text, number FROM many ORDER BY number % 7, key",
        "SELECT a.text FROM many a JOIN many b ON a.key = b.number ORDER BY a.text, b.text",
    ] {
        let plan = planned(query).await;
        let shown = display_plan_ascii(plan.as_ref(), false);
        assert!(
            shown.contains("InOrderExec") && shown.contains("RangesExec"),
            "{query}\n{shown}"
        );
        assert!(!shown.contains("SortPreservingMergeExec"), "{query}\n{shown}");
        assert_eq!(check_plan(&plan), Ok(()), "{query}\n{shown}");
    }
}

#[tokio::test]
async fn partitions_without_ranges_are_refused() {
    let plan = planned_with("SELECT * FROM many ORDER BY number", Vec::new()).await;
    let joined = damaged(&plan, |node| {
        let merge = node.downcast_ref::<SortPreservingMergeExec>()?;
        Some(Arc::new(InOrderExec::new(Arc::clone(merge.input()))))
    });
    assert!(cause(&joined).starts_with(REFUSED));
}

#[tokio::test]
async fn ranges_of_other_keys_are_refused() {
    let plan = planned("SELECT * FROM many ORDER BY number, key").await;
    for changed in [
        with_spec(&plan, |spec| spec.keys.reverse()),
        with_spec(&plan, |spec| spec.keys[1].descending = true),
        with_spec(&plan, |spec| spec.keys[0].nulls_first = true),
        with_spec(&plan, |spec| spec.keys.truncate(1)),
    ] {
        let refused = cause(&changed);
        assert!(refused.starts_with(REFUSED), "{refused}");
    }
}

#[tokio::test]
async fn other_number_of_ranges_is_refused() {
    let plan = planned("SELECT * FROM many ORDER BY number").await;
    let refused = cause(&with_spec(&plan, |spec| spec.ranges += 1));
    assert!(refused.starts_with(REFUSED), "{refused}");
}

#[tokio::test]
async fn unsorted_ranges_are_refused() {
    let plan = planned("SELECT * FROM many ORDER BY number").await;
    let unsorted = damaged(&plan, |node| {
        let sort = node.downcast_ref::<SortExec>()?;
        sort.input().is::<ProjectionExec>().then(|| Arc::clone(sort.input()))
    });
    assert!(cause(&unsorted).starts_with("InOrderExec"));
}
