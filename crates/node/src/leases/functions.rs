//! Usage of each function of a lease, as its workers report it.
//!
//! Tenants pay for the lease's usage, which the clock limits. The usage of functions only divides it: a worker that
//! reports wrong values moves its own tenant's costs from one line to another.

use dayfly_protocol::api::{MAX_FUNCTIONS, OTHER_FUNCTIONS};

use super::*;

/// The entry of a function, or that of all others after [`MAX_FUNCTIONS`] entries.
pub(super) fn entry(all: &mut BTreeMap<String, FunctionUsage>, name: Option<String>) -> &mut FunctionUsage {
    let known = name.filter(|name| all.contains_key(name) || all.len() + 1 < MAX_FUNCTIONS);
    let function = known.unwrap_or_else(|| OTHER_FUNCTIONS.into());
    all.entry(function.clone()).or_insert_with(|| FunctionUsage {
        function,
        ..FunctionUsage::default()
    })
}

/// Usage by function, at most `believed` in total.
pub(super) fn functions_of(state: &LeaseData, meters: &[Meter], believed: &Usage) -> Vec<FunctionUsage> {
    use dayfly_fabric::clock::{ticks, us_of_ticks};
    let mut all = state.lost.clone();
    for (slot, meter) in state.slots.iter().zip(meters) {
        for (name, counted) in meter.functions() {
            let sum = entry(&mut all, name);
            sum.computing_us = sum.computing_us.saturating_add(us_of_ticks(counted.computing));
            sum.calls = sum.calls.saturating_add(counted.calls);
            sum.failures = sum.failures.saturating_add(counted.failures);
        }
        let reading = meter.read();
        if slot.is_up()
            && reading.is_running()
            && let Some(place) = reading.account.function()
        {
            let sum = entry(&mut all, meter.function_name(place));
            let running = us_of_ticks(ticks().saturating_sub(reading.start_ticks));
            sum.computing_us = sum.computing_us.saturating_add(running);
        }
    }
    let mut left = *believed;
    let within = |used: u64, left: &mut u64| {
        let used = used.min(*left);
        *left -= used;
        used
    };
    let cut = |function: FunctionUsage| FunctionUsage {
        computing_us: within(function.computing_us, &mut left.computing_us),
        calls: within(function.calls, &mut left.calls),
        failures: within(function.failures, &mut left.failures),
        ..function
    };
    all.into_values().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_beyond_the_limit_share_one_entry() {
        let mut all = BTreeMap::new();
        for n in 0..2 * MAX_FUNCTIONS {
            entry(&mut all, Some(format!("f{n:03}"))).calls += 1;
        }
        entry(&mut all, None).calls += 1;
        assert_eq!(all.len(), MAX_FUNCTIONS);
        assert_eq!(all[OTHER_FUNCTIONS].calls, MAX_FUNCTIONS as u64 + 2);
        assert_eq!(all["f000"].calls, 1);
    }
}
