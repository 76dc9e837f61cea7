//! Statistics of floating-point columns, which plans must not use.
//!
//! In Parquet files, the smallest and the largest value of a column leave out NaN. DataFusion orders NaN above all
//! numbers, and so would take a column of infinity and NaN for a constant, and leave out row groups that have NaN.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result as QueryResult, Statistics};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;

/// The rules of DataFusion for physical plans, between two that keep them from using statistics of floats.
pub fn optimizer_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    rules.insert(
        0,
        Arc::new(ScanRule {
            name: "no_float_bounds",
            change: without_bounds,
        }),
    );
    rules.push(Arc::new(ScanRule {
        name: "no_float_pruning",
        change: without_pruning,
    }));
    rules
}

/// A rule that changes the scans of a plan for which there is another one.
#[derive(Debug)]
struct ScanRule {
    name: &'static str,
    change: fn(&FileScanConfig) -> Option<FileScanConfig>,
}

impl PhysicalOptimizerRule for ScanRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let changed = plan.transform_up(|node| {
            let source = node.downcast_ref::<DataSourceExec>();
            let scan = source.and_then(|source| source.data_source().downcast_ref::<FileScanConfig>());
            Ok(match scan.and_then(self.change) {
                Some(scan) => Transformed::yes(DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>),
                None => Transformed::no(node),
            })
        })?;
        Ok(changed.data)
    }

    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn is_float(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, values) => is_float(values),
        kind => kind.is_floating(),
    }
}

fn table_schema(scan: &FileScanConfig) -> SchemaRef {
    Arc::clone(scan.file_source().table_schema().table_schema())
}

/// A scan without the smallest and the largest value of floating-point columns.
fn without_bounds(scan: &FileScanConfig) -> Option<FileScanConfig> {
    let schema = table_schema(scan);
    if !schema.fields().iter().any(|field| is_float(field.data_type())) {
        return None;
    }
    let clean = |statistics: &Statistics| {
        let mut statistics = statistics.clone();
        for (column, field) in statistics.column_statistics.iter_mut().zip(schema.fields()) {
            if is_float(field.data_type()) {
                column.min_value = Precision::Absent;
                column.max_value = Precision::Absent;
            }
        }
        Arc::new(statistics)
    };
    let groups = scan.file_groups.iter().map(|group| {
        let files = group.iter().cloned().map(|mut file| {
            file.statistics = file.statistics.as_deref().map(clean);
            file
        });
        let cleaned = FileGroup::new(files.collect());
        match group.file_statistics(None) {
            Some(statistics) => cleaned.with_statistics(clean(statistics)),
            None => cleaned,
        }
    });
    let groups = groups.collect();
    let whole = Arc::unwrap_or_clone(clean(&scan.statistics()));
    let builder = FileScanConfigBuilder::from(scan.clone());
    Some(builder.with_file_groups(groups).with_statistics(whole).build())
}

/// A scan without conditions on floating-point columns in what prunes row groups. A node above the scan has them, too.
fn without_pruning(scan: &FileScanConfig) -> Option<FileScanConfig> {
    let source = scan.file_source().downcast_ref::<ParquetSource>()?;
    let schema = table_schema(scan);
    let is_safe = |part: &Arc<dyn PhysicalExpr>| {
        collect_columns(part).iter().all(|column| {
            let field = schema.field_with_name(column.name());
            field.is_ok_and(|field| !is_float(field.data_type()))
        })
    };
    let predicate = source.filter()?;
    let parts = split_conjunction(&predicate);
    let count = parts.len();
    let kept: Vec<_> = parts.into_iter().filter(|part| is_safe(part)).cloned().collect();
    if kept.len() == count {
        return None;
    }
    let source = source.with_predicate(conjunction(kept));
    Some(
        FileScanConfigBuilder::from(scan.clone())
            .with_source(Arc::new(source))
            .build(),
    )
}
