//! What a policy learned before a trace begins.
//!
//! A site that switches harvesting on has watched its functions, and the published systems train their models before
//! they are measured (LIBRA, section 8.2.3). So generated traces begin with samples of other calls of the same functions:
//! their sizes are drawn as those of the trace, by another seed, and none of them is in it.

use dayfly_harvest::demand::is_bound;
use dayfly_harvest::profile::MAX_SAMPLES;
use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, CallId, FunctionId, Rules, Sample};

use crate::call::Phases;
use crate::functions::Functions;
use crate::generate::draw_size;
use crate::machine::{Machine, Stop};
use crate::node::MIN_WINDOW_US;
use crate::trace::Trace;

/// Apart from the seeds of traces.
const PURPOSE: u64 = 0x4849_5354;

/// Samples of `calls` calls of each measured function of a trace, oldest first. Functions that were not measured have
/// none.
pub fn history(trace: &Trace, functions: &Functions, calls: usize, seed: u64) -> Vec<(FunctionId, Sample)> {
    let mut samples = Vec::new();
    for (index, (_, name)) in trace.functions().iter().enumerate() {
        let Some(function) = functions.by_name(name) else {
            continue;
        };
        let mut random = Random::for_purpose(seed, PURPOSE + index as u64);
        for _ in 0..calls.min(MAX_SAMPLES) {
            let size = draw_size(function, &mut random);
            let phases = function.draw(size, &mut random);
            if let Some(mut sample) = alone(phases) {
                sample.features = function.features(size);
                samples.push((FunctionId(index as u64), sample));
            }
        }
    }
    samples
}

/// Runs a call alone with the largest allocation. `None` if it is too short to be measured, or needs more memory.
fn alone(phases: Phases) -> Option<Sample> {
    let id = CallId(0);
    // As in the profiling window.
    let Rules {
        profiling: allocation,
        window_us,
        ..
    } = Rules::default();
    let mut machine = Machine::new(allocation);
    machine.start(id, allocation, phases);
    let mut peak = None;
    let mut window_end_us = window_us;
    loop {
        let at_us = machine.next_us()?.min(window_end_us);
        machine.advance(at_us);
        let stopped = machine.stopped();
        if (at_us == window_end_us || !stopped.is_empty())
            && let Some(measured) = machine.measure(id, MIN_WINDOW_US)
        {
            let used = Amount::new(measured.milli_cores, measured.memory_bytes);
            peak = Some(used.max(peak.unwrap_or(Amount::ZERO)));
        }
        if at_us == window_end_us {
            window_end_us += window_us;
        }
        match stopped.first() {
            Some((_, Stop::Finished)) => break,
            Some((_, Stop::OutOfMemory)) => return None,
            None => {}
        }
    }
    let peak = peak?;
    Some(Sample {
        features: Default::default(),
        allocation,
        peak,
        duration_us: machine.now_us(),
        cpu_is_bound: is_bound(peak.milli_cores, allocation.milli_cores),
        memory_is_bound: is_bound(peak.memory_bytes, allocation.memory_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Phase;

    #[test]
    fn sample_has_the_peak_of_the_windows() {
        let phase = |core_ms: u64, cores: u64| Phase {
            core_us: core_ms * 1_000,
            milli_cores: cores * 1_000,
            memory_bytes: 100 << 20,
        };
        let sample = alone(Phases::new(&[phase(150, 1), phase(600, 4)]).unwrap()).unwrap();
        assert_eq!(sample.duration_us, 300_000);
        assert_eq!(sample.peak, Amount::new(4_000, 100 << 20));
        assert!(!sample.cpu_is_bound && !sample.memory_is_bound);
        assert!(alone(Phases::new(&[phase(900, 16)]).unwrap()).unwrap().cpu_is_bound);
        assert_eq!(alone(Phases::new(&[phase(10, 1)]).unwrap()), None, "too short");
    }
}
