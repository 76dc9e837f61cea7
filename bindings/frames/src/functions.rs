//! DataFusion's functions by name.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use dayfly_frame::datafusion::functions::all_default_functions;
use dayfly_frame::datafusion::functions_aggregate::all_default_aggregate_functions;
use dayfly_frame::datafusion::functions_window::all_default_window_functions;
use dayfly_frame::datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};

static SCALARS: LazyLock<HashMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
    let named = all_default_functions().into_iter().flat_map(|function| {
        let mut names = vec![function.name().to_owned()];
        names.extend(function.aliases().iter().cloned());
        names.into_iter().map(move |name| (name, Arc::clone(&function)))
    });
    named.collect()
});

static AGGREGATES: LazyLock<HashMap<String, Arc<AggregateUDF>>> = LazyLock::new(|| {
    let named = all_default_aggregate_functions().into_iter();
    named.map(|function| (function.name().to_owned(), function)).collect()
});

static WINDOWS: LazyLock<HashMap<String, Arc<WindowUDF>>> = LazyLock::new(|| {
    let named = all_default_window_functions().into_iter();
    named.map(|function| (function.name().to_owned(), function)).collect()
});

/// The function of one row with this name, or `None`.
pub fn scalar(name: &str) -> Option<Arc<ScalarUDF>> {
    SCALARS.get(name).cloned()
}

/// The function of many rows with this name, or `None`.
pub fn aggregate(name: &str) -> Option<Arc<AggregateUDF>> {
    AGGREGATES.get(name).cloned()
}

/// The window function with this name, or `None`.
pub fn window(name: &str) -> Option<Arc<WindowUDF>> {
    WINDOWS.get(name).cloned()
}
