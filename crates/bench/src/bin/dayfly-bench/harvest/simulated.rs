//! Recorded calls of a live node in the simulator, which has to agree with it.

use std::path::Path;

use dayfly_protocol::error::{Code, Failure};
use dayfly_simulate::cluster::Options;
use dayfly_simulate::functions::Functions;
use dayfly_simulate::policy::Policy;
use dayfly_simulate::study::Study;
use dayfly_simulate::trace::{NamedText, Trace};
use serde::Serialize;

/// The calls of a record: live, and simulated with the same policy.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Simulated {
    pub calls: usize,
    pub live_p99_s: f64,
    pub live_completion_s: f64,
    /// Simulated over live.
    pub p99_ratio: f64,
    /// Simulated over live.
    pub completion_ratio: f64,
}

/// Simulates the calls of a record on a node like the one that recorded them.
pub fn simulate(record: &Path) -> Result<Simulated, Failure> {
    let wrong =
        |error: &dyn std::fmt::Display| Failure::new(Code::Internal, format!("the record is unusable: {error}"));
    let bytes = std::fs::read(record).map_err(|error| wrong(&error))?;
    let file = NamedText {
        name: "the record",
        bytes: &bytes,
    };
    let trace = Trace::read(&[file], Functions::measured(), 1).map_err(|error| wrong(&error))?;
    let live = trace.recorded().ok_or_else(|| wrong(&"it is another trace"))?;
    let options = Options {
        capacity: live.capacity,
        cold_start_us: 0,
        ..Options::default()
    };
    let study = Study::new(trace.calls(), &[], options).map_err(|error| wrong(&error))?;
    let (report, _) = study.run(Policy::Dayfly, &mut || 0).map_err(|error| wrong(&error))?;
    Ok(Simulated {
        calls: live.calls,
        live_p99_s: live.p99_s,
        live_completion_s: live.completion_s,
        p99_ratio: report.p99_s / live.p99_s,
        completion_ratio: report.completion_s / live.completion_s,
    })
}
