//! Leaves: each row of a source is read by one task.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_distributed::DistributedLeafExec;

use super::{Above, Check, Plan, Rows, limits, wrong};
use crate::functions::items::ItemsExec;
use crate::kept::KeptExec;
use crate::source::scan_of;

/// Bytes of a file: begin and end.
type Range = (i64, i64);

/// Checks a leaf. Returns where its rows are.
pub fn check(node: &Plan, above: Above) -> Check<Rows> {
    // The last stage reads the source itself, whatever parts there are.
    if above.is_head || node.is::<EmptyExec>() {
        return Ok(if above.tasks == 1 { Rows::Whole } else { Rows::Split });
    }
    let Some(leaf) = node.downcast_ref::<DistributedLeafExec>() else {
        return Ok(Rows::Whole);
    };
    if leaf.variants().len() != above.tasks {
        return wrong(node, "has parts for another number of tasks");
    }
    check_parts(node, leaf)?;
    if above.tasks == 1 {
        return match keeps_groups(leaf) {
            true => Ok(Rows::Whole),
            false => wrong(
                node,
                "declares by which columns its files are grouped, and groups them differently",
            ),
        };
    }
    limits::check_leaf(node, leaf, above)?;
    Ok(Rows::Split)
}

fn check_parts(node: &Plan, leaf: &DistributedLeafExec) -> Check<()> {
    let read = leaf.variants().iter().map(pieces).collect::<Option<Vec<_>>>();
    if let (Some(whole), Some(read)) = (pieces(leaf.original()), read) {
        let mut read = read.concat();
        read.sort_unstable();
        return match read == whole {
            true => Ok(()),
            false => wrong(node, "would not read each of its parts once"),
        };
    }
    let parts = leaf.variants().iter().map(scan_of).collect::<Option<Vec<_>>>();
    let (Some(whole), Some(parts)) = (scan_of(leaf.original()), parts) else {
        return wrong(node, "is not known to read each row once");
    };
    let whole_files = files(&[whole]);
    let part_files = files(&parts);
    let joined = |files: &BTreeMap<String, Vec<Range>>| {
        let files = files
            .iter()
            .map(|(path, ranges)| joined(ranges).map(|ranges| (path.clone(), ranges)));
        files.collect::<Option<Vec<_>>>()
    };
    match (joined(&whole_files), joined(&part_files)) {
        (Some(whole), Some(parts)) if whole == parts => {}
        _ => return wrong(node, "would not read each row of its files once"),
    }
    if whole_files != part_files && !is_splittable(leaf, whole) {
        return wrong(
            node,
            "would read parts of files that have to be read from their beginning",
        );
    }
    Ok(())
}

/// What a leaf of this crate reads: which parts of a kept frame, or which items.
fn pieces(plan: &Plan) -> Option<Vec<(usize, u64)>> {
    let mut pieces: Vec<_> = if let Some(kept) = plan.downcast_ref::<KeptExec>() {
        let parts = kept.rows().parts.iter();
        let locations = parts.map(|part| part.location);
        locations
            .map(|location| (location.rank as usize, u64::from(location.number)))
            .collect()
    } else {
        let items = plan.downcast_ref::<ItemsExec>()?.items().iter();
        items.map(|item| (Arc::as_ptr(item).cast::<u8>() as usize, 0)).collect()
    };
    pieces.sort_unstable();
    Some(pieces)
}

/// Whether a leaf of one task has the groups of files that its source declares to be grouped by columns, if any.
fn keeps_groups(leaf: &DistributedLeafExec) -> bool {
    let groups = |plan| scan_of(plan).map(|scan| scan.file_groups.iter().map(|group| files_of([group])).collect());
    let is_declared = scan_of(leaf.original()).is_some_and(|scan| scan.output_partitioning.is_some());
    let kept: Option<Vec<_>> = groups(leaf.original());
    !is_declared || leaf.variants().iter().all(|variant| groups(variant) == kept)
}

fn files(scans: &[&FileScanConfig]) -> BTreeMap<String, Vec<Range>> {
    files_of(scans.iter().flat_map(|scan| &scan.file_groups))
}

fn files_of<'a>(groups: impl IntoIterator<Item = &'a FileGroup>) -> BTreeMap<String, Vec<Range>> {
    let mut files: BTreeMap<String, Vec<Range>> = BTreeMap::new();
    for file in groups.into_iter().flat_map(FileGroup::files) {
        let size = i64::try_from(file.object_meta.size).unwrap_or(i64::MAX);
        let range = file.range.as_ref().map_or((0, size), |range| (range.start, range.end));
        files
            .entry(file.object_meta.location.to_string())
            .or_default()
            .push(range);
    }
    files.values_mut().for_each(|ranges| ranges.sort_unstable());
    files
}

/// The bytes of sorted ranges, in as few as possible. `None` if some are in two.
fn joined(ranges: &[Range]) -> Option<Vec<Range>> {
    let mut all: Vec<Range> = Vec::new();
    for &(begin, end) in ranges {
        match all.last_mut() {
            Some(last) if begin < last.1 => return None,
            Some(last) if begin == last.1 => last.1 = end,
            _ => all.push((begin, end)),
        }
    }
    Some(all)
}

/// Whether the source itself would read parts of files.
fn is_splittable(leaf: &DistributedLeafExec, scan: &FileScanConfig) -> bool {
    let partitions = leaf.original().output_partitioning().partition_count() * leaf.variants().len();
    let ordering = scan.output_ordering.first().cloned();
    let split = scan.file_source().repartitioned(partitions, 0, ordering, scan);
    split.is_ok_and(|split| split.is_some())
}
