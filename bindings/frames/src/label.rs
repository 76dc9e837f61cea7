//! Labels of queries, by which Python reports and cancels what a thread runs.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dayfly_frame::Label as FrameLabel;
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

use crate::errors::raise;

/// Time after which a query takes long.
const LONG: Duration = Duration::from_secs(1);

/// A label that a thread has entered.
struct Current {
    call: Arc<Call>,
    /// Python's function that is called once the query takes long.
    on_long: Option<Py<PyAny>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

struct Call {
    label: Arc<FrameLabel>,
    begun: Instant,
    is_cancelled: AtomicBool,
}

/// The label of one call of Python, from now on.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Label(Arc<Call>);

impl Label {
    pub fn inner(&self) -> &Arc<FrameLabel> {
        &self.0.label
    }
}

#[pymethods]
impl Label {
    #[new]
    fn new() -> Self {
        Self(Arc::new(Call {
            label: Arc::default(),
            begun: Instant::now(),
            is_cancelled: AtomicBool::new(false),
        }))
    }

    /// Has the queries of this thread this label. The function is called, in this thread, once they take long.
    fn enter(&self, on_long: Py<PyAny>) {
        let current = Current {
            call: Arc::clone(&self.0),
            on_long: Some(on_long),
        };
        CURRENT.set(Some(current));
    }

    /// Has the queries of this thread no label.
    #[staticmethod]
    fn leave() {
        // Dropped without the cell being borrowed, since that may run Python's code.
        drop(CURRENT.take());
    }

    /// Ends the query with `cancelled`, when its thread waits for it.
    fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// The label of this thread's queries.
pub fn current() -> Option<Arc<FrameLabel>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|current| Arc::clone(&current.call.label)))
}

/// Runs a future whose queries have this label.
pub async fn scoped<T>(label: Option<Arc<FrameLabel>>, query: impl Future<Output = T>) -> T {
    match label {
        Some(label) => label.scope(query).await,
        None => query.await,
    }
}

/// Calls Python's function if the query of this thread takes long now. Fails if the query is cancelled.
pub fn check(py: Python<'_>) -> PyResult<()> {
    let (on_long, is_cancelled) = CURRENT.with_borrow_mut(|current| {
        let Some(current) = current else {
            return (None, false);
        };
        let is_long = current.call.begun.elapsed() >= LONG;
        let on_long = if is_long { current.on_long.take() } else { None };
        (on_long, current.call.is_cancelled.load(Ordering::Relaxed))
    });
    if let Some(on_long) = on_long {
        on_long.call0(py)?;
    }
    if is_cancelled {
        let message = "the query was cancelled at the manager, by the console or by `dayfly queries cancel`";
        return Err(raise(py, &Failure::new(Code::Cancelled, message)));
    }
    Ok(())
}
