//! The profiles of a node's functions, how much they have learnt, and reports of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_harvest::profile::{ChosenModel, Lending, Report};
use dayfly_harvest::{Amount, Demand, Features, FunctionId, Predictor, Profiles, Rules, Sample};
use dayfly_protocol::api::{CallResources, LearntProfile, ProfileModel, ProfileScores};
use dayfly_protocol::ids::TenantId;

use super::names::Names;

/// What a node learnt. Clones share it: the thread that measures, and requests for reports.
#[derive(Debug, Clone, Default)]
pub(super) struct Learning(Arc<Learnt>);

#[derive(Debug, Default)]
struct Learnt {
    profiles: Mutex<Profiles>,
    names: Mutex<Names>,
    samples: AtomicU64,
    functions: AtomicU32,
}

impl Learning {
    fn profiles(&self) -> MutexGuard<'_, Profiles> {
        self.0.profiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that were learnt from.
    pub fn samples(&self) -> u64 {
        self.0.samples.load(Ordering::Relaxed)
    }

    /// Functions with a profile.
    pub fn functions(&self) -> u32 {
        self.0.functions.load(Ordering::Relaxed)
    }

    /// The numbers of a tenant and of its function, a call of which owns this much.
    pub fn number(&self, tenant: TenantId, function: &str, owned: Amount) -> (dayfly_harvest::TenantId, FunctionId) {
        self.names().of(tenant, function, owned)
    }

    /// Reports the functions of a tenant that a text names. Each takes less than a millisecond, in which the thread that
    /// measures may wait.
    pub fn reports(&self, tenant: TenantId, wanted: &str, rules: Rules, is_on: bool) -> Vec<LearntProfile> {
        let named = self.names().named(tenant, wanted);
        let reports = named.into_iter().filter_map(|(id, function)| {
            let owned = function.owned();
            let report = self.profiles().report(id, &Lending { owned, rules, is_on })?;
            Some(learnt_profile(function.name(), owned, report))
        });
        reports.collect()
    }
}

fn learnt_profile(function: &str, owned: Amount, report: Report) -> LearntProfile {
    let count = |samples: usize| u32::try_from(samples).unwrap_or(u32::MAX);
    let scores = report.scores.map(|scores| ProfileScores {
        forest_loss: scores.forest_loss,
        histogram_loss: scores.histogram_loss,
        cpu_accuracy: scores.cpu_accuracy,
        memory_accuracy: scores.memory_accuracy,
        duration_r2: scores.duration_r2,
        is_size_related: scores.is_size_related,
    });
    let profile = LearntProfile {
        function: function.into(),
        samples: count(report.samples),
        samples_needed: count(report.samples_needed),
        model: match report.model {
            ChosenModel::None => ProfileModel::None,
            ChosenModel::Forest => ProfileModel::Forest,
            ChosenModel::Histogram => ProfileModel::Histogram,
            ChosenModel::MaxOfLast => ProfileModel::MaxOfLast,
        },
        scores,
        owned: resources(owned),
        high: report.high.map(resources),
        lends: resources(report.lends),
        reason: report.reason,
    };
    // Scores that are no numbers could not be sent.
    profile.sanitized()
}

fn resources(amount: Amount) -> CallResources {
    CallResources {
        milli_cores: amount.milli_cores,
        memory_bytes: amount.memory_bytes,
    }
}

impl Predictor for Learning {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        self.profiles().predict(function, features)
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        let mut profiles = self.profiles();
        profiles.learn(function, sample);
        let functions = u32::try_from(profiles.functions().count()).unwrap_or(u32::MAX);
        drop(profiles);
        self.0.samples.fetch_add(1, Ordering::Relaxed);
        self.0.functions.store(functions, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_function_samples_and_reason() {
        let (mut learning, tenant) = (Learning::default(), TenantId([1; 16]));
        let owned = Amount::new(1_000, 1 << 30);
        let (_, id) = learning.number(tenant, "m.f@12345678", owned);
        let reports = |learning: &Learning| learning.reports(tenant, "f", Rules::default(), false);
        assert!(reports(&learning).is_empty());
        for _ in 0..30 {
            let sample = Sample {
                features: Features::default(),
                allocation: owned,
                peak: Amount::new(100, 1 << 20),
                duration_us: 1_000_000,
                cpu_is_bound: false,
                memory_is_bound: false,
            };
            learning.learn(id, sample);
        }
        let all = reports(&learning);
        let [report] = &all[..] else { panic!("{all:?}") };
        assert_eq!((report.function.as_str(), report.samples), ("m.f@12345678", 30));
        assert_eq!(report.owned.milli_cores, 1_000);
        assert!(report.lends.milli_cores > 500, "{report:?}");
        assert!(report.reason.starts_with("It would lend about"), "{report:?}");
        // It can be sent and read.
        let text = serde_json::to_string(report).unwrap();
        assert_eq!(&serde_json::from_str::<LearntProfile>(&text).unwrap(), report);
        assert!(
            learning
                .reports(TenantId([2; 16]), "f", Rules::default(), true)
                .is_empty()
        );
        assert_eq!((learning.samples(), learning.functions()), (30, 1));
    }
}
